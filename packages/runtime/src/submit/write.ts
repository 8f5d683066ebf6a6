/** Writes the effects of a try, under the key of its operation and the fence of its caller. */
import {
  budgetExceeded,
  DEFAULT_RUN_TURNS,
  type JsonValue,
  KernelError,
  type ProjectId,
} from '@boxcar/kernel';
import {
  type Fence,
  holdErasures,
  repeatsCards,
  type SeenCaller,
  type SubmissionResult,
  type Tx,
} from '@boxcar/store';
import type { Accepted, Caller, InnerSubmitOptions, RuntimeCore } from '../core/index.js';
import { answeredMeanwhile } from '../end/index.js';
import type { CallerContext } from '../handler/index.js';
import { checkParent, checkProject, projectArchived, replay } from './admit.js';
import { findCaller } from './caller.js';
import type { SubmissionDraft } from './draft.js';
import type { Attempt } from './try-context.js';
import type { UnitOfWork } from './unit-of-work.js';

export function write(
  unit: UnitOfWork,
  {
    of: { parsed, options, caller },
    ctx,
    draft,
    accepted,
    requestHash,
    isOutside,
    erasures,
  }: {
    readonly of: Attempt;
    readonly ctx: CallerContext;
    readonly draft: SubmissionDraft;
    readonly accepted: Accepted;
    readonly requestHash: string;
    /** True when an archived project refuses the submission. */
    readonly isOutside: boolean;
    /** The project's count of erasures before the answer was read. */
    readonly erasures: number | undefined;
  },
): Promise<SubmissionResult> {
  const { primitive } = parsed;
  const { call } = options;
  const { projectId, answer, awaitedTurnId, awaitedBatchId } = accepted;
  const { awaited, turnIds } = draft.outcome;
  const isWaitingCall = call !== undefined && awaited !== undefined;
  return unit.commit(
    {
      operation: {
        projectId,
        idempotencyKey: accepted.key,
        primitive,
        requestHash,
        response: answer,
        awaitedTurnId,
        awaitedBatchId,
        doorJobId: awaited === undefined ? null : (options.doorJobId ?? null),
        isOutside,
        seen: caller.isKept ? seenOf(caller) : undefined,
      },
      ...fenceOf(options, ctx.parent, turnIds.length > 0),
      ...(isWaitingCall
        ? {
            wait: { toolCallId: call.toolCallId, batchId: awaitedBatchId, deadlineMs: awaited.deadlineMs },
          }
        : {}),
    },
    afterWrite({ primitive, projectId, erasures, answer, call: isWaitingCall ? undefined : call }),
  );
}

const seenOf = ({ projectVersion, source, profiles }: Caller): SeenCaller => ({
  projectVersion,
  sourceId: source.agentId,
  sourceVersion: source.version,
  profileIds: [...profiles.values()].map(({ profileId }) => profileId),
});

/**
 * Explains a refused write: another submission has used the key in the meantime, the calling turn is gone, or the cause in
 * `because`.
 *
 * @returns The first answer under the key.
 * @throws KernelError with the reason why nothing was written.
 */
export async function explainRefusal(
  runtime: RuntimeCore,
  { parsed, options, caller }: Attempt,
  {
    because,
    requestHash,
  }: {
    readonly because: 'archived' | 'full' | 'answered' | 'stale' | undefined;
    readonly requestHash: string;
  },
): Promise<Accepted> {
  const { primitive, request } = parsed;
  const { parent } = caller;
  const { call } = options;
  if (because === 'stale') throw new CallerChanged();
  const now = await findCaller(runtime, options, request);
  const again = replay(now, request.key, requestHash);
  if (again !== undefined) return again;
  checkProject(now, primitive, options);
  // The project may have been opened again since.
  if (because === 'archived') throw projectArchived(now.projectId, primitive);
  checkParent(now, options);
  if (because === 'full') throw runIsFull(caller);
  if (because === 'answered' && call !== undefined) throw answeredMeanwhile(primitive, call.toolCallId);
  if (parent === undefined) throw new KeyFreed(caller.key);
  throw new KernelError('turn_ended', { details: { turn_id: parent.turnId } });
}

/** The work in the transaction of an accepted operation after its rows are written. */
function afterWrite({
  primitive,
  projectId,
  erasures,
  answer,
  call,
}: {
  readonly primitive: string;
  readonly projectId: ProjectId;
  /** The project's count of erasures before the answer was read. */
  readonly erasures: number | undefined;
  readonly answer: JsonValue;
  readonly call: InnerSubmitOptions['call'];
}): ((tx: Tx) => Promise<void>) | undefined {
  const isRepeating = repeatsCards(primitive, answer);
  if (call === undefined && !isRepeating) return undefined;
  return async (tx) => {
    await call?.settle(tx, answer);
    if (isRepeating && (await holdErasures(tx, projectId)) !== erasures) throw new WordsErased();
  };
}

/** Cards were erased after the handler had begun to read. The handler reads again, and erasures wait meanwhile. */
export class WordsErased extends KernelError {
  constructor() {
    super('conflict', {
      message: 'Cards of this project were erased while the answer was read.',
      next: 'Try again.',
      // Retried like a serialization failure.
      cause: Object.assign(new Error('cards were erased meanwhile'), { code: '40001' }),
    });
  }
}

/** The cached facts about the caller are out of date, so the caller is looked up again. */
class CallerChanged extends KernelError {
  constructor() {
    super('conflict', {
      message: 'The project, the agent or the profile was changed meanwhile.',
      next: 'Try again.',
    });
  }
}

/** The first submission under the key was removed before its answer could be read. */
class KeyFreed extends KernelError {
  constructor(key: string) {
    super('conflict', {
      message: `The submission that was accepted with key '${key}' has been removed meanwhile.`,
      next: 'Try again.',
      details: { idempotency_key: key },
      // Retried like a serialization failure.
      cause: Object.assign(new Error('the key is free again'), { code: '40001' }),
    });
  }
}

/** A run whose account does not limit its turns still has a ceiling: its turns are counted when they are written. */
const runIsFull = ({ parent }: Caller): KernelError =>
  budgetExceeded(
    {
      accountId: parent?.runId ?? '',
      kind: 'turns',
      limit: DEFAULT_RUN_TURNS,
      used: DEFAULT_RUN_TURNS,
      needed: 1,
    },
    {
      next: 'Begin a run of this size with a larger budget.turns.',
      details: { turn_id: parent?.turnId, run_id: parent?.runId },
    },
  );

/**
 * The fence of a write. A call is fenced by its turn's epoch. A turn from outside needs a parent that has not ended, whichever
 * worker holds the parent. A turn that an end starts has the ended turn as its parent. When there are new turns, the run is
 * locked first: a cancel of the tree then sees them, or they see the cancel.
 */
function fenceOf(
  { call, wokenBy }: InnerSubmitOptions,
  parent: CallerContext['parent'],
  hasTurns: boolean,
): { readonly fence?: Fence } {
  const spawnRunId = hasTurns ? parent?.runId : undefined;
  const spawn = spawnRunId === undefined ? {} : { spawnRunId, maxRunTurns: DEFAULT_RUN_TURNS };
  if (call !== undefined)
    return { fence: { turnId: call.turnId, epoch: call.epoch, holderId: call.holderId, ...spawn } };
  if (parent === undefined || spawnRunId === undefined) return {};
  const isEnded = wokenBy !== undefined;
  return { fence: { turnId: parent.turnId, epoch: null, holderId: null, isEnded, ...spawn } };
}
