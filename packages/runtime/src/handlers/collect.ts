import { type Collect, collectSchema, KernelError, parseId, type TurnId } from '@boxcar/kernel';
import { loadBatches } from '@boxcar/store';
import type { Handler, HandlerTools } from '../handler/index.js';
import { inMs } from './in-ms.js';

/** The turns of an earlier batch, for any caller: the right to read them is checked turn by turn. */
async function membersOf(ref: string, { db, ctx }: HandlerTools): Promise<readonly TurnId[]> {
  const id = parseId<'batch'>(ref, 'arguments.batch_id');
  const [batch] = await loadBatches(db, [id]);
  if (batch === undefined || batch.project_id !== ctx.projectId)
    throw new KernelError('not_found', {
      message: `arguments.batch_id: no batch ${id} in this project.`,
      details: { field: 'arguments.batch_id', batch_id: id, project_id: ctx.projectId },
    });
  return batch.turn_ids;
}

function parseTurnIds(refs: readonly string[]): readonly TurnId[] {
  const ids = refs.map((ref, index) => parseId<'turn'>(ref, `arguments.turn_ids.${index}`));
  const repeated = ids.findIndex((id, index) => ids.indexOf(id) < index);
  if (repeated === -1) return ids;
  const field = `arguments.turn_ids.${repeated}`;
  throw new KernelError('bad_request', {
    message: `${field}: turn ${ids[repeated]} is named twice.`,
    details: { field, turn_id: ids[repeated] },
  });
}

export const collect: Handler<Collect> = {
  description:
    'Wait for turns that were started earlier, by their turn_ids or by the batch_id of a fork_join. One answer has all results.',
  input: collectSchema,
  // The awaited turns continue after a timeout, so the same call may be repeated.
  repeatable: true,
  handle: async (input, tools) => {
    const isBatch = input.batch_id !== undefined;
    const turnIds =
      input.batch_id === undefined
        ? parseTurnIds(input.turn_ids ?? [])
        : await membersOf(input.batch_id, tools);
    const { batchId } = await tools.joinTurns(turnIds, {
      argumentOf: (index) => (isBatch ? 'batch_id' : `turn_ids.${index}`),
      deadlineMs: inMs(input.deadline_seconds),
    });
    return { status: 'accepted', batch_id: batchId, turn_ids: [...turnIds] };
  },
};
