/**
 * Decides which finished runs a purge may remove. A run is removed as a whole or stays as a whole.
 *
 * P1  A run stays while something that stays refers to it.
 * P2  Runs that refer to each other are removed together or not at all, so that the remaining rows never refer to
 *     removed rows.
 */

/** The kind of reference to a run, or the reason why one of its tapes is too young. */
export type PurgeCause =
  | 'segment'
  | 'fork'
  | 'grant'
  | 'agent'
  | 'many_runs'
  | 'owner'
  | 'maker'
  | 'card'
  | 'context'
  | 'batch'
  | 'entry'
  | 'reset'
  | 'open_fork'
  | 'turn'
  | 'session'
  | 'incarnation';

export interface PurgeReference {
  /**
   * The run that holds the reference; null for a holder that stays: a younger run, or a box or an agent without a run.
   */
  readonly from: string | null;
  /** The run that is referred to. */
  readonly to: string;
  readonly cause: PurgeCause;
  /** The box, agent or run that holds the reference; or the tape that is too young. */
  readonly holder: string;
}

export interface KeptRun {
  readonly run_id: string;
  readonly cause: PurgeCause;
  readonly holder: string;
}

export interface PurgeDecision {
  /** Runs to remove, in groups that are removed together. */
  readonly groups: readonly (readonly string[])[];
  readonly kept: readonly KeptRun[];
}

export function decidePurge(runs: readonly string[], references: readonly PurgeReference[]): PurgeDecision {
  const kept = findKept(references);
  const groups = new Map<string, string[]>();
  const rootOf = joinRuns(
    references.filter(({ from, to }) => from !== null && !kept.has(from) && !kept.has(to)),
  );
  for (const run of runs) {
    if (kept.has(run)) continue;
    const root = rootOf(run);
    const group = groups.get(root);
    if (group === undefined) groups.set(root, [run]);
    else group.push(run);
  }
  return { groups: [...groups.values()], kept: [...kept.values()] };
}

/** P1: follows the references from everything that stays. */
function findKept(references: readonly PurgeReference[]): Map<string, KeptRun> {
  const byHolder = new Map<string | null, PurgeReference[]>();
  for (const reference of references) {
    const known = byHolder.get(reference.from);
    if (known === undefined) byHolder.set(reference.from, [reference]);
    else known.push(reference);
  }
  const kept = new Map<string, KeptRun>();
  const staying: (string | null)[] = [null];
  for (let next = staying.pop(); next !== undefined; next = staying.pop())
    for (const { to, cause, holder } of byHolder.get(next) ?? []) {
      if (kept.has(to)) continue;
      kept.set(to, { run_id: to, cause, holder });
      staying.push(to);
    }
  return kept;
}

/** P2: joins runs that refer to each other; the returned function gives the group of a run. */
function joinRuns(references: readonly PurgeReference[]): (run: string) => string {
  const parents = new Map<string, string>();
  const rootOf = (run: string): string => {
    let root = run;
    for (let up = parents.get(root); up !== undefined; up = parents.get(root)) root = up;
    // Shortens the path for later look-ups.
    for (let at = run; at !== root; ) {
      const up = parents.get(at) ?? root;
      parents.set(at, root);
      at = up;
    }
    return root;
  };
  for (const { from, to } of references) {
    if (from === null) continue;
    const [one, other] = [rootOf(from), rootOf(to)];
    if (one !== other) parents.set(one, other);
  }
  return rootOf;
}
