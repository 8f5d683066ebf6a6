/** Claims that travel with a commit, as one for all its turns. */
import type { ClaimAlong, ViewedClaim } from '@boxcar/store';

/** They are of one worker: those of another, or of an earlier identity of it, stay out. */
export function joinAlong(given: readonly (ClaimAlong | undefined)[]): ClaimAlong | undefined {
  const all = given.filter((along) => along !== undefined);
  const last = all.at(-1);
  if (last === undefined) return undefined;
  const same = all.filter(({ holderId }) => holderId === last.holderId);
  return { ...last, rings: same.flatMap(({ rings }) => rings) };
}

/** What came of one of them. Undefined: it was not made. */
export function claimOf(
  along: ClaimAlong | undefined,
  joined: ClaimAlong | undefined,
  claims: readonly ViewedClaim[] | undefined,
): ViewedClaim | undefined {
  const turnId = along?.rings[0]?.turnId;
  if (turnId === undefined || along?.holderId !== joined?.holderId) return undefined;
  return claims?.[joined?.rings.findIndex((ring) => ring.turnId === turnId) ?? -1];
}
