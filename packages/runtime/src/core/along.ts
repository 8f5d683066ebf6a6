/** Claims that travel with a commit, joined into one claim for all its turns. */
import type { ClaimAlong, ViewedClaim } from '@boxcar/store';

/**
 * All joined claims belong to the worker of the last one. Claims of other workers, or of an earlier identity of this worker, are
 * dropped.
 */
export function joinAlong(given: readonly (ClaimAlong | undefined)[]): ClaimAlong | undefined {
  const all = given.filter((along) => along !== undefined);
  const last = all.at(-1);
  if (last === undefined) return undefined;
  const same = all.filter(({ holderId }) => holderId === last.holderId);
  return { ...last, rings: same.flatMap(({ rings }) => rings) };
}

/** The outcome of one of the joined claims. Undefined when the claim was not made. */
export function claimOf(
  along: ClaimAlong | undefined,
  joined: ClaimAlong | undefined,
  claims: readonly ViewedClaim[] | undefined,
): ViewedClaim | undefined {
  const turnId = along?.rings[0]?.turnId;
  if (turnId === undefined || along?.holderId !== joined?.holderId) return undefined;
  return claims?.[joined?.rings.findIndex((ring) => ring.turnId === turnId) ?? -1];
}
