/**
 * The one way in: every door parses its input and calls `accept`.
 *
 * One read (caller, policy, first answer under the key), the handler's reads, one write. After the commit the doorbell rings.
 */
import {
  budgetExceeded,
  canonicalJson,
  DEFAULT_RUN_TURNS,
  isJsonObject,
  type JsonValue,
  KernelError,
  maskSecrets,
  type ProjectId,
  parseJsonValue,
  type Ring,
  sanitizeJson,
  sha256,
  type TurnId,
  tryParseId,
  warnOfSecrets,
} from '@boxcar/kernel';
import {
  afterTransaction,
  asOutside,
  CallerTransaction,
  type CallerTx,
  type Fence,
  findRings,
  findSubmitted,
  holdErasures,
  insideHandler,
  isTransient,
  limitsOn,
  type Opening,
  refuseNested,
  repeatsCards,
  retryTransient,
  ringsOf,
  type SubmittedTurn,
  type Tx,
} from '@boxcar/store';
import type { Accepted, Begun, DoorOptions, Opened, RuntimeCore, SubmitOptions } from '../core/index.js';
import { announceEnds, announceTries, answeredMeanwhile } from '../end/index.js';
import type { CallerContext } from '../handler/index.js';
import { unlessAborted } from '../lib/index.js';
import { hasArgument } from '../tool/index.js';
import { startHandlerLimit } from './handler-limit.js';
import {
  begin,
  checkParent,
  checkProject,
  codeOf,
  inScopeOf,
  isRefusedByArchive,
  open,
  readInput,
  replay,
} from './opening.js';
import { Primitive } from './primitive.js';
import { UnitOfWork } from './unit-of-work.js';

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
  refuseNested(runtime.pool);
  // The caller that makes a job chooses its name.
  if (options.doorJobId !== undefined) parseJsonValue(options.doorJobId, 'job_id');
  if (options.tx !== undefined && options.within === undefined)
    return acceptWithin(runtime, { primitive, args, tx: options.tx }, options);
  const begun = options.call?.begun ?? begin(runtime, primitive, args, options);
  let opening: Promise<Opened> | undefined = begun.opening;
  // Deadlocks and lost connections repeat the whole of it. Should the lost answer have been a commit, the key finds it.
  const written: Written[] = [];
  // A call has its own deadline.
  const limit =
    options.call === undefined
      ? startHandlerLimit(begun.primitive, runtime.handlerTimeoutMs)
      : { signal: options.call.signal, clear: () => undefined };
  let tries = 0;
  let holdsErasures = false;
  try {
    // In a transaction of the caller a try cannot be repeated: only the caller can repeat all of it.
    const retry = options.within === undefined ? retryTransient : <T>(work: () => Promise<T>) => work();
    return await retry(async () => {
      tries += 1;
      const first = opening;
      opening = undefined;
      return acceptOnce(runtime, {
        begun,
        options,
        opening: await (first ?? open(runtime, options, begun.request)),
        written,
        isAgain: tries > 1,
        holdsErasures,
        signal: limit.signal,
      }).catch((error: unknown) => {
        holdsErasures ||= error instanceof WordsErased;
        throw error;
      });
    });
  } finally {
    limit.clear();
  }
}

/** Accepts a primitive in a transaction of the caller. What it makes is announced when that transaction has ended. */
async function acceptWithin(
  runtime: RuntimeCore,
  { primitive, args, tx }: { readonly primitive: string; readonly args: unknown; readonly tx: CallerTx },
  options: SubmitOptions & DoorOptions,
): Promise<Accepted> {
  const within = await CallerTransaction.enter(tx, { lockMs: limitsOn(runtime.pool).lockMs });
  let accepted: Accepted;
  try {
    accepted = await accept(runtime, primitive, args, { ...options, within });
  } catch (error) {
    // A lost connection has undone everything; its error is the one to report.
    await within.undo().catch(() => undefined);
    throw error;
  }
  // The first answer under a key: what this try has looked up and locked is let go.
  if (accepted.isReplay) await within.undo();
  else await within.keep();
  return accepted;
}

/** @param canOmit - The primitive has an argument that says whether it waits. */
const cannotWait = (primitive: string, canOmit: boolean): KernelError =>
  new KernelError('bad_request', {
    message: canOmit
      ? `${primitive}: with tx nothing can be waited for, because the turns begin after your commit; give wait: false, and wait for turn_id (or batch_id) after the commit.`
      : `${primitive}: it waits, which nothing can in a transaction of yours; submit it after the commit, without tx.`,
    details: { primitive, field: canOmit ? 'wait' : 'tx' },
  });

/**
 * A receipt for a caller outside names the run of the turn or batch that it names. A turn that calls is of the same run, so its prompt does
 * not repeat it.
 */
function withRun(answer: JsonValue, tools: Pick<Primitive, 'runOf'>, { call }: DoorOptions): JsonValue {
  if (call !== undefined || !isJsonObject(answer) || 'run_id' in answer) return answer;
  const ids = [answer.batch_id, answer.turn_id, answer.turn_ids].flat(1).slice(0, 3);
  const named = ids.flatMap((id) => (typeof id === 'string' ? (tryParseId<'turn'>(id) ?? []) : []));
  const runId = named.map((id) => tools.runOf(id)).find((found) => found !== undefined);
  return runId === undefined ? answer : { ...answer, run_id: runId };
}

/** An answer that warns when `input` holds secrets. */
function withWarnings(answer: JsonValue, input: JsonValue): JsonValue {
  const warnings = warnOfSecrets(input);
  return warnings === undefined || !isJsonObject(answer) || 'warnings' in answer
    ? answer
    : { ...answer, warnings };
}

/** The end of what was awaited, with the warnings of the receipt. */
export function warnAgain(answer: JsonValue, receipt: JsonValue): JsonValue {
  if (!isJsonObject(answer) || 'warnings' in answer || !isJsonObject(receipt)) return answer;
  const { warnings } = receipt;
  return warnings === undefined ? answer : { ...answer, warnings };
}

async function acceptOnce(
  runtime: RuntimeCore,
  attempt: {
    readonly begun: Begun;
    readonly options: SubmitOptions & DoorOptions;
    readonly opening: Opened;
    /** An earlier try was lost, and may be committed at any time. */
    readonly isAgain: boolean;
    /** Erasures wait until this try has ended: cards were erased while an earlier try read them. */
    readonly holdsErasures: boolean;
    /** What earlier tries have written, if they were committed. What this try writes is added. */
    readonly written: Written[];
    /** Cancels the handler until it has answered. */
    readonly signal: AbortSignal;
  },
): Promise<Accepted> {
  const { options, opening, signal } = attempt;
  const earlier = [...attempt.written];
  const { primitive, handler, plain, request } = attempt.begun;
  const { key } = request;
  const requestHash = sha256(canonicalJson({ primitive, arguments: plain, source: opening.source.agentId }));
  const known = replay(opening, key, requestHash);
  if (known !== undefined)
    return options.within !== undefined
      ? known
      : announceFirst(runtime, known, { key, tries: earlier, ring: options.call?.ring });
  checkProject(opening, primitive, options);
  checkParent(opening, options);

  const { source, parent } = opening;
  const ctx: CallerContext = {
    projectId: opening.projectId,
    primitive,
    source,
    channelId: options.channelId ?? parent?.channelId ?? 'public',
    traceparent: options.traceparent ?? null,
    parent: parent === undefined ? undefined : { ...parent },
  };
  signal.throwIfAborted();
  const isOwn = runtime.ownHandlers.has(handler);
  const unit = new UnitOfWork({
    pool: runtime.pool,
    primitive,
    isOwn,
    write: runtime.write,
    outer: options.within?.db,
  });
  try {
    const erasures = attempt.holdsErasures
      ? await holdErasures(unit.tx, opening.projectId)
      : opening.erasures;
    const tools = new Primitive(runtime, {
      opening,
      ctx,
      unit,
      call: options.call,
      isWoken: options.wokenBy !== undefined,
      signal,
      isOwn,
    });
    // Handlers are outside code: rows and cards must be able to hold any answer.
    // Only outside handlers run in a scope: Node's hooks for it slow every promise of the process down.
    const code = codeOf(runtime, { primitive, handler }, options);
    const input = attempt.isAgain ? readInput(handler, plain, code) : attempt.begun.input;
    const handle = async (): Promise<JsonValue> => handler.handle(input, tools);
    const handling = isOwn
      ? handle()
      : insideHandler(unit.scope, () => inScopeOf(code, handle)).catch((error: unknown) =>
          // The reason of an abort is the kernel's.
          Promise.reject(signal.aborted ? error : asOutside(error)),
        );
    const given = await unlessAborted(handling, signal).catch(async (error: unknown) => {
      // A connection whose statement still runs is not waited for.
      await unit.abandon({ isCut: signal.aborted });
      // Refused for what the first submission under this key has changed while this one waited for its locks?
      const first = await firstAnswer(runtime, {
        options,
        request,
        requestHash,
        error,
        isAgain: attempt.isAgain,
      });
      if (first === undefined) throw error;
      return new FirstAnswer(
        await announceFirst(runtime, first, { key, tries: earlier, ring: options.call?.ring }),
      );
    });
    if (given instanceof FirstAnswer) return given.accepted;
    const clean = sanitizeJson(given).value;
    const receipt = withRun(isOwn ? clean : maskSecrets(clean), tools, options);
    const answer = withWarnings(receipt, plain);
    if (tools.ending !== null) {
      if (!unit.isEmpty)
        throw new KernelError('internal_error', {
          message: `${primitive}: endTurn cannot be combined with other effects.`,
        });
      return {
        projectId: opening.projectId,
        key: opening.key,
        answer,
        awaitedTurnId: null,
        awaitedBatchId: null,
        isReplay: false,
        ending: tools.ending,
      };
    }
    const { awaited } = tools;
    if (options.within !== undefined && awaited !== undefined)
      throw cannotWait(primitive, hasArgument(handler, 'wait'));
    const awaitedTurnId = awaited?.kind === 'turn' ? awaited.id : null;
    const awaitedBatchId = awaited?.kind === 'batch' ? awaited.id : null;
    const { call } = options;
    const isWaitingCall = call !== undefined && awaited !== undefined;
    if (isWaitingCall) call.pass();
    const { rings, ended, dueBatchIds } = tools;
    const turnIds = unit.submission.turns.map(({ id }) => id);
    attempt.written.push({ turnIds, answer, awaitedBatchId, rings, ended, dueBatchIds });
    const result = await unit.commit(
      {
        operation: {
          projectId: opening.projectId,
          idempotencyKey: opening.key,
          primitive,
          requestHash,
          response: answer,
          awaitedTurnId,
          awaitedBatchId,
          doorJobId: awaited === undefined ? null : (options.doorJobId ?? null),
          isOutside: isRefusedByArchive(primitive, options),
        },
        ...fenceOf(options, parent, unit.submission.turns.length > 0),
        ...(isWaitingCall
          ? {
              wait: { toolCallId: call.toolCallId, batchId: awaitedBatchId, deadlineMs: awaited.deadlineMs },
            }
          : {}),
      },
      afterWrite({
        primitive,
        projectId: opening.projectId,
        erasures,
        answer,
        call: isWaitingCall ? undefined : call,
      }),
    );
    if (result.outcome === 'refused') {
      // Someone else used the key meanwhile, the calling turn is gone, or what `because` says.
      const now = await open(runtime, options, request);
      const again = replay(now, key, requestHash);
      if (again !== undefined && options.within !== undefined) return again;
      if (again !== undefined)
        return announceFirst(runtime, again, { key, tries: earlier, ring: options.call?.ring });
      checkProject(now, primitive, options);
      checkParent(now, options);
      if (result.because === 'full') throw runIsFull(opening);
      if (result.because === 'answered' && call !== undefined)
        throw answeredMeanwhile(primitive, call.toolCallId);
      throw new KernelError('turn_ended', { details: { turn_id: parent?.turnId } });
    }
    const tell = (turns: readonly SubmittedTurn[]): void => {
      announce(runtime, turns, call?.ring);
      runtime.ring(rings);
      for (const ends of ended) announceEnds(runtime, ends);
      runtime.finishSoon(dueBatchIds);
    };
    if (options.within === undefined) tell(result.turns);
    else
      afterTransaction(options.within.db, () =>
        // Turns of a transaction that was rolled back are in no row.
        runtime.afterwards(async () => {
          const turns = await findSubmitted(runtime.pool, turnIds);
          if (turnIds.length === 0 || turns.length > 0) tell(turns);
        }),
      );
    return {
      projectId: opening.projectId,
      key: opening.key,
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
  readonly call: DoorOptions['call'];
}): ((tx: Tx) => Promise<void>) | undefined {
  const isRepeating = repeatsCards(primitive, answer);
  if (call === undefined && !isRepeating) return undefined;
  return async (tx) => {
    await call?.settle(tx, answer);
    if (isRepeating && (await holdErasures(tx, projectId)) !== erasures) throw new WordsErased();
  };
}

/** Cards were erased after the handler had begun to read: it reads again, and erasures wait meanwhile. */
class WordsErased extends KernelError {
  constructor() {
    super('conflict', {
      message: 'Cards of this project were erased while the answer was read.',
      next: 'Try again.',
      // As a serialization failure, it is tried again.
      cause: Object.assign(new Error('cards were erased meanwhile'), { code: '40001' }),
    });
  }
}

/** A run whose account does not limit its turns has a ceiling all the same: they are counted where they are written. */
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
 * A call is fenced by its turn's epoch. From outside a turn is filed under one that has not ended, whoever holds it; a turn that is
 * started by an end, under the turn that has ended. Where new
 * turns come, the run is locked first: a cancel of the tree then sees them, or they see the cancel.
 */
function fenceOf(
  { call, wokenBy }: DoorOptions,
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

/** The answer under the same key that was committed while a handler ran. */
class FirstAnswer {
  constructor(readonly accepted: Accepted) {}
}

async function firstAnswer(
  runtime: RuntimeCore,
  refused: {
    readonly options: SubmitOptions & DoorOptions;
    readonly request: Begun['request'];
    readonly requestHash: string;
    readonly error: unknown;
    readonly isAgain: boolean;
  },
): Promise<Accepted | undefined> {
  const { options, request, requestHash, error, isAgain } = refused;
  // Only an earlier try of this submission can have used a generated key. Errors other than refusals say nothing about
  // the rows.
  if ((request.key.startsWith('auto:') && !isAgain) || !(error instanceof KernelError) || isTransient(error))
    return undefined;
  return replay(await open(runtime, options, request), request.key, requestHash);
}

/** What a try of a submission writes, and announces after its commit. */
interface Written extends Pick<Primitive, 'rings' | 'ended' | 'dueBatchIds'> {
  readonly turnIds: readonly TurnId[];
  readonly answer: JsonValue;
  readonly awaitedBatchId: Accepted['awaitedBatchId'];
}

/**
 * Whether the answer under a key is that of this try. New turns prove it, and so do new ids in the answer. Where the answer has no
 * new ids, another submission under the same key at the same moment has done the same.
 */
const isAnswerOf = (known: Accepted, { turnIds, answer, awaitedBatchId }: Written): boolean =>
  turnIds.length === 0 &&
  awaitedBatchId === known.awaitedBatchId &&
  canonicalJson(answer) === canonicalJson(known.answer);

/**
 * The answer of a first try that was lost. What that try would have announced is announced. Under a key that the caller chose,
 * the answer may belong to another submission.
 */
async function announceFirst(
  runtime: RuntimeCore,
  known: Accepted,
  first: {
    readonly key: string;
    readonly tries: readonly Written[];
    readonly ring: ((rings: readonly Ring[]) => void) | undefined;
  },
): Promise<Accepted> {
  const { key, tries } = first;
  const turns = await findSubmitted(
    runtime.pool,
    tries.flatMap(({ turnIds }) => turnIds),
  );
  const isOwn = key.startsWith('auto:') || turns.length > 0 || tries.some((one) => isAnswerOf(known, one));
  if (isOwn) {
    announce(runtime, turns, first.ring);
    const rung = tries.flatMap(({ rings }) => rings.map(({ turnId }) => turnId));
    runtime.ring(await findRings(runtime.pool, rung));
    await announceTries(
      runtime,
      tries.flatMap(({ ended }) => ended),
    );
    runtime.finishSoon(tries.flatMap(({ dueBatchIds }) => dueBatchIds));
  }
  return { ...known, isReplay: !isOwn };
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
