/**
 * The one way in: every door parses its input and calls `accept`.
 *
 * One read (caller, policy, first answer under the key), the handler's reads, one write. After the commit the doorbell rings.
 */
import {
  budgetExceeded,
  canonicalJson,
  DEFAULT_RUN_TURNS,
  KernelError,
  type Ring,
  sanitizeJson,
  sha256,
} from '@boxcar/kernel';
import {
  type Fence,
  isTransient,
  type Opening,
  retryTransient,
  ringsOf,
  type SubmittedTurn,
} from '@boxcar/store';
import { announceEnds } from '../end-subtrees.js';
import type { CallerContext } from '../handler.js';
import type { RuntimeCore } from '../runtime.js';
import { UnitOfWork } from '../unit-of-work.js';
import { unlessAborted } from '../unless-aborted.js';
import { answeredMeanwhile } from '../worker/call-result.js';
import { type Begun, begin, checkParent, type Opened, open, replay } from './opening.js';
import type { Accepted, DoorOptions, SubmitOptions } from './options.js';
import { Primitive } from './primitive.js';

/**
 * Accepts a primitive: validates, decides, and commits its whole effect in one transaction.
 *
 * @returns The answer, or the receipt when a turn is awaited.
 * @throws KernelError of the catalogue; then nothing was written.
 * Rule: docs/primitives.md, "Accepting".
 */
export async function accept(
  runtime: RuntimeCore,
  primitive: string,
  args: unknown,
  options: SubmitOptions & DoorOptions = {},
): Promise<Accepted> {
  const begun = options.call?.begun ?? begin(runtime, primitive, args, options);
  let opening: Promise<Opened> | undefined = begun.opening;
  // Deadlocks and lost connections repeat the whole of it. Should the lost answer have been a commit, the key finds it.
  return retryTransient(async () => {
    const first = opening;
    opening = undefined;
    return acceptOnce(runtime, {
      begun,
      options,
      opening: await (first ?? open(runtime, options, begun.request)),
    });
  });
}

async function acceptOnce(
  runtime: RuntimeCore,
  attempt: {
    readonly begun: Begun;
    readonly options: SubmitOptions & DoorOptions;
    readonly opening: Opened;
  },
): Promise<Accepted> {
  const { options, opening } = attempt;
  const { primitive, handler, input, plain, request } = attempt.begun;
  const { key } = request;
  const requestHash = sha256(canonicalJson({ primitive, arguments: plain, source: opening.source.agentId }));
  const known = replay(opening, key, requestHash);
  if (known !== undefined) return known;
  checkParent(opening);

  const { source, parent } = opening;
  const ctx: CallerContext = {
    projectId: opening.projectId,
    primitive,
    source,
    channelId: options.channelId ?? parent?.channelId ?? 'public',
    traceparent: options.traceparent ?? null,
    parent: parent === undefined ? undefined : { ...parent },
  };
  const unit = new UnitOfWork(runtime.pool, runtime.write);
  try {
    const tools = new Primitive(runtime, { opening, ctx, unit, call: options.call });
    // Handlers are outside code: whatever they return, rows and cards can hold it.
    const handling = handler.handle(input, tools);
    const given = await (options.call === undefined
      ? handling
      : unlessAborted(handling, options.call.signal)
    ).catch(async (error: unknown) => {
      // Refused for what the first submission under this key has changed while this one waited for its locks?
      await unit.abandon();
      const first = await firstAnswer(runtime, { options, request, requestHash, error });
      if (first === undefined) throw error;
      return first;
    });
    if (given instanceof FirstAnswer) return given.accepted;
    const answer = sanitizeJson(given).value;
    if (tools.ending !== undefined) {
      if (!unit.isEmpty)
        throw new KernelError('internal_error', {
          message: `${primitive}: endTurn cannot be combined with other effects.`,
        });
      return {
        projectId: opening.projectId,
        answer,
        awaitedTurnId: null,
        awaitedBatchId: null,
        isReplay: false,
        ending: tools.ending,
      };
    }
    const { awaited } = tools;
    const awaitedTurnId = awaited?.kind === 'turn' ? awaited.id : null;
    const awaitedBatchId = awaited?.kind === 'batch' ? awaited.id : null;
    const { call } = options;
    const isWaitingCall = call !== undefined && awaited !== undefined;
    if (isWaitingCall) call.pass();
    const result = await unit.commit(
      {
        operation: {
          projectId: opening.projectId,
          idempotencyKey: key,
          primitive,
          requestHash,
          response: answer,
          awaitedTurnId,
          awaitedBatchId,
          doorJobId: awaited === undefined ? null : (options.doorJobId ?? null),
        },
        ...fenceOf(call, parent, unit.submission.turns.length > 0),
        ...(isWaitingCall
          ? {
              wait: { toolCallId: call.toolCallId, batchId: awaitedBatchId, deadlineMs: awaited.deadlineMs },
            }
          : {}),
      },
      call === undefined || isWaitingCall ? undefined : (tx) => call.settle(tx, answer),
    );
    if (result.outcome === 'refused') {
      // Someone else used the key meanwhile, the calling turn is gone, or what `because` says.
      const now = await open(runtime, options, request);
      const again = replay(now, key, requestHash);
      if (again !== undefined) return again;
      checkParent(now);
      if (result.because === 'full') throw runIsFull(opening);
      if (result.because === 'answered' && call !== undefined)
        throw answeredMeanwhile(primitive, call.toolCallId);
      throw new KernelError('turn_ended', { details: { turn_id: parent?.turnId } });
    }
    announce(runtime, result.turns, call?.ring);
    runtime.ring(tools.rings);
    for (const ended of tools.ended) announceEnds(runtime, ended);
    runtime.finishSoon(tools.dueBatchIds);
    return {
      projectId: opening.projectId,
      answer,
      awaitedTurnId,
      awaitedBatchId,
      isReplay: false,
      ending: null,
    };
  } finally {
    await unit.abandon();
  }
}

/** A run without an account has a ceiling all the same: its turns are counted where they are written. */
const runIsFull = ({ parent }: Opening): KernelError =>
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
 * A call is fenced by its turn's epoch. From outside a turn is filed under one that has not ended, whoever holds it. Where new
 * turns come, the run is locked first: a cancel of the tree then sees them, or they see the cancel.
 */
function fenceOf(
  call: DoorOptions['call'],
  parent: CallerContext['parent'],
  hasTurns: boolean,
): { readonly fence?: Fence } {
  const spawnRunId = hasTurns ? parent?.runId : undefined;
  const spawn =
    spawnRunId === undefined
      ? {}
      : { spawnRunId, maxRunTurns: parent?.budgetId === null ? DEFAULT_RUN_TURNS : null };
  if (call !== undefined)
    return { fence: { turnId: call.turnId, epoch: call.epoch, holderId: call.holderId, ...spawn } };
  if (parent === undefined || spawnRunId === undefined) return {};
  return { fence: { turnId: parent.turnId, epoch: null, holderId: null, ...spawn } };
}

/** The answer under the same key that was committed while a handler ran. */
class FirstAnswer {
  constructor(readonly accepted: Accepted) {}
}

async function firstAnswer(
  runtime: RuntimeCore,
  refused: {
    readonly options: SubmitOptions & DoorOptions;
    readonly request: { readonly key: string; readonly profileNames: readonly string[] };
    readonly requestHash: string;
    readonly error: unknown;
  },
): Promise<FirstAnswer | undefined> {
  const { options, request, requestHash, error } = refused;
  // A key made here is nobody else's, and what is not a refusal says nothing about the rows.
  if (request.key.startsWith('auto:') || !(error instanceof KernelError) || isTransient(error))
    return undefined;
  const known = replay(await open(runtime, options, request), request.key, requestHash);
  return known && new FirstAnswer(known);
}

/** After the commit: rings for what was dispatched, and a look at the queue for what was not. Never fails, never waits. */
function announce(
  runtime: RuntimeCore,
  turns: readonly SubmittedTurn[],
  ring: (rings: readonly Ring[]) => void = (rings) => runtime.ring(rings),
): void {
  ring(ringsOf(turns));
  for (const target of new Set(
    turns.filter((turn) => turn.status === 'queued').map((turn) => turn.worker_target),
  ))
    runtime.promoteSoon(target);
}
