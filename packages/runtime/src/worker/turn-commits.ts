import type { CommitOutcome, StepCommit } from '@boxcar/store';
import { buildEnd, type Ending } from './ending.js';
import type { ClosedStep, HeldTurn, TurnHost, TurnRun } from './held-turn.js';

type Fence = Pick<
  StepCommit,
  'turnId' | 'projectId' | 'agentId' | 'epoch' | 'holderId' | 'hasParent' | 'isMember'
>;

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
      hasParent: turn.parentTurnId !== null,
      isMember: turn.isMember,
    };
  }

  /** Closes a step; the turn goes on. */
  step(
    next: { readonly step: ClosedStep } & Pick<
      StepCommit,
      'cards' | 'entries' | 'calls' | 'emptyReplies' | 'spent'
    >,
  ): Promise<CommitOutcome> {
    return this.#host.commit({ ...this.#fence, ...next, results: [], end: null });
  }

  /** Commits the end of the turn; closing `step` and recording `results` in the same transaction. */
  async end(
    ending: Ending,
    also: {
      readonly step?: ClosedStep;
      readonly spent?: StepCommit['spent'];
      readonly results?: StepCommit['results'];
    } = {},
  ): Promise<TurnRun> {
    const built = buildEnd(this.#held.turn, ending);
    const outcome = await this.#host.commit({
      ...this.#fence,
      step: also.step === undefined ? null : { ...also.step, thoughtCardId: built.end.deliverableCardId },
      cards: built.cards,
      entries: built.entries,
      spent: also.spent,
      calls: [],
      emptyReplies: 0,
      results: also.results ?? [],
      end: built.end,
    });
    return outcome.outcome === 'committed' ? 'ended' : 'fenced';
  }
}
