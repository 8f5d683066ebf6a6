import { appendWithin, lockMembers, resetWithin } from '@boxcar/store';
import type { HandlerTools } from '../handler/index.js';
import type { TapeConnection } from '../tape/index.js';

/** Appended entries commit with the primitive. Locks are taken in the order turn, tape, so the calling turn is locked first. */
export const withinPrimitive = (
  { db, tx, ctx }: Pick<HandlerTools, 'db' | 'tx' | 'ctx'>,
  maxCardBytes: number | undefined,
): TapeConnection => ({
  db,
  maxCardBytes,
  append: async (request) => {
    if (ctx.parent !== undefined) await lockMembers(tx, [ctx.parent.turnId]);
    return appendWithin(tx, request);
  },
  reset: (request) => resetWithin(tx, request),
});
