/** The tools of a handler: they look up, pack, and add their results to the draft. */
import {
  type BudgetInput,
  CARD_TYPES,
  checkDelegation,
  checkDuration,
  checkReuse,
  checkWholeNumber,
  KernelError,
  MAX_CARD_BYTES,
  maskSecrets,
  readsAsReference,
  sanitizeJson,
  spellingsOf,
  type TurnId,
  tryParseId,
} from '@boxcar/kernel';
import { type AgentRow, type Queryable, type Tx, takeAgentName } from '@boxcar/store';
import type pg from 'pg';
import { DEFAULT_WAIT_SECONDS } from '../core/index.js';
import { endSubtrees } from '../end/index.js';
import type {
  BatchRef,
  CallerContext,
  HandlerTools,
  JoinRequest,
  KernelTools,
  NewAgentRequest,
  SubmitTurnRequest,
  TurnRef,
} from '../handler/index.js';
import { deliverableContent } from '../lib/index.js';
import { openTape } from '../tape/index.js';
import { checkText } from './check-text.js';
import type { SubmissionDraft } from './draft.js';
import { DraftPacker } from './draft-packer.js';
import { makeBatch } from './joins.js';
import { Lookups } from './lookups.js';
import { makeAgent, makeTurns, type TurnWait } from './new-turns.js';
import type { PendingCalls } from './pending-calls.js';
import type { TryContext } from './try-context.js';
import { withinPrimitive } from './within-primitive.js';

const DEFAULT_MAX_FAN_OUT = 1_000;

/**
 * A statement that the handler does not await must still end before the handler's answer is written, and its failure fails the
 * primitive.
 */
const watched = <T extends Queryable>(on: T, calls: PendingCalls): T =>
  ({ query: (config: pg.QueryConfig) => calls.run(() => on.query(config)) }) as T;

/** Its functions are fields, so that a handler can destructure them. */
export class HandlerToolbox implements KernelTools {
  readonly #of: TryContext;
  readonly #draft: SubmissionDraft;
  readonly #calls: PendingCalls;
  readonly #lookups: Lookups;
  /** True while a turn or batch is awaited, or is being made to be awaited. */
  #isWaiting = false;
  readonly #takenNames = new Set<string>();
  readonly db: Queryable;
  readonly tx: Tx;
  readonly ctx: CallerContext;
  readonly signal: AbortSignal;
  readonly packer: HandlerTools['packer'];
  readonly findProfile: HandlerTools['findProfile'];
  readonly findAgent: HandlerTools['findAgent'];
  readonly findAgents: HandlerTools['findAgents'];
  readonly checkDelegation: HandlerTools['checkDelegation'];
  readonly checkReuse: HandlerTools['checkReuse'];

  constructor(of: TryContext, draft: SubmissionDraft, calls: PendingCalls) {
    const { limits, strategies } = of.runtime;
    this.#of = of;
    this.#draft = draft;
    this.#calls = calls;
    this.#lookups = new Lookups(of);
    this.db = of.isOwn ? of.unit.db : watched(of.unit.db, calls);
    this.tx = of.isOwn ? of.unit.tx : watched(of.unit.tx, calls);
    this.ctx = of.ctx;
    this.signal = of.signal;
    this.packer = new DraftPacker(draft, calls, { db: of.unit.db, limits, strategies });
    this.findProfile = this.#lookups.findProfile;
    this.findAgent = this.#lookups.findAgent;
    this.findAgents = this.#lookups.findAgents;
    this.checkDelegation = this.#lookups.checkDelegation;
    this.checkReuse = this.#lookups.checkReuse;
  }

  readonly tape: HandlerTools['tape'] = (target) => {
    const { projectId, source } = this.ctx;
    return openTape(withinPrimitive(this, this.#of.runtime.limits.maxCardBytes), target, {
      projectId,
      as: source.agentId,
      create: false,
    });
  };

  readonly createAgent: HandlerTools['createAgent'] = (request) =>
    this.#calls.run(() => this.#createAgent(request));

  async #createAgent(request: NewAgentRequest): Promise<AgentRow> {
    const { name } = request;
    checkText(name, 'name', 200);
    if (name !== undefined && tryParseId(name) !== undefined)
      throw new KernelError('bad_request', {
        message: `name: '${name}' looks like an id, so it would be ambiguous.`,
        details: { field: 'name' },
      });
    if (name !== undefined && readsAsReference(name))
      throw new KernelError('bad_request', {
        message: `name: '${name}' looks like a reference to an agent or a profile; leave out the part before the colon.`,
        details: { field: 'name' },
      });
    if (name !== undefined) await this.#takeName(name);
    const agent = makeAgent(request, this.ctx.source);
    this.#draft.addAgent(agent, request.derivedFrom);
    return agent;
  }

  async #takeName(name: string): Promise<void> {
    const { projectId, source } = this.ctx;
    // When two agents of one name are made concurrently, neither has a row yet.
    const isTakenHere = spellingsOf(name).some((spelling) => this.#takenNames.has(spelling));
    if (!isTakenHere) this.#takenNames.add(name);
    const taking = isTakenHere
      ? 'taken'
      : await takeAgentName(this.tx, { projectId, makerId: source.agentId }, name);
    if (taking !== 'free' && !isTakenHere) this.#takenNames.delete(name);
    if (taking === 'taken')
      throw new KernelError('agent_exists', {
        message: `An agent '${name}' exists already in this project.`,
        details: { agent: name, project_id: projectId },
      });
    if (taking === 'profile')
      throw new KernelError('bad_request', {
        message: `name: '${name}' is the name of a profile, which only the operator gives to an agent.`,
        details: { field: 'name', agent: name, project_id: projectId },
      });
  }

  readonly submitTurn: HandlerTools['submitTurn'] = (request) =>
    this.#calls.run(() => this.#waitingOnce(request.wait ?? false, () => this.#submitTurn(request)));

  async #submitTurn(request: SubmitTurnRequest): Promise<TurnRef> {
    const isAwaited = request.wait ?? false;
    this.#checkRequest(request);
    const deadlineMs = request.deadlineMs ?? (isAwaited ? DEFAULT_WAIT_SECONDS * 1000 : null);
    // For a call from outside, the budget of the only root is the budget of its run.
    const { budget, ...bare } = request;
    const isRoot = this.ctx.parent === undefined;
    const [turn] = await this.#addTurns([isRoot ? bare : request], {
      isAwaited,
      deadlineMs,
      runBudget: isRoot ? budget : undefined,
    });
    if (turn === undefined) throw new KernelError('internal_error', { message: 'One turn gave none.' });
    if (isAwaited)
      this.#draft.await({
        kind: 'turn',
        id: turn.turnId,
        deadlineMs: deadlineMs ?? DEFAULT_WAIT_SECONDS * 1000,
      });
    return turn;
  }

  async #addTurns(requests: readonly SubmitTurnRequest[], wait: TurnWait): Promise<readonly TurnRef[]> {
    const release = this.#draft.holdBack(requests.map(({ contextBoxId }) => contextBoxId));
    try {
      const decided = await makeTurns(this.#of, requests, {
        wait,
        boxTokens: this.#draft.boxTokens(),
        profileIds: this.#lookups.profileIds,
      });
      if (decided.outcome === 'refused') {
        this.#draft.refuse(decided.refusal);
        throw decided.refusal;
      }
      this.#draft.addTurns(decided.made);
      return decided.refs;
    } finally {
      release();
    }
  }

  /** Handlers are outside code, so their requests are checked here. */
  #checkRequest({ target, access, deadlineMs, priority, serves }: SubmitTurnRequest): void {
    const { profile } = target.kind === 'new' ? target : target.agent;
    if (profile.version === 0 && serves === undefined)
      throw new KernelError('bad_request', {
        message: `${this.ctx.primitive}: agents that serve handoffs get their tasks by handoff alone.`,
        details: { target_profile: profile.name },
      });
    if (deadlineMs !== undefined) checkDuration(deadlineMs, 'deadlineMs');
    if (priority !== undefined) checkWholeNumber(priority, 'priority', { min: -100, max: 100 });
    const { name, tags } = profile;
    if (access !== 'trusted') {
      checkDelegation(this.ctx.source, { profileName: name, tags });
      if (target.kind === 'reuse') checkReuse(this.ctx.source, target.agent);
    }
  }

  readonly checkFanOut: HandlerTools['checkFanOut'] = (turns) => {
    const maxFanOut = this.#of.caller.limits.max_fan_out ?? DEFAULT_MAX_FAN_OUT;
    if (turns <= maxFanOut) return;
    throw new KernelError('fan_out_exceeded', {
      message: `arguments.tasks: ${turns} turns at once; the limit is ${maxFanOut}.`,
      details: { field: 'arguments.tasks', turns, max_fan_out: maxFanOut },
    });
  };

  readonly submitTurns: HandlerTools['submitTurns'] = (requests, options) =>
    this.#calls.run(() => this.#submitTurns(requests, options));

  async #submitTurns(
    requests: readonly SubmitTurnRequest[],
    options: { readonly runBudget?: BudgetInput | undefined } = {},
  ): Promise<readonly TurnRef[]> {
    if (requests.length === 0) return [];
    if (requests.some((request) => request.wait === true))
      throw new KernelError('bad_request', {
        message: 'submitTurns: join the turns instead of waiting for one.',
      });
    this.checkFanOut(requests.length);
    for (const request of requests) this.#checkRequest(request);
    if (options.runBudget !== undefined && this.ctx.parent !== undefined)
      throw new KernelError('bad_request', {
        message: 'arguments.budget: limits a run, and this one has begun; limit the tasks instead.',
        details: { field: 'arguments.budget' },
      });
    return this.#addTurns(requests, {
      isAwaited: false,
      deadlineMs: null,
      runBudget: options.runBudget,
    });
  }

  readonly joinTurns: HandlerTools['joinTurns'] = (turnIds, request) =>
    this.#calls.run(() => this.#waitingOnce(request?.wait ?? true, () => this.#joinTurns(turnIds, request)));

  async #joinTurns(turnIds: readonly TurnId[], request: JoinRequest = {}): Promise<BatchRef> {
    const wait = request.wait ?? true;
    if (request.deadlineMs !== undefined) checkDuration(request.deadlineMs, 'deadlineMs');
    if (request.minSuccess !== undefined)
      checkWholeNumber(request.minSuccess, 'minSuccess', { min: 1, max: turnIds.length });
    const { deadlineMs, ...made } = await makeBatch(this.#of, {
      turnIds,
      madeOf: (id) => this.#draft.madeTurn(id),
      request: { ...request, wait },
    });
    this.#draft.addBatch(made);
    const batchId = made.batch.id;
    if (wait)
      this.#draft.await({
        kind: 'batch',
        id: batchId,
        deadlineMs: deadlineMs ?? DEFAULT_WAIT_SECONDS * 1000,
      });
    return { batchId, turnIds };
  }

  /** Handlers may begin two waits concurrently: the second is refused at once, unless the first has failed. */
  async #waitingOnce<T>(isAwaited: boolean, make: () => Promise<T>): Promise<T> {
    if (!isAwaited) return make();
    if (this.#isWaiting)
      throw new KernelError('bad_request', {
        message: 'A primitive can wait for one turn or batch only.',
      });
    this.#isWaiting = true;
    try {
      return await make();
    } catch (error) {
      this.#isWaiting = false;
      throw error;
    }
  }

  readonly endSubtrees: HandlerTools['endSubtrees'] = (request) =>
    this.#calls.run(async () => {
      const { call } = this.#of;
      const ended = await endSubtrees(this.tx, {
        ...request,
        ...(call === undefined ? {} : { alsoLock: [call.turnId] }),
      });
      this.#draft.addEnded(ended);
      return ended.endedTurnIds;
    });

  get unended(): HandlerTools['unended'] {
    return this.#draft.ended.flatMap(({ unended }) => unended);
  }

  get toolCallId(): KernelTools['toolCallId'] {
    return this.#of.call?.toolCallId;
  }

  readonly addHandoff: KernelTools['addHandoff'] = (handoff) => {
    this.#calls.checkOpen();
    this.#draft.addHandoff(handoff);
  };

  readonly noteHead: KernelTools['noteHead'] = (handoffIds, sessionHead) => {
    this.#calls.checkOpen();
    this.#draft.noteHead(handoffIds, sessionHead);
  };

  readonly waitElsewhere: KernelTools['waitElsewhere'] = (deadlineMs) => {
    this.#calls.checkOpen();
    if (this.#of.call !== undefined) this.#draft.await({ kind: 'elsewhere', deadlineMs });
  };

  readonly logLater: KernelTools['logLater'] = (event, fields) => {
    this.#calls.checkOpen();
    this.#draft.addLine({ event, fields });
  };

  readonly ring: HandlerTools['ring'] = (rings) => {
    this.#calls.checkOpen();
    this.#draft.addRings(rings);
  };

  readonly endTurn: HandlerTools['endTurn'] = (deliverable) => {
    this.#calls.checkOpen();
    if (this.#of.call === undefined) {
      throw new KernelError('bad_request', {
        message: `${this.ctx.primitive} ends the turn that calls it; it cannot be submitted from outside.`,
        details: { primitive: this.ctx.primitive },
      });
    }
    // Handlers are outside code, like models and tools.
    const { value: clean, isChanged } = sanitizeJson(deliverable);
    // The result of `submit_result` is the model's own text, which is not masked.
    const value = this.#of.isOwn ? clean : maskSecrets(clean);
    const sizeBytes = Buffer.byteLength(JSON.stringify(deliverableContent(value)));
    const limitBytes = this.#of.runtime.limits.maxCardBytes ?? MAX_CARD_BYTES;
    if (sizeBytes > limitBytes)
      throw new KernelError('payload_too_large', {
        message: `endTurn: the deliverable has ${sizeBytes} bytes; the limit is ${limitBytes}.`,
        details: { type: CARD_TYPES.deliverable, sizeBytes, limitBytes },
      });
    this.#draft.endTurn({ deliverable: value, isSanitized: isChanged || value !== clean });
  };
}
