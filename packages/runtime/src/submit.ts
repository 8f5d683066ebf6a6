/**
 * The one way in: every door parses its input and calls `accept`.
 *
 * One read (caller, policy, first answer under the key), the handler's reads, one write. After the commit the doorbell rings.
 */
import {
  type AgentId,
  canonicalJson,
  checkDelegation,
  isFinal,
  isJsonObject,
  type JsonValue,
  KernelError,
  type ProjectId,
  parseId,
  parseJsonValue,
  sanitizeJson,
  sha256,
  type ToolCallId,
  type TurnId,
  toBadRequest,
  tryParseId,
  type WorkerId,
} from '@boxcar/kernel';
import {
  type AgentRow,
  type ChainLink,
  findAgent,
  findProfiles,
  findProfileVersion,
  hasContextBox,
  lockAgent,
  type Opening,
  type Queryable,
  retryTransient,
  ringsOf,
  type SubmittedTurn,
  type Tx,
  takeAgentName,
} from '@boxcar/store';
import type { CallerContext, Handler, HandlerTools, NewAgentRequest, TurnRef } from './handler.js';
import { HandoverPacker, newId } from './packer.js';
import type { RuntimeCore } from './runtime.js';
import { UnitOfWork } from './unit-of-work.js';
import { unlessAborted } from './unless-aborted.js';

const DEFAULT_WAIT_SECONDS = 3600;
const DEFAULT_MAX_DEPTH = 20;

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
    /** Fires at the call's deadline and when its turn is lost: what the handler has gathered comes to nothing. */
    readonly signal: AbortSignal;
    /** Records the answer in the same transaction, when the primitive does not wait. */
    readonly settle: (tx: Tx, answer: JsonValue) => Promise<void>;
    /** Gives the call the deadline of what it waits for, in the same transaction. */
    readonly extend: (tx: Tx, timeoutMs: number) => Promise<void>;
  };
  readonly doorJobId?: string;
}

export interface Accepted {
  readonly projectId: ProjectId;
  /** The answer, or the receipt while a turn is awaited. */
  readonly answer: JsonValue;
  /** The turn whose end is the final answer. */
  readonly awaitedTurnId: TurnId | null;
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

/** @throws KernelError `not_found` for project, source agent or calling turn. */
async function open(
  runtime: RuntimeCore,
  options: SubmitOptions & DoorOptions,
  { key, profileNames }: { readonly key: string; readonly profileNames: readonly string[] },
): Promise<Opening & { source: NonNullable<Opening['source']> }> {
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

/** Its functions are fields, so that a handler can take them apart. */
class Primitive implements HandlerTools {
  readonly #opening: Opening;
  readonly #unit: UnitOfWork;
  readonly #call: DoorOptions['call'];
  readonly ctx: CallerContext;
  readonly packer: HandoverPacker;
  awaited: { readonly turn: TurnRef; readonly deadlineMs: number } | undefined;
  ending: { readonly deliverable: JsonValue } | undefined;

  constructor(
    runtime: RuntimeCore,
    opening: Opening,
    ctx: CallerContext,
    unit: UnitOfWork,
    call: DoorOptions['call'],
  ) {
    this.#opening = opening;
    this.#unit = unit;
    this.#call = call;
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
    return profile;
  };

  readonly findAgent: HandlerTools['findAgent'] = async (ref) => {
    const agent = await findAgent(this.db, this.ctx.projectId, { id: tryParseId<'agent'>(ref), name: ref });
    if (agent === undefined)
      throw new KernelError('not_found', {
        message: `No agent '${ref}' in this project.`,
        details: { agent: ref, project_id: this.ctx.projectId },
      });
    return agent;
  };

  readonly checkDelegation: HandlerTools['checkDelegation'] = (target) => {
    checkDelegation(this.ctx.source, target);
  };

  /** A waiting delegation to an agent that waits for the caller would never end. */
  #checkCycle(agentId: AgentId): void {
    const { parent } = this.ctx;
    if (parent === undefined) return;
    const links: ChainLink[] = [];
    for (const link of parent.chain) {
      links.push(link);
      if (!link.is_awaited) break;
    }
    if (links.every((link) => link.agent_id !== agentId)) return;
    const chain = links.map((link) => ({
      turn_id: link.turn_id,
      agent_id: link.agent_id,
      agent: link.agent_name,
    }));
    throw new KernelError('delegation_cycle', {
      message: `Agent ${agentId} already waits for this turn: ${[...chain.map((link) => link.agent), chain.find((link) => link.agent_id === agentId)?.agent].join(' ← ')}.`,
      details: { agent_id: agentId, chain },
    });
  }

  /** Gathers the rows of an agent: its tape and itself. */
  #addAgent({ profile, name, derivedFrom }: NewAgentRequest): AgentRow {
    const { submission } = this.#unit;
    const { projectId, source } = this.ctx;
    const agentId = newId<'agent'>();
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
    const { target } = request;
    const { parent, projectId } = this.ctx;
    const profile = target.kind === 'new' ? target.profile : target.agent.profile;
    const maxDepth = this.#opening.limits.max_depth ?? DEFAULT_MAX_DEPTH;
    const depth = parent === undefined ? 0 : parent.depth + 1;
    if (depth > maxDepth) {
      throw new KernelError('depth_exceeded', {
        message: `The turn would stand at depth ${depth}; the limit is ${maxDepth}.`,
        details: { depth, max_depth: maxDepth, turn_id: parent?.turnId },
      });
    }
    const isAwaited = request.wait ?? false;
    if (isAwaited && this.awaited !== undefined) {
      throw new KernelError('bad_request', { message: 'A primitive can wait for one turn only.' });
    }
    const deadlineMs = request.deadlineMs ?? (isAwaited ? DEFAULT_WAIT_SECONDS * 1000 : null);
    const agent = target.kind === 'new' ? this.#addAgent(target) : target.agent;
    const turn: TurnRef = {
      turnId: newId<'turn'>(),
      agentId: agent.agentId,
      contextBoxId: request.contextBoxId,
      outputBoxId: agent.tapeBoxId,
    };
    const { submission } = this.#unit;
    await this.#own(turn);
    if (target.kind === 'reuse') {
      if (isAwaited) this.#checkCycle(turn.agentId);
      // Whether the agent is free is decided under its lock: an end and a submit can then not miss each other.
      await lockAgent(this.tx, turn.agentId);
    }
    const runId = parent?.runId ?? newId<'run'>();
    if (parent === undefined)
      submission.runs.push({
        id: runId,
        projectId,
        rootTurnId: turn.turnId,
        traceparent: this.ctx.traceparent,
      });
    submission.turns.push({
      id: turn.turnId,
      projectId,
      runId,
      agentId: turn.agentId,
      profileId: profile.profileId,
      parentTurnId: parent?.turnId ?? null,
      parentToolCallId: this.#call?.toolCallId ?? null,
      isAwaited: isAwaited && this.#call !== undefined,
      depth,
      primitive: this.ctx.primitive,
      channelId: this.ctx.channelId,
      maxSteps: profile.maxSteps,
      contextBoxId: turn.contextBoxId,
      outputBoxId: turn.outputBoxId,
      workerTarget: profile.workerTarget,
      deadlineMs,
      traceparent: this.ctx.traceparent,
      isReuse: target.kind === 'reuse',
    });
    if (isAwaited) this.awaited = { turn, deadlineMs: deadlineMs ?? DEFAULT_WAIT_SECONDS * 1000 };
    return turn;
  };

  /** The agent holds its turn's context: as owner of a box made here, by a grant for one that was written before. */
  async #own({ contextBoxId, agentId }: TurnRef): Promise<void> {
    const { submission } = this.#unit;
    const { projectId, source } = this.ctx;
    const index = submission.contextBoxes.findIndex((box) => box.id === contextBoxId);
    const box = submission.contextBoxes[index];
    if (box !== undefined) {
      submission.contextBoxes[index] = { ...box, ownerAgentId: agentId };
      return;
    }
    if (!(await hasContextBox(this.db, contextBoxId, projectId))) {
      throw new KernelError('not_found', {
        message: `submitTurn: no context box ${contextBoxId} in this project.`,
        details: { context_box_id: contextBoxId, project_id: projectId },
      });
    }
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
    isReplay: true,
    ending: null,
  };
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
  // Deadlocks and lost connections repeat the whole of it. Should the lost answer have been a commit, the key finds it.
  return retryTransient(() => acceptOnce(runtime, { primitive, handler, input, plain, key, options }));
}

interface Attempt {
  readonly primitive: string;
  readonly handler: Handler;
  readonly input: unknown;
  readonly plain: JsonValue;
  readonly key: string;
  readonly options: SubmitOptions & DoorOptions;
}

async function acceptOnce(
  runtime: RuntimeCore,
  { primitive, handler, input, plain, key, options }: Attempt,
): Promise<Accepted> {
  const request = { key, profileNames: handler.profileNames?.(input) ?? [] };
  const opening = await open(runtime, options, request);
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
      : unlessAborted(handling, options.call.signal));
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
        isReplay: false,
        ending: tools.ending,
      };
    }
    const awaitedTurnId = tools.awaited?.turn.turnId ?? null;
    const { call } = options;
    const deadlineMs = tools.awaited?.deadlineMs;
    const result = await unit.commit(
      {
        operation: {
          projectId: opening.projectId,
          idempotencyKey: key,
          primitive,
          requestHash,
          response: answer,
          awaitedTurnId,
          doorJobId: awaitedTurnId === null ? null : (options.doorJobId ?? null),
        },
        ...(call === undefined
          ? {}
          : { fence: { turnId: call.turnId, epoch: call.epoch, holderId: call.holderId } }),
      },
      call === undefined
        ? undefined
        : (tx) => (deadlineMs === undefined ? call.settle(tx, answer) : call.extend(tx, deadlineMs)),
    );
    if (result.outcome === 'refused') {
      // Someone else used the key meanwhile, or the calling turn is gone.
      const now = await open(runtime, options, request);
      const again = replay(now, key, requestHash);
      if (again !== undefined) return again;
      checkParent(now);
      throw new KernelError('turn_ended', { details: { turn_id: call?.turnId } });
    }
    announce(runtime, result.turns);
    return { projectId: opening.projectId, answer, awaitedTurnId, isReplay: false, ending: null };
  } finally {
    await unit.abandon();
  }
}

/** After the commit: rings for what was dispatched, and a look at the queue for what was not. Never fails, never waits. */
function announce(runtime: RuntimeCore, turns: readonly SubmittedTurn[]): void {
  runtime.ring(ringsOf(turns));
  for (const target of new Set(
    turns.filter((turn) => turn.status === 'queued').map((turn) => turn.worker_target),
  ))
    runtime.promoteSoon(target);
}
