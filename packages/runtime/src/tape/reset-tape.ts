import { type BoxId, formatTapeRef, KernelError } from '@boxcar/kernel';
import type { TapeActor, TapeRow } from '@boxcar/store';
import { newId } from '../lib/index.js';
import type { TapeConnection } from './connection.js';
import { toNewBootstrap } from './entry-input.js';
import { notAuthorized, toAppendError } from './tape-errors.js';

/** The reference to an archived incarnation uses its box, because the next incarnation takes over its name. */
const archivedRef = ({ boxId, headPosition }: TapeRow, workspace: string): string =>
  formatTapeRef({
    workspace,
    tape: boxId,
    target: { kind: 'entry', position: headPosition },
    head: headPosition,
  });

/** Begins the next incarnation of a tape. `moved`: another reset was faster. @throws KernelError as `Tape.reset`. */
export async function resetTape(
  connection: TapeConnection,
  row: TapeRow,
  { actor, archive }: { readonly actor: TapeActor; readonly archive: boolean },
): Promise<'moved' | { readonly boxId: BoxId; readonly archived: string | null }> {
  const archived = archive ? archivedRef(row, actor.projectId) : null;
  const newBoxId = newId<'box'>();
  const result = await connection.reset({
    projectId: actor.projectId,
    boxId: row.boxId,
    newBoxId,
    authorId: actor.actorId,
    archive:
      archived === null ? null : { anchor: toNewBootstrap({ archived }, actor), head: row.headPosition },
  });
  if (result.outcome === 'moved') return 'moved';
  if (result.outcome === 'busy') {
    throw new KernelError('tape_busy', {
      message: `Turn ${result.turnId} of the agent of tape ${row.boxId} is under way or queued.`,
      details: { box_id: row.boxId, turn_id: result.turnId },
    });
  }
  if (result.outcome === 'forbidden') throw notAuthorized(row.boxId, actor.actorId, 'reset');
  if (result.outcome !== 'reset') throw toAppendError(result, row.boxId, actor.actorId);
  return { boxId: newBoxId, archived };
}
