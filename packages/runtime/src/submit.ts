/**
 * The one way in: every door parses its input and calls `accept`.
 *
 * One read (caller, policy, first answer under the key), the handler's reads, one write. After the commit the doorbell rings.
 */
import {
  type AgentId,
  type BatchId,
  type BudgetInput,
  budgetExceeded,
  canonicalJson,
  checkDelegation,
  DEFAULT_RUN_TURNS,
  isFinal,
  isJsonObject,
  type JsonValue,
  KernelError,
  type ProjectId,
  parseId,
  parseJsonValue,
  type Ring,
  type RunId,
  sanitizeJson,
  sha256,
  type ToolCallId,
  type TurnId,
  type TurnStatus,
  toBadRequest,
  tryParseId,
  type WorkerId,
} from '@boxcar/kernel';
import {
  type AgentRow,
  addBatch,
  type ChainLink,
  type Fence,
  findAgent,
  findAgents,
  findContextBoxes,
  findJoinable,
  findProfiles,
  findProfileVersion,
  findTape,
  findWaitCycle,
  hasProfile,
  isTransient,
  lockAgents,
  lockMembers,
  type NewBatch,
  type Opening,
  type ProfileRow,
  type Queryable,
  retryTransient,
  ringsOf,
  type SubmittedTurn,
  type Tx,
  takeAgentName,
} from '@boxcar/store';
import { announceEnds, type EndedTurns, endSubtrees } from './end-subtrees.js';
import type {
  BatchRef,
  CallerContext,
  Handler,
  HandlerTools,
  NewAgentRequest,
  SubmitTurnRequest,
  TurnRef,
} from './handler.js';
import { HandoverPacker, newId } from './packer.js';
import type { RuntimeCore } from './runtime.js';
import { reserveSpawn } from './spawn-budget.js';
import { withinPrimitive } from './tape/connection.js';
import { openTape } from './tape/open-tape.js';
import { UnitOfWork } from './unit-of-work.js';
import { unlessAborted } from './unless-aborted.js';
import { answeredMeanwhile } from './worker/call-result.js';

const DEFAULT_WAIT_SECONDS = 3600;
const DEFAULT_MAX_DEPTH = 20;
const DEFAULT_MAX_FAN_OUT = 1_000;

/** A submission as a door hands it over. */
export interface SubmitOptions {
  /** Id or name; default `default`. */
  readonly projectId?: string | undefined;
  /** Id or name of the agent in whose name it comes; default: the project's operator. */
  readonly sourceAgentId?: string | undefined;
  /** The second submission under a key changes nothing and returns the first answer. */
  readonly idempotencyKey?: string | undefined;
  /** A turn under which new turns are filed: its run, its depth, its lineage. It must not have ended. */
  readonly parentTurnId?: string | undefined;
  readonly channelId?: string | undefined;
  readonly traceparent?: string | undefined;
}

/** How the kernel's own doors call: a turn's tool call, or a job that waits for the answer. */
export interface DoorOptions {
  /** The tool call of a running turn that asks. Its result commits with the effect. */
  readonly call?: {
    readonly turnId: TurnId;
    readonly epoch: number;
    readonly holderId: WorkerId;
    readonly toolCallId: ToolCallId;
    /** By `begin`, beside the commit of the call. */
    readonly begun?: Begun | undefined;
    /** Fires at the call's deadline and when its turn is lost: what the handler has gathered comes to nothing. */
    readonly signal: AbortSignal;
    /** Records the answer in the same transaction, when the primitive does not wait. */
    readonly settle: (tx: Tx, answer: JsonValue) => Promise<void>;
    /** From here on the call's deadline no longer ends it. @throws when it has. */
    readonly pass: () => void;
    /** Rings the turns that it has dispatched. */
    readonly ring: (rings: readonly Ring[]) => void;
  };
  readonly doorJobId?: string;
}

export interface Accepted {
  readonly projectId: ProjectId;
  /** The answer, or the receipt while a turn is awaited. */
  readonly answer: JsonValue;
  /** The turn whose end is the final answer. */
  readonly awaitedTurnId: TurnId | null;
  /** The batch whose end is the final answer. */
  readonly awaitedBatchId: BatchId | null;
  /** True when this key had been accepted before. */
  readonly isReplay: boolean;
  /** What the calling turn ends with, when the primitive ends it. Nothing was written then. */
  readonly ending: { readonly deliverable: JsonValue } | null;
}

function parseInput<I>(
  primitive: string,
  handler: Handler<I>,
  args: unknown,
): { input: I; plain: JsonValue } {
  const plain = parseJsonValue(args, 'arguments');
  if (!isJsonObject(plain))
    throw new KernelError('bad_request', {
      message: `${primitive}: arguments must be an object.`,
      details: { primitive },
    });
  const parsed = handler.input.safeParse(plain);
  if (!parsed.success) throw toBadRequest(parsed.error, 'arguments');
  return { input: parsed.data, plain };
}

const checkText = (value: string | undefined, field: string, maxLength: number): void => {
  if (value === undefined) return;
  parseJsonValue(value, field);
  if (value.trim() === '' || value.length > maxLength) {
    throw new KernelError('bad_request', {
      message: `${field}: must have 1 to ${maxLength} characters.`,
      details: { field },
    });
  }
};

type Opened = Opening & { readonly source: NonNullable<Opening['source']> };

/** @throws KernelError `not_found` for project, source agent or calling turn. */
async function open(
  runtime: RuntimeCore,
  options: Caller,
  { key, profileNames }: { readonly key: string; readonly profileNames: readonly string[] },
): Promise<Opened> {
  checkText(options.projectId, 'project_id', 200);
  checkText(options.sourceAgentId, 'source_agent_id', 200);
  checkText(options.channelId, 'channel_id', 200);
  checkText(options.traceparent, 'traceparent', 200);
  const project = options.projectId ?? 'default';
  const opening = await runtime.open({
    project: tryParseId(project) ?? project,
    sourceAgentId:
      options.sourceAgentId === undefined ? undefined : tryParseId<'agent'>(options.sourceAgentId),
    sourceAgentName: options.sourceAgentId,
    idempotencyKey: key,
    profileNames,
    parentTurnId:
      options.call?.turnId ??
      (options.parentTurnId === undefined
        ? undefined
        : parseId<'turn'>(options.parentTurnId, 'parent_turn_id')),
  });
  if (opening === undefined)
    throw new KernelError('not_found', {
      message: `No project '${project}'.`,
      details: { project_id: project },
    });
  const { source } = opening;
  if (source === undefined) {
    throw new KernelError('not_found', {
      message: `No agent '${options.sourceAgentId ?? ''}' in project '${project}'.`,
      details: { source_agent_id: options.sourceAgentId, project_id: opening.projectId },
    });
  }
  const parentTurnId = options.call?.turnId ?? options.parentTurnId;
  if (parentTurnId !== undefined && opening.parent === undefined) {
    throw new KernelError('not_found', {
      message: `No turn '${parentTurnId}' in project '${project}'.`,
      details: { parent_turn_id: parentTurnId, project_id: opening.projectId },
    });
  }
  return { ...opening, source };
}

/**
 * Not asked of a replay, which changes nothing.
 *
 * @throws KernelError `turn_ended` for a calling turn that is gone, `bad_request` for filing under another agent's turn.
 */
function checkParent({ parent, source }: Opening): void {
  if (parent === undefined) return;
  if (source?.isOperator !== true && source?.agentId !== parent.agentId) {
    throw new KernelError('bad_request', {
      message: `parent_turn_id: turn ${parent.turnId} is not one of agent ${source?.agentId ?? ''}.`,
      details: { parent_turn_id: parent.turnId, source_agent_id: source?.agentId },
    });
  }
  if (!isFinal(parent.status)) return;
  throw new KernelError('turn_ended', {
    message: `Turn ${parent.turnId} has ended as ${parent.status}.`,
    details: { turn_id: parent.turnId },
  });
}

/** What the answer of a primitive is the end of. */
type Awaited =
  | { readonly kind: 'turn'; readonly id: TurnId; readonly deadlineMs: number }
  | { readonly kind: 'batch'; readonly id: BatchId; readonly deadlineMs: number };

/** A turn that this primitive makes. */
interface MadeTurn {
  readonly agentId: AgentId;
  readonly isReuse: boolean;
  readonly argument: string | undefined;
  readonly runId: RunId;
}

type Counters = Pick<NewBatch, 'remaining' | 'succeeded' | 'failed'>;

/** Its functions are fields, so that a handler can take them apart. */
class Primitive implements HandlerTools {
  readonly #opening: Opening;
  readonly #unit: UnitOfWork;
  readonly #call: DoorOptions['call'];
  /** Of profiles that were read from the rows. */
  readonly #profileIds: Set<string>;
  readonly ctx: CallerContext;
  readonly packer: HandoverPacker;
  awaited: Awaited | undefined;
  /** Batches that are due as they are made: all members have ended. */
  readonly dueBatchIds: BatchId[] = [];
  readonly #made = new Map<TurnId, MadeTurn>();
  ending: { readonly deliverable: JsonValue } | undefined;
  readonly #prices: RuntimeCore['prices'];
  readonly #format: number;
  readonly rings: Ring[] = [];
  /** Turns that this primitive ends once it commits. */
  readonly ended: EndedTurns[] = [];

  constructor(
    runtime: RuntimeCore,
    opening: Opening,
    ctx: CallerContext,
    unit: UnitOfWork,
    call: DoorOptions['call'],
  ) {
    this.#prices = runtime.prices;
    this.#format = runtime.builds.build.turnFormat;
    this.#opening = opening;
    this.#unit = unit;
    this.#call = call;
    this.#profileIds = new Set([...opening.profiles.values()].map((profile) => profile.profileId));
    this.ctx = ctx;
    this.packer = new HandoverPacker({
      db: unit.db,
      limits: runtime.limits,
      strategies: runtime.strategies,
      write: async (submission) => {
        unit.submission.cards.push(...submission.cards);
        unit.submission.contextBoxes.push(...submission.contextBoxes);
        unit.submission.grants.push(...submission.grants);
      },
    });
  }

  get db(): Queryable {
    return this.#unit.db;
  }

  get tx(): Tx {
    return this.#unit.tx;
  }

  readonly tape: HandlerTools['tape'] = (target) => {
    const { projectId, source } = this.ctx;
    return openTape(withinPrimitive(this), target, { projectId, as: source.agentId, create: false });
  };

  readonly findProfile: HandlerTools['findProfile'] = async (name, version) => {
    const profile =
      version === undefined
        ? (this.#opening.profiles.get(name) ??
          (await findProfiles(this.db, this.ctx.projectId, [name])).get(name))
        : await findProfileVersion(this.db, this.ctx.projectId, { name, version });
    if (profile === undefined)
      throw new KernelError('not_found', {
        message: `No profile '${name}'${version === undefined ? '' : ` version ${version}`} in this project.`,
        details: {
          profile_name: name,
          ...(version === undefined ? {} : { profile_version: version }),
          project_id: this.ctx.projectId,
        },
      });
    this.#profileIds.add(profile.profileId);
    return profile;
  };

  readonly findAgent: HandlerTools['findAgent'] = async (ref) => {
    const agent = await findAgent(this.db, this.ctx.projectId, { id: tryParseId<'agent'>(ref), name: ref });
    if (agent === undefined)
      throw new KernelError('not_found', {
        message: `No agent '${ref}' in this project.`,
        details: { agent: ref, project_id: this.ctx.projectId },
      });
    this.#profileIds.add(agent.profile.profileId);
    return agent;
  };

  readonly checkDelegation: HandlerTools['checkDelegation'] = (target) => {
    checkDelegation(this.ctx.source, target);
  };

  readonly findAgents: HandlerTools['findAgents'] = async (refs) => {
    const ids = refs.map((ref) => tryParseId<'agent'>(ref));
    if (refs.length === 0) return [];
    const found = await findAgents(this.db, this.ctx.projectId, {
      ids: ids.filter((id) => id !== undefined),
      names: refs,
    });
    for (const agent of found) this.#profileIds.add(agent.profile.profileId);
    const byId = new Map(found.map((agent) => [agent.agentId, agent]));
    const byName = new Map(found.map((agent) => [agent.name, agent]));
    return refs.map((ref, index) => {
      const id = ids[index];
      return (id === undefined ? undefined : byId.get(id)) ?? byName.get(ref);
    });
  };

  /** The turns on the way to the root that wait for this one, itself first. */
  get #waitingChain(): readonly ChainLink[] {
    const chain = this.ctx.parent?.chain ?? [];
    const end = chain.findIndex((link) => !link.is_awaited);
    return end === -1 ? chain : chain.slice(0, end + 1);
  }

  /** A waiting delegation to an agent that waits for the caller would never end. */
  #checkCycle(agentId: AgentId, argument?: string): void {
    const links = this.#waitingChain;
    if (links.every((link) => link.agent_id !== agentId)) return;
    const chain = links.map((link) => ({
      turn_id: link.turn_id,
      agent_id: link.agent_id,
      agent: link.agent_name,
    }));
    throw new KernelError('delegation_cycle', {
      message: `${argument === undefined ? '' : `arguments.${argument}: `}Agent ${agentId} already waits for this turn: ${[...chain.map((link) => link.agent), chain.find((link) => link.agent_id === agentId)?.agent].join(' ← ')}.`,
      details: {
        agent_id: agentId,
        chain,
        ...(argument === undefined ? {} : { field: `arguments.${argument}` }),
      },
    });
  }

  /** Gathers the rows of an agent: its tape and itself. */
  #addAgent({ profile, name, derivedFrom, agentId = newId<'agent'>() }: NewAgentRequest): AgentRow {
    const { submission } = this.#unit;
    const { projectId, source } = this.ctx;
    const tapeBoxId = newId<'box'>();
    const agentName = name ?? `${profile.name}-${agentId.slice(-12)}`;
    submission.tapes.push({ id: tapeBoxId, projectId, ownerAgentId: agentId });
    submission.agents.push({
      id: agentId,
      projectId,
      name: agentName,
      profileId: profile.profileId,
      ownerAgentId: source.agentId,
      derivedFrom: derivedFrom ?? null,
      tapeBoxId,
    });
    return { agentId, name: agentName, tapeBoxId, profile };
  }

  readonly createAgent: HandlerTools['createAgent'] = async (request) => {
    const { name } = request;
    checkText(name, 'name', 200);
    if (name !== undefined && tryParseId(name) !== undefined)
      throw new KernelError('bad_request', {
        message: `name: '${name}' reads as an id, so nobody could tell which is meant.`,
        details: { field: 'name' },
      });
    if (name !== undefined && !(await takeAgentName(this.tx, this.ctx.projectId, name)))
      throw new KernelError('agent_exists', {
        message: `An agent '${name}' exists already in this project.`,
        details: { agent: name, project_id: this.ctx.projectId },
      });
    return this.#addAgent(request);
  };

  readonly submitTurn: HandlerTools['submitTurn'] = async (request) => {
    const isAwaited = request.wait ?? false;
    if (isAwaited) this.#checkAwaitsNothing();
    const deadlineMs = request.deadlineMs ?? (isAwaited ? DEFAULT_WAIT_SECONDS * 1000 : null);
    // From outside the budget of the only root is that of its run.
    const { budget, ...bare } = request;
    const isRoot = this.ctx.parent === undefined;
    const [turn] = await this.#addTurns([isRoot ? bare : request], {
      isAwaited,
      deadlineMs,
      runBudget: isRoot ? budget : undefined,
    });
    if (turn === undefined) throw new KernelError('internal_error', { message: 'One turn gave none.' });
    if (isAwaited)
      this.awaited = {
        kind: 'turn',
        id: turn.turnId,
        deadlineMs: deadlineMs ?? DEFAULT_WAIT_SECONDS * 1000,
      };
    return turn;
  };

  readonly checkFanOut: HandlerTools['checkFanOut'] = (turns) => {
    const maxFanOut = this.#opening.limits.max_fan_out ?? DEFAULT_MAX_FAN_OUT;
    if (turns <= maxFanOut) return;
    throw new KernelError('fan_out_exceeded', {
      message: `arguments.tasks: ${turns} turns at once; the limit is ${maxFanOut}.`,
      details: { field: 'arguments.tasks', turns, max_fan_out: maxFanOut },
    });
  };

  readonly submitTurns: HandlerTools['submitTurns'] = async (requests, options = {}) => {
    if (requests.length === 0) return [];
    if (requests.some((request) => request.wait === true))
      throw new KernelError('bad_request', {
        message: 'submitTurns: join the turns instead of waiting for one.',
      });
    this.checkFanOut(requests.length);
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
  };

  #checkAwaitsNothing(): void {
    if (this.awaited !== undefined)
      throw new KernelError('bad_request', {
        message: 'A primitive can wait for one turn or batch only.',
      });
  }

  /** Gathers the rows of turns; those of agents that exist are decided under their locks. */
  async #addTurns(
    requests: readonly SubmitTurnRequest[],
    wait: {
      readonly isAwaited: boolean;
      readonly deadlineMs: number | null;
      /** Of a run that begins with them. */
      readonly runBudget: BudgetInput | undefined;
    },
  ): Promise<readonly TurnRef[]> {
    const { parent, projectId } = this.ctx;
    const { submission } = this.#unit;
    const maxDepth = this.#opening.limits.max_depth ?? DEFAULT_MAX_DEPTH;
    const depth = parent === undefined ? 0 : parent.depth + 1;
    if (depth > maxDepth) {
      throw new KernelError('depth_exceeded', {
        message: `The turn would stand at depth ${depth}; the limit is ${maxDepth}.`,
        details: { depth, max_depth: maxDepth, turn_id: parent?.turnId },
      });
    }
    const made = requests.map(({ target, contextBoxId, deadlineMs, argument, priority, budget }) => {
      const agent = target.kind === 'new' ? this.#addAgent(target) : target.agent;
      const profile = target.kind === 'new' ? target.profile : target.agent.profile;
      const turn: TurnRef = {
        turnId: newId<'turn'>(),
        agentId: agent.agentId,
        contextBoxId,
        outputBoxId: agent.tapeBoxId,
      };
      return { turn, profile, isReuse: target.kind === 'reuse', deadlineMs, argument, priority, budget };
    });
    const sizes = new Map(submission.contextBoxes.map((box) => [box.id, box.tokens]));
    await this.#own(made.map(({ turn }) => turn));
    const reused = made.filter(({ isReuse }) => isReuse);
    if (wait.isAwaited) for (const { turn } of reused) this.#checkCycle(turn.agentId);
    for (const profile of new Set(made.map((turn) => turn.profile))) await this.#checkProfile(profile);
    const runId = parent?.runId ?? newId<'run'>();
    const { shares, budgets } = await reserveSpawn(
      {
        projectId,
        parent,
        runBudget: { own: wait.runBudget, defaults: this.#opening.limits.run_budget },
        prices: this.#prices,
        db: this.db,
        tx: () => this.tx,
      },
      made.map(({ turn, profile, budget, argument }) => ({
        turnId: turn.turnId,
        runId,
        profileId: profile.profileId,
        depth,
        contextTokens: sizes.get(turn.contextBoxId) ?? 0,
        budget,
        argument: `${argument?.replace(/target_ref$/, '') ?? ''}budget`,
      })),
    );
    submission.budgets.push(...budgets);
    // Whether an agent is free is decided under its lock: an end and a submit can then not miss each other.
    if (reused.length > 0) {
      const ids = [...new Set(reused.map(({ turn }) => turn.agentId))];
      const tapes = await lockAgents(this.tx, ids, parent?.runId);
      for (const { turn } of reused)
        if (tapes.get(turn.agentId) !== turn.outputBoxId) throw await this.#explainTape(turn);
    }
    const [first] = made;
    if (parent === undefined && first !== undefined)
      submission.runs.push({
        id: runId,
        projectId,
        rootTurnId: first.turn.turnId,
        turnCount: made.length,
        traceparent: this.ctx.traceparent,
      });
    for (const [index, { turn, profile, isReuse, deadlineMs, argument, priority }] of made.entries()) {
      const share = shares[index] ?? { columns: {}, deadlineMs: undefined };
      const ownDeadlineMs = wait.deadlineMs ?? deadlineMs ?? null;
      this.#made.set(turn.turnId, { agentId: turn.agentId, isReuse, argument, runId });
      submission.turns.push({
        id: turn.turnId,
        projectId,
        runId,
        agentId: turn.agentId,
        profileId: profile.profileId,
        parentTurnId: parent?.turnId ?? null,
        parentToolCallId: this.#call?.toolCallId ?? null,
        isAwaited: wait.isAwaited && this.#call !== undefined,
        depth,
        primitive: this.ctx.primitive,
        channelId: this.ctx.channelId,
        maxSteps: profile.maxSteps,
        contextBoxId: turn.contextBoxId,
        outputBoxId: turn.outputBoxId,
        workerTarget: profile.workerTarget,
        deadlineMs:
          share.deadlineMs === undefined
            ? ownDeadlineMs
            : Math.min(share.deadlineMs, ownDeadlineMs ?? share.deadlineMs),
        ...share.columns,
        ...(profile.isCapped || share.columns.budgetId !== undefined ? { isMetered: true } : {}),
        traceparent: this.ctx.traceparent,
        isReuse,
        format: this.#format,
        priority: priority ?? parent?.priority ?? 0,
      });
    }
    return made.map(({ turn }) => turn);
  }

  readonly joinTurns: HandlerTools['joinTurns'] = async (turnIds, request = {}) => {
    const isAwaited = request.wait ?? true;
    if (isAwaited) this.#checkAwaitsNothing();
    const made = turnIds.flatMap((id) => this.#made.get(id) ?? []);
    const isOwn = made.length > 0;
    const isMixed = isOwn && made.length < turnIds.length;
    if (turnIds.length === 0 || isMixed || new Set(turnIds).size < turnIds.length)
      throw new KernelError('bad_request', {
        message:
          'joinTurns: one turn at least, each once, and either all made by this primitive or all earlier.',
      });
    const { parent, projectId, primitive } = this.ctx;
    const deadlineMs = request.deadlineMs ?? (isAwaited ? DEFAULT_WAIT_SECONDS * 1000 : null);
    const isWaitingCall = isAwaited && this.#call !== undefined;
    const batchId = newId<'batch'>();
    if (isOwn && isWaitingCall)
      for (const { agentId, isReuse, argument } of made) if (isReuse) this.#checkCycle(agentId, argument);
    const members = isOwn
      ? this.#addToBatch(turnIds, batchId)
      : await this.#joinEarlier(turnIds, batchId, {
          isWaitingCall,
          argumentOf: request.argumentOf ?? ((index) => `turn_ids.${index}`),
        });
    this.#unit.submission.batches.push({
      id: batchId,
      projectId,
      runId: made[0]?.runId ?? parent?.runId ?? null,
      turnId: this.#call === undefined ? null : (parent?.turnId ?? null),
      toolCallId: isWaitingCall ? (this.#call?.toolCallId ?? null) : null,
      primitive,
      kind: isOwn ? 'fork_join' : 'collect',
      turnIds,
      ...members,
      minSuccess: isOwn ? (request.minSuccess ?? null) : null,
      failFast: isOwn && (request.isFailFast ?? false),
      deadlineMs,
    });
    if (members.remaining === 0) this.dueBatchIds.push(batchId);
    if (isAwaited)
      this.awaited = { kind: 'batch', id: batchId, deadlineMs: deadlineMs ?? DEFAULT_WAIT_SECONDS * 1000 };
    return { batchId, turnIds } satisfies BatchRef;
  };

  #addToBatch(turnIds: readonly TurnId[], batchId: BatchId): Counters {
    const { turns } = this.#unit.submission;
    const ids = new Set(turnIds);
    turns.forEach((turn, index) => {
      if (ids.has(turn.id)) turns[index] = { ...turn, batchIds: [...(turn.batchIds ?? []), batchId] };
    });
    return { remaining: turnIds.length, succeeded: 0, failed: 0 };
  }

  /** Under the turns' locks: what has ended is counted here, what has not will count itself. */
  async #joinEarlier(
    turnIds: readonly TurnId[],
    batchId: BatchId,
    options: { readonly isWaitingCall: boolean; readonly argumentOf: (index: number) => string },
  ): Promise<Counters> {
    const { parent, projectId, source } = this.ctx;
    const found = new Map(
      (await findJoinable(this.db, turnIds, { projectId, actorId: source.agentId })).map((turn) => [
        turn.turn_id,
        turn,
      ]),
    );
    const notFound = (turnId: TurnId, index: number): KernelError => {
      const field = `arguments.${options.argumentOf(index)}`;
      return new KernelError('not_found', {
        message: `${field}: no turn ${turnId} in this project.`,
        details: { field, turn_id: turnId, project_id: projectId },
      });
    };
    turnIds.forEach((turnId, index) => {
      const field = `arguments.${options.argumentOf(index)}`;
      const turn = found.get(turnId);
      if (turn === undefined) throw notFound(turnId, index);
      if (!turn.is_readable)
        throw new KernelError('box_not_authorized', {
          message: `${field}: agent ${source.agentId} may not read what turn ${turnId} delivers.`,
          details: {
            field,
            turn_id: turnId,
            box_id: turn.output_box_id,
            source_agent_id: source.agentId,
          },
        });
    });
    const own = this.#call !== undefined && parent !== undefined ? [parent.turnId] : [];
    const statuses = await lockMembers(this.tx, [...turnIds, ...own]);
    // One that was purged since will never end.
    for (const [index, turnId] of turnIds.entries()) if (!statuses.has(turnId)) throw notFound(turnId, index);
    if (options.isWaitingCall) await this.#checkWaitCycle(turnIds);
    const open = turnIds.filter((id) => !isFinal(statuses.get(id) ?? 'queued'));
    if (open.length > 0) await addBatch(this.tx, open, batchId);
    const count = (isCounted: (status: TurnStatus | undefined) => boolean): number =>
      turnIds.filter((id) => isCounted(statuses.get(id))).length;
    return {
      remaining: open.length,
      succeeded: count((status) => status === 'success'),
      failed: count((status) => status === 'failed' || status === 'timeout' || status === 'canceled'),
    };
  }

  /** Turns that wait for the caller, on whatever way, cannot be waited for. */
  async #checkWaitCycle(turnIds: readonly TurnId[]): Promise<void> {
    const links = this.#waitingChain;
    const cycle = await findWaitCycle(
      this.tx,
      turnIds,
      links.map((link) => link.turn_id),
    );
    if (cycle === undefined) return;
    throw new KernelError('delegation_cycle', {
      message: `Turn ${cycle.turn_id} of agent ${cycle.agent_name} waits for this turn, and one of the turns named here is it or waits for it.`,
      details: {
        turn_id: cycle.turn_id,
        agent_id: cycle.agent_id,
        chain: links.map((link) => ({
          turn_id: link.turn_id,
          agent_id: link.agent_id,
          agent: link.agent_name,
        })),
      },
    });
  }

  /** Why the tape that a turn was to be written to is not its agent's: reset meanwhile, or never. */
  async #explainTape({ agentId, outputBoxId }: TurnRef): Promise<KernelError> {
    const actor = { projectId: this.ctx.projectId, actorId: this.ctx.source.agentId };
    const tape = await findTape(this.tx, { kind: 'box', boxId: outputBoxId }, actor);
    const details = { agent_id: agentId, output_box_id: outputBoxId, project_id: actor.projectId };
    if (tape?.isArchived === true && tape.ownerAgentId === agentId)
      return new KernelError('tape_conflict', {
        message: `The tape of agent ${agentId} was reset meanwhile.`,
        details,
      });
    return new KernelError('not_found', {
      message: `submitTurn: no agent ${agentId} with the tape ${outputBoxId}.`,
      details,
    });
  }

  /** A turn of a profile that does not exist could never be run, and no foreign key would say so. */
  async #checkProfile({ profileId, name }: ProfileRow): Promise<void> {
    if (this.#profileIds.has(profileId)) return;
    if (!(await hasProfile(this.db, profileId, this.ctx.projectId)))
      throw new KernelError('not_found', {
        message: `No profile '${name}' of id ${profileId} in this project.`,
        details: { profile_id: profileId, project_id: this.ctx.projectId },
      });
    this.#profileIds.add(profileId);
  }

  readonly endSubtrees: HandlerTools['endSubtrees'] = async (request) => {
    const ended = await endSubtrees(this.tx, {
      ...request,
      ...(this.#call === undefined ? {} : { alsoLock: [this.#call.turnId] }),
    });
    this.ended.push(ended);
    return ended.endedTurnIds;
  };

  /** The agents hold their turns' contexts: as owners of boxes made here, by a grant for those that were written before. */
  async #own(turns: readonly TurnRef[]): Promise<void> {
    const { submission } = this.#unit;
    const { projectId, source } = this.ctx;
    const indexes = new Map(submission.contextBoxes.map((box, index) => [box.id, index]));
    const written: TurnRef[] = [];
    for (const turn of turns) {
      const index = indexes.get(turn.contextBoxId) ?? -1;
      const box = submission.contextBoxes[index];
      if (box === undefined) written.push(turn);
      else submission.contextBoxes[index] = { ...box, ownerAgentId: turn.agentId };
    }
    if (written.length === 0) return;
    const known = await findContextBoxes(
      this.db,
      written.map((turn) => turn.contextBoxId),
      projectId,
    );
    for (const { contextBoxId, agentId } of written) {
      if (!known.has(contextBoxId))
        throw new KernelError('not_found', {
          message: `submitTurn: no context box ${contextBoxId} in this project.`,
          details: { context_box_id: contextBoxId, project_id: projectId },
        });
      submission.grants.push({
        projectId,
        agentId,
        boxId: contextBoxId,
        mode: 'read',
        uptoPosition: null,
        source: source.agentId,
        expiresAt: null,
      });
    }
  }

  readonly ring: HandlerTools['ring'] = (rings) => void this.rings.push(...rings);

  readonly endTurn: HandlerTools['endTurn'] = (deliverable) => {
    if (this.#call === undefined) {
      throw new KernelError('bad_request', {
        message: `${this.ctx.primitive} ends the turn that calls it; it cannot be submitted from outside.`,
        details: { primitive: this.ctx.primitive },
      });
    }
    this.ending = { deliverable };
  };
}

function replay(opening: Opening, key: string, requestHash: string): Accepted | undefined {
  const { operation } = opening;
  if (operation === undefined) return undefined;
  if (operation.requestHash !== requestHash) {
    throw new KernelError('idempotency_conflict', {
      message: `Key '${key}' was used with other arguments.`,
      details: { idempotency_key: key, project_id: opening.projectId },
    });
  }
  return {
    projectId: opening.projectId,
    answer: operation.response,
    awaitedTurnId: operation.awaitedTurnId,
    awaitedBatchId: operation.awaitedBatchId,
    isReplay: true,
    ending: null,
  };
}

type Caller = SubmitOptions & {
  readonly call?: Pick<NonNullable<DoorOptions['call']>, 'turnId' | 'toolCallId'>;
};

/** A primitive whose arguments are valid, and whose caller is being looked up. */
export interface Begun {
  readonly primitive: string;
  readonly handler: Handler;
  readonly input: unknown;
  readonly plain: JsonValue;
  readonly request: { readonly key: string; readonly profileNames: readonly string[] };
  readonly opening: Promise<Opened>;
}

/**
 * Begins to accept a primitive. For a call it may be done beside the commit of the call: what is looked up is decided again by the
 * write, under the fence of the turn.
 *
 * @throws KernelError for an unknown primitive and arguments that do not fit.
 */
export function begin(runtime: RuntimeCore, primitive: string, args: unknown, options: Caller): Begun {
  const handler = runtime.handlers.get(primitive);
  if (handler === undefined) {
    throw new KernelError('unknown_primitive', {
      message: `No primitive '${String(primitive).slice(0, 80)}'; known are ${[...runtime.handlers.keys()].sort().join(', ')}.`,
      details: { primitive },
    });
  }
  const { input, plain } = parseInput(primitive, handler, args);
  checkText(options.idempotencyKey, 'idempotency_key', 500);
  if (options.idempotencyKey !== undefined && /^(auto|call):/.test(options.idempotencyKey))
    throw new KernelError('bad_request', {
      message: 'idempotency_key: keys that begin with auto: or call: are the kernel’s own.',
      details: { field: 'idempotency_key' },
    });
  const key =
    options.call === undefined
      ? (options.idempotencyKey ?? `auto:${newId()}`)
      : `call:${options.call.toolCallId}`;
  const request = { key, profileNames: handler.profileNames?.(input) ?? [] };
  const opening = open(runtime, options, request);
  // Whoever accepts it hears of the failure; a call that is never committed nobody accepts.
  opening.catch(() => undefined);
  return { primitive, handler, input, plain, request, opening };
}

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
    const tools = new Primitive(runtime, opening, ctx, unit, options.call);
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
