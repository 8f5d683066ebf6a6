import type { JsonValue } from '@boxcar/kernel';
import { type CommitOutcome, type StepCommit, transaction } from '@boxcar/store';
import { announceEnds, buildEnd, type Ending, endHeld } from '../end/index.js';
import type { ClosedStep, HeldTurn, TurnHost, TurnRun } from './held-turn.js';

type Fence = Pick<StepCommit, 'turnId' | 'projectId' | 'agentId' | 'epoch' | 'holderId' | 'isMember'>;

/** The commits of a held turn, under its fence. */
export class TurnCommits {
  readonly #host: TurnHost;
  readonly #held: HeldTurn;

  constructor(host: TurnHost, held: HeldTurn) {
    this.#host = host;
    this.#held = held;
  }

  get #fence(): Fence {
    const { turn, holderId } = this.#held;
    return {
      turnId: turn.turnId,
      projectId: turn.projectId,
      agentId: turn.agentId,
      epoch: turn.epoch,
      holderId,
      isMember: turn.isMember,
    };
  }

  /** Closes a step after which the turn continues. */
  step(
    next: { readonly step: ClosedStep } & Pick<
      StepCommit,
      'cards' | 'entries' | 'calls' | 'emptyReplies' | 'spent'
    >,
  ): Promise<CommitOutcome> {
    return this.#host.commit({ ...this.#fence, ...next, results: [], end: null });
  }

  /**
   * Commits the end of the turn. Closes `step` and records `results` in the same transaction.
   *
   * @param also.before - The cards, entries and calls that the step leaves before its end.
   * @param also.hasOpenCalls - Other calls of the turn may still wait. They are closed, and the turns that only they
   * wait for end too.
   */
  async end(
    ending: Ending,
    also: {
      readonly step?: ClosedStep;
      readonly spent?: StepCommit['spent'];
      readonly before?: Pick<StepCommit, 'cards' | 'entries' | 'calls'>;
      readonly results?: StepCommit['results'];
      readonly hasOpenCalls?: boolean;
    } = {},
  ): Promise<TurnRun> {
    const built = buildEnd(this.#held.turn, ending);
    const { before, step } = also;
    const thoughtCardId = before?.cards[0]?.id ?? built.end.deliverableCardId;
    const commit = {
      ...this.#fence,
      step: step === undefined ? null : { ...step, thoughtCardId },
      cards: [...(before?.cards ?? []), ...built.cards],
      entries: [...(before?.entries ?? []), ...built.entries],
      spent: also.spent,
      calls: before?.calls ?? [],
      emptyReplies: 0,
      results: also.results ?? [],
      end: built.end,
    };
    const { outcome } =
      also.hasOpenCalls === true ? await this.#endWithAwaited(commit) : await this.#commitEnd(commit);
    for (const result of also.results ?? []) this.#held.unrecorded.delete(result);
    return outcome === 'committed' ? 'ended' : 'fenced';
  }

  /** Waiting callers in this process are answered without a read. */
  async #commitEnd(commit: Parameters<TurnHost['commit']>[0]): Promise<CommitOutcome> {
    const { turn } = this.#held;
    const { step, end } = commit;
    const deliverable = commit.cards.find(({ id }) => id === end?.deliverableCardId);
    if (step === null || end === null || deliverable === undefined) return this.#host.commit(commit);
    const takeBack = this.#host.runtime.watcher.foretell({
      project_id: turn.projectId,
      turn_id: turn.turnId,
      run_id: turn.runId,
      status: end.status,
      agent_id: turn.agentId,
      context_box_id: turn.contextBoxId,
      output_box_id: turn.outputBoxId,
      step_count: step.step,
      // Copies, equal to a read of the row.
      error: structuredClone(end.error),
      content: JSON.parse(deliverable.contentText) as JsonValue,
    });
    try {
      return await this.#host.commit(commit);
    } finally {
      takeBack();
    }
  }

  async #endWithAwaited(commit: Parameters<typeof endHeld>[2]): Promise<{ outcome: string }> {
    const { runtime } = this.#host;
    const end = await transaction(runtime.pool, (tx) => endHeld(tx, this.#held.turn, commit));
    announceEnds(runtime, end.ended);
    await runtime.outside?.forget(end.closed);
    return end;
  }
}
