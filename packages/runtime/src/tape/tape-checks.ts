/** Checks which part of a tape an actor may read and fork, and whether positions and limits are valid. */
import { KernelError } from '@boxcar/kernel';
import type { Queryable, TapeActor, TapeRow } from '@boxcar/store';
import { anchorsUpto, type OpenedTape, readAnchor } from './read-tape.js';
import { notAuthorized } from './tape-errors.js';
import { MAX_ANCHORS } from './tape-types.js';

export const MAX_POSITION = 2 ** 31 - 2;

/** Opens the part of the tape that the actor may read. @throws KernelError `box_not_authorized`. */
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
  /** For an actor that may not read the whole tape: the last readable position, with the anchors up to it. */
  readonly upto: { readonly position: number; readonly lastAnchor: number; readonly anchors: number } | null;
}

/** The part that the actor may fork: the whole tape, or up to the position of a grant. @throws KernelError `box_not_authorized`. */
export async function forkPointOf(db: Queryable, row: TapeRow, actor: TapeActor): Promise<ForkPoint> {
  if (row.reads === 'all') return { row, upto: null };
  // A fork contains everything of its parent up to a position, so the actor needs a grant for all of that.
  if (row.readGrant === null) throw notAuthorized(row.boxId, actor.actorId, 'fork');
  const granted = { row, last: grantedUpto(row), within: null, actor };
  const anchors = await anchorsUpto(db, granted);
  return { row, upto: { position: granted.last, lastAnchor: anchors.last, anchors: anchors.count } };
}

/** The anchor with which a session begins. Null without a name. @throws KernelError `not_found`. */
export async function anchorOf(
  db: Queryable,
  { row, upto }: ForkPoint,
  { actor, name }: { readonly actor: TapeActor; readonly name: string | undefined },
): Promise<Awaited<ReturnType<typeof readAnchor>> | null> {
  if (name === undefined) return null;
  return readAnchor(db, { row, last: upto?.position ?? row.headPosition, within: null, actor }, name);
}
