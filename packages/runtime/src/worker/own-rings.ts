import type { Ring } from '@boxcar/kernel';
import type { CommitOutcome, CommitResult, StepCommit } from '@boxcar/store';

/** A commit with the ring of the turn that its end has resumed. */
export interface RungCommit {
  readonly outcome: CommitOutcome;
  readonly rings: readonly Ring[];
}

/** Pairs each ring of a micro-batch with the commit that caused it. `others` are the rings that no commit caused. */
export function pairRings(
  commits: readonly StepCommit[],
  result: Pick<CommitResult, 'outcomes' | 'rings'>,
): { readonly commits: readonly RungCommit[]; readonly others: readonly Ring[] } {
  const rings = new Map(result.rings.map((ring) => [ring.turnId, ring]));
  const take = ({ end }: StepCommit): readonly Ring[] => {
    const ring = end?.settles ? rings.get(end.settles.turnId) : undefined;
    if (ring === undefined) return [];
    rings.delete(ring.turnId);
    return [ring];
  };
  return {
    commits: commits.map((commit, index) => {
      const outcome = result.outcomes[index] ?? { outcome: 'fenced' };
      return { outcome, rings: outcome.outcome === 'committed' ? take(commit) : [] };
    }),
    others: [...rings.values()],
  };
}
