/** A turn that a worker holds, and the functions of its worker that it uses. */
import type { Ring, ToolCallId, ViewRows, WorkerId } from '@boxcar/kernel';
import type {
  Advance,
  AdvanceOutcome,
  CallSettlement,
  ClaimedTurn,
  CommitOutcome,
  StepCommit,
} from '@boxcar/store';
import type { AskedNames } from '../approval/index.js';
import type { RuntimeCore } from '../core/index.js';
import type { Recorder } from '../end/index.js';
import type { ModelWaits } from '../model/index.js';
import type { TurnLoader, TurnView } from '../view/index.js';

/** A claimed turn with its lease signal and the state of its calls. */
export interface HeldTurn {
  readonly turn: ClaimedTurn;
  readonly view: TurnView;
  readonly holderId: WorkerId;
  /** Fires when the worker may no longer act for the turn: its lease is lost, or the time for a shutdown is over. */
  readonly signal: AbortSignal;
  /** The calls that were begun in this run and must not be run twice. */
  readonly begunIds: Set<ToolCallId>;
  /** The calls that wait for an approval. */
  readonly gatedIds: Set<ToolCallId>;
  /** Names of agents that were read for its policy. */
  readonly names: AskedNames;
  /** Results of its calls that are not in a row yet, with their step. */
  readonly unrecorded: Map<CallSettlement, number>;
  /** Number of calls of its last step that are answered elsewhere. */
  callsElsewhere: number;
  /** Rings the turns that a commit of this turn has dispatched. */
  readonly ring: (rings: readonly Ring[]) => void;
}

/** The results of a step's own calls. */
export interface StepResults extends Advance {
  /** True when these are the results of all calls of the step, in call order. */
  readonly isWhole: boolean;
}

/** The functions of its worker that a turn uses. */
export interface TurnHost {
  readonly runtime: RuntimeCore;
  readonly loader: TurnLoader;
  readonly modelWaits: ModelWaits;
  commit(commit: StepCommit): Promise<CommitOutcome>;
  advance(results: StepResults): Promise<AdvanceOutcome>;
  /** Records a result apart from the other results of its step. */
  readonly record: Recorder['add'];
  /** @throws when the worker's last renewal is older than its lease. */
  checkLease(): void;
  /** True once the worker hands its turns back at their next step. */
  isDraining(): boolean;
  /** Waits for other work without a slot of the worker. Returns after it has a slot again. */
  whileWaiting<T>(work: () => Promise<T>): Promise<T>;
}

/** `left`: its last step was committed, but the turn has since ended or another worker has taken it. */
export type TurnRun = 'ended' | 'suspended' | 'fenced' | 'left' | 'released';

/** The rows from which a step's prompt is built. */
export type StepRows = Pick<ViewRows, 'entries' | 'contexts' | 'lastAnchorPosition'>;

/** A step in the form in which its commit closes it. */
export type ClosedStep = NonNullable<StepCommit['step']>;

/**
 * Workers lost at one step before the turn is ended: a turn that repeatedly kills its workers would continue to do so.
 */
export const MAX_ATTEMPTS = 10;
