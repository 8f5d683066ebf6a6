import {
  type Cancel,
  cancelSchema,
  type JsonValue,
  KernelError,
  parseId,
  sanitizeJson,
} from '@boxcar/kernel';
import { findSubtreeRoot, hasDueNotices, type SubtreeRoot } from '@boxcar/store';
import type { Handler, HandlerTools } from '../handler/index.js';

/** Maximum ids in the answer; for a larger tree the answer also has the count. */
const LISTED = 1_000;

/** The next action for a turn that could not be ended. */
const NOT_ENDED =
  'No worker runs this turn any more. Its end is tried again after 2, 4, 8 and 16 seconds, and not after that. Remove the cause, then run boxcar doctor --retry-dead.';

async function findRoot(input: Cancel, { db, ctx }: HandlerTools): Promise<SubtreeRoot> {
  const root = await findSubtreeRoot(
    db,
    ctx.projectId,
    input.turn_id === undefined
      ? { runId: parseId<'run'>(input.run_id ?? '', 'arguments.run_id') }
      : { turnId: parseId<'turn'>(input.turn_id, 'arguments.turn_id') },
  );
  if (root !== undefined) return root;
  throw new KernelError('not_found', {
    message: `No ${input.turn_id === undefined ? 'run' : 'turn'} '${input.turn_id ?? input.run_id}' in this project.`,
    details: { turn_id: input.turn_id, run_id: input.run_id, project_id: ctx.projectId },
  });
}

/** The operator may end any turn of its project; an agent may end the turns below its own turns. A turn cannot cancel itself. */
function checkRight(
  root: SubtreeRoot,
  { isTurn, ctx: { source, parent } }: { readonly isTurn: boolean; readonly ctx: HandlerTools['ctx'] },
): void {
  const details = { turn_id: root.turnId, agent_id: source.agentId };
  if (!source.isOperator && !root.ancestorAgentIds.includes(source.agentId))
    throw new KernelError('turn_not_authorized', {
      message: `Turn ${root.turnId} is not below a turn of agent ${source.agentId}.`,
      details,
    });
  if (!isTurn && parent?.runId === root.runId)
    throw new KernelError('turn_not_authorized', {
      message: `Run ${root.runId} is the run of the calling turn.`,
      details: { ...details, run_id: root.runId },
    });
  if (parent?.chain.some((link) => link.turn_id === root.turnId) === true)
    throw new KernelError('turn_not_authorized', {
      message: `Turn ${root.turnId} is the calling turn, or one above it.`,
      details,
    });
}

/** Ends a turn or a run, with everything below it. */
async function handle(input: Cancel, tools: HandlerTools): Promise<JsonValue> {
  const root = await findRoot(input, tools);
  const isTurn = input.turn_id !== undefined;
  checkRight(root, { isTurn, ctx: tools.ctx });
  const { source } = tools.ctx;
  const turnIds = await tools.endSubtrees({
    runId: root.runId,
    // A run that was started by a fork_join from outside has several roots.
    ...(isTurn ? { rootTurnIds: [root.turnId] } : {}),
    status: 'canceled',
    error: new KernelError('canceled', {
      message:
        input.reason === undefined ? 'The turn was canceled.' : `Canceled: ${asSentence(input.reason)}`,
      details: {
        canceled_by: source.agentId,
        ...(isTurn ? { canceled_turn_id: root.turnId } : { canceled_run_id: root.runId }),
        ...(input.reason === undefined ? {} : { reason: input.reason }),
      },
    }).toJSON(),
  });
  const { unended } = tools;
  const isRootOpen = [...turnIds, ...unended.map(({ turnId }) => turnId)].includes(root.turnId);
  const isOver = isTurn
    ? !isRootOpen
    : turnIds.length + unended.length === 0 && !(await hasDueNotices(tools.tx, root.runId));
  if (isOver)
    throw new KernelError('turn_ended', {
      message: isTurn
        ? `Turn ${root.turnId} has ended already${turnIds.length > 0 ? `; below it ${turnIds.length} have not, which can be canceled each by itself` : ''}.`
        : `Run ${root.runId}: all its turns have ended already.`,
      next: turnIds.length > 0 ? 'Nothing was done.' : 'There is nothing to cancel.',
      details: {
        turn_id: root.turnId,
        run_id: root.runId,
        ...(turnIds.length > 0 ? { open_turn_ids: turnIds.slice(0, 20) } : {}),
      },
    });
  return {
    status: unended.length === 0 ? 'canceled' : 'partial',
    run_id: root.runId,
    turn_count: turnIds.length,
    turn_ids: turnIds.slice(0, LISTED),
    ...(unended.length === 0
      ? {}
      : {
          not_ended: unended.map(({ turnId, error: { code, message, details } }) => ({
            turn_id: turnId,
            error: {
              code,
              message,
              ...(details === undefined ? {} : { details: sanitizeJson(details).value }),
            },
            next: NOT_ENDED,
          })),
        }),
  };
}

/** The text after the reason is a separate sentence. */
const asSentence = (text: string): string => (/[.!?…]$/.test(text) ? text : `${text}.`);

export const cancel: Handler<Cancel> = {
  description:
    'Cancel a turn with all turns below it, or a whole run. Give turn_id or run_id. No further step begins.',
  input: cancelSchema,
  repeatable: true,
  handle,
};
