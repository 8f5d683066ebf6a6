/** Writes what a try has made, under the key of its operation and the fence of its caller. */
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
    /** An archived project refuses it. */
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
 * Someone else used the key meanwhile, the calling turn is gone, or what `because` says.
 *
 * @returns What was answered first under the key.
 * @throws KernelError why nothing was written.
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
  // Its archiving may have been undone since.
  if (because === 'archived') throw projectArchived(now.projectId, primitive);
  checkParent(now, options);
  if (because === 'full') throw runIsFull(caller);
  if (because === 'answered' && call !== undefined) throw answeredMeanwhile(primitive, call.toolCallId);
  if (parent === undefined) throw new KeyFreed(caller.key);
  throw new KernelError('turn_ended', { details: { turn_id: parent.turnId } });
}

/** What is done in the transaction of an accepted operation after its rows are written. */
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

/** Cards were erased after the handler had begun to read: it reads again, and erasures wait meanwhile. */
export class WordsErased extends KernelError {
  constructor() {
    super('conflict', {
      message: 'Cards of this project were erased while the answer was read.',
      next: 'Try again.',
      // As a serialization failure, it is tried again.
      cause: Object.assign(new Error('cards were erased meanwhile'), { code: '40001' }),
    });
  }
}

/** The caller is not as it was seen earlier: it is looked up again. */
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
      message: `What was accepted under key '${key}' has been removed meanwhile.`,
      next: 'Try again.',
      details: { idempotency_key: key },
      // As a serialization failure, it is tried again.
      cause: Object.assign(new Error('the key is free again'), { code: '40001' }),
    });
  }
}

/** A run whose account does not limit its turns has a ceiling all the same: they are counted where they are written. */
const runIsFull = ({ parent }: Caller): KernelError =>
  budgetExceeded(
    {
      accountId: parent?.runId ?? '',
      kind: 'turns',
      limit: DEFAULT_RUN_TURNS,
      used: DEFAULT_RUN_TURNS,
      needed: 1,
    },
    { turn_id: parent?.turnId, run_id: parent?.runId },
  );

/**
 * A call is fenced by its turn's epoch. From outside a turn is filed under one that has not ended, whoever holds it; a turn that is
 * started by an end, under the turn that has ended. Where new
 * turns come, the run is locked first: a cancel of the tree then sees them, or they see the cancel.
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
