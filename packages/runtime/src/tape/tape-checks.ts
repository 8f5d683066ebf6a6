/** What of a tape its actor may read and fork, and whether positions and limits can be ones. */
import { KernelError } from '@boxcar/kernel';
import type { Queryable, TapeActor, TapeRow } from '@boxcar/store';
import { anchorsUpto, type OpenedTape, readAnchor } from './read-tape.js';
import { notAuthorized } from './tape-errors.js';
import { MAX_ANCHORS } from './tape-types.js';

export const MAX_POSITION = 2 ** 31 - 2;

/** What the actor reads of the tape. @throws KernelError `box_not_authorized`. */
export function openFor(row: TapeRow, actor: TapeActor): OpenedTape {
  switch (row.reads) {
    case 'all':
      return { row, last: row.headPosition, within: null, actor };
    case 'upto':
      return { row, last: grantedUpto(row), within: null, actor };
    case 'part':
      return {
        row,
        last: row.headPosition,
        within: { agentId: actor.actorId, boxId: row.boxId },
        actor,
      };
    case 'none':
      throw notAuthorized(row.boxId, actor.actorId, 'read');
    default:
      return row.reads satisfies never;
  }
}

const grantedUpto = ({ readGrant, headPosition }: TapeRow): number =>
  Math.min(headPosition, readGrant?.upto ?? headPosition);

export function checkPosition(position: number, field: string): number {
  if (Number.isSafeInteger(position) && position >= 0 && position <= MAX_POSITION) return position;
  throw new KernelError('bad_request', {
    message: `${field}: must be a position, or 0.`,
    details: { field },
  });
}

export function checkLimit(limit: number): number {
  if (Number.isInteger(limit) && limit >= 0 && limit <= MAX_ANCHORS) return limit;
  throw new KernelError('bad_request', {
    message: `limit: must be a whole number from 0 to ${MAX_ANCHORS}.`,
    details: { field: 'limit' },
  });
}

export interface ForkPoint {
  readonly row: TapeRow;
  /** For who may not see all: the last position, with what lies before it. */
  readonly upto: { readonly position: number; readonly lastAnchor: number; readonly anchors: number } | null;
}

/** What may be forked: all, or as far as a grant says. @throws KernelError `box_not_authorized`. */
export async function forkPointOf(db: Queryable, row: TapeRow, actor: TapeActor): Promise<ForkPoint> {
  if (row.reads === 'all') return { row, upto: null };
  // A fork reads all of its parent up to a position.
  if (row.readGrant === null) throw notAuthorized(row.boxId, actor.actorId, 'fork');
  const granted = { row, last: grantedUpto(row), within: null, actor };
  const anchors = await anchorsUpto(db, granted);
  return { row, upto: { position: granted.last, lastAnchor: anchors.last, anchors: anchors.count } };
}

/** The anchor that a session begins with; null without a name. @throws KernelError `not_found`. */
export async function anchorOf(
  db: Queryable,
  { row, upto }: ForkPoint,
  { actor, name }: { readonly actor: TapeActor; readonly name: string | undefined },
): Promise<Awaited<ReturnType<typeof readAnchor>> | null> {
  if (name === undefined) return null;
  return readAnchor(db, { row, last: upto?.position ?? row.headPosition, within: null, actor }, name);
}
