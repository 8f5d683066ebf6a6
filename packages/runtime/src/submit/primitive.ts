/** What a handler is given: it looks up, packs, and gathers the rows of what it makes. */
import {
  agentIdIn,
  agentNamesOf,
  type BatchId,
  CARD_TYPES,
  checkDelegation,
  checkDuration,
  checkReuse,
  checkWholeNumber,
  KernelError,
  MAX_CARD_BYTES,
  maskSecrets,
  meant,
  type Ring,
  type RunId,
  readsAsReference,
  sanitizeJson,
  type TurnId,
  tryParseId,
} from '@boxcar/kernel';
import {
  byGivenName,
  findAgent,
  findAgents,
  findProfiles,
  findProfileVersion,
  findReachable,
  type Queryable,
  type Tx,
  takeAgentName,
} from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import { type Accepted, DEFAULT_WAIT_SECONDS } from '../core/index.js';
import type { EndedTurns } from '../end/index.js';
import { endSubtrees } from '../end/index.js';
import type { CallerContext, HandlerTools, SubmitTurnRequest } from '../handler/index.js';
import { deliverableContent } from '../lib/index.js';
import { HandoverPacker } from '../pack/index.js';
import { openTape } from '../tape/index.js';
import { joinTurns } from './joins.js';
import { type Gathering, NewTurns } from './new-turns.js';
import { checkText } from './opening.js';
import { withinPrimitive } from './within-primitive.js';

const DEFAULT_MAX_FAN_OUT = 1_000;
/** Profiles that a misspelt name is compared with, and that are listed when none is near. */
const MAX_SUGGESTED = 1_000;
const MAX_OFFERED = 30;

/** What the answer of a primitive is the end of. */
type Awaited =
  | { readonly kind: 'turn'; readonly id: TurnId; readonly deadlineMs: number }
  | { readonly kind: 'batch'; readonly id: BatchId; readonly deadlineMs: number };

/** Its functions are fields, so that a handler can take them apart. */
export class Primitive implements HandlerTools {
  readonly #gathering: Gathering;
  readonly #turns: NewTurns;
  readonly #maxCardBytes: number | undefined;
  /** The handler is the kernel's own. */
  readonly #isOwn: boolean;
  /** Of batches whose turns are all of one run. */
  readonly #batchRuns = new Map<BatchId, RunId>();
  readonly ctx: CallerContext;
  readonly signal: AbortSignal;
  readonly packer: HandoverPacker;
  awaited: Awaited | undefined;
  /** Batches that are due as they are made: all members have ended. */
  readonly dueBatchIds: BatchId[] = [];
  ending: Accepted['ending'] = null;
  readonly rings: Ring[] = [];
  /** Turns that this primitive ends once it commits. */
  readonly ended: EndedTurns[] = [];

  constructor(
    runtime: Pick<RuntimeCore, 'limits' | 'strategies'> & Gathering['runtime'],
    options: Omit<Gathering, 'runtime'> & { readonly signal: AbortSignal; readonly isOwn: boolean },
  ) {
    const { signal, isOwn, ...gathering } = options;
    const { ctx, unit } = gathering;
    this.signal = signal;
    this.#isOwn = isOwn;
    this.#gathering = { ...gathering, runtime };
    this.#turns = new NewTurns(this.#gathering);
    this.#maxCardBytes = runtime.limits.maxCardBytes;
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

  get #actor() {
    return { projectId: this.ctx.projectId, actorId: this.ctx.source.agentId };
  }

  /** The run of a turn or batch that this primitive makes. Undefined for a batch of turns of several runs. */
  runOf(id: TurnId | BatchId): RunId | undefined {
    return this.#turns.made.get(id as TurnId)?.runId ?? this.#batchRuns.get(id as BatchId);
  }

  get db(): Queryable {
    return this.#gathering.unit.db;
  }

  get tx(): Tx {
    return this.#gathering.unit.tx;
  }

  readonly tape: HandlerTools['tape'] = (target) => {
    const { projectId, source } = this.ctx;
    return openTape(withinPrimitive(this, this.#maxCardBytes), target, {
      projectId,
      as: source.agentId,
      create: false,
    });
  };

  readonly findProfile: HandlerTools['findProfile'] = async (name, version) => {
    const profile =
      version === undefined
        ? (this.#gathering.opening.profiles.get(name) ??
          (await findProfiles(this.db, this.ctx.projectId, [name])).get(name))
        : await findProfileVersion(this.db, this.ctx.projectId, { name, version });
    if (profile === undefined) {
      const offered = await this.#offerProfiles(name);
      throw new KernelError('not_found', {
        message: `No profile '${name}'${version === undefined ? '' : ` version ${version}`} in this project${offered}`,
        details: {
          profile_name: name,
          offered,
          ...(version === undefined ? {} : { profile_version: version }),
          project_id: this.ctx.projectId,
        },
      });
    }
    this.#turns.noteProfile(profile);
    return profile;
  };

  /** The end of a sentence about a profile that there is not: what was probably meant, or what there is for this caller. */
  async #offerProfiles(name: string): Promise<string> {
    const { source, projectId } = this.ctx;
    const policy = source.isOperator ? { target_profiles: null, target_tags: [] } : source.policy;
    const found = await findReachable(this.db, projectId, {
      policy,
      limit: MAX_SUGGESTED,
      areNamesEnough: true,
    });
    const names = found.map((profile) => profile.name);
    const near = meant(name, names);
    if (near !== '' || names.length === 0 || names.length > MAX_OFFERED) return near || '.';
    return `. There are ${names.join(', ')}.`;
  }

  readonly findAgent: HandlerTools['findAgent'] = async (ref) => {
    const agent = await findAgent(this.db, this.#actor, { id: agentIdIn(ref), name: ref });
    if (agent === undefined)
      throw new KernelError('not_found', {
        message: `No agent '${ref}' in this project.`,
        details: { agent: ref, project_id: this.ctx.projectId },
      });
    this.#turns.noteProfile(agent.profile);
    return agent;
  };

  readonly checkDelegation: HandlerTools['checkDelegation'] = (target) => {
    checkDelegation(this.ctx.source, target);
  };

  readonly checkReuse: HandlerTools['checkReuse'] = (agent) => {
    checkReuse(this.ctx.source, agent);
  };

  readonly findAgents: HandlerTools['findAgents'] = async (refs) => {
    const ids = refs.map(agentIdIn);
    if (refs.length === 0) return [];
    const found = await findAgents(this.db, this.#actor, {
      ids: ids.filter((id) => id !== undefined),
      names: refs,
    });
    for (const agent of found) this.#turns.noteProfile(agent.profile);
    const byId = new Map(found.map((agent) => [agent.agentId, agent]));
    const byName = byGivenName(refs, new Map(found.map((agent) => [agent.name, agent])), agentNamesOf);
    return refs.map((ref, index) => {
      const id = ids[index];
      return (id === undefined ? undefined : byId.get(id)) ?? byName.get(ref);
    });
  };

  readonly createAgent: HandlerTools['createAgent'] = async (request) => {
    const { name } = request;
    checkText(name, 'name', 200);
    if (name !== undefined && tryParseId(name) !== undefined)
      throw new KernelError('bad_request', {
        message: `name: '${name}' reads as an id, so nobody could tell which is meant.`,
        details: { field: 'name' },
      });
    if (name !== undefined && readsAsReference(name))
      throw new KernelError('bad_request', {
        message: `name: '${name}' reads as a reference to an agent or a profile; leave out what is before the colon.`,
        details: { field: 'name' },
      });
    if (name !== undefined) await this.#takeName(name);
    return this.#turns.addAgent(request);
  };

  async #takeName(name: string): Promise<void> {
    const { projectId, source } = this.ctx;
    const taking = await takeAgentName(this.tx, { projectId, makerId: source.agentId }, name);
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

  readonly submitTurn: HandlerTools['submitTurn'] = async (request) => {
    const isAwaited = request.wait ?? false;
    if (isAwaited) this.#checkAwaitsNothing();
    this.#checkRequest(request);
    const deadlineMs = request.deadlineMs ?? (isAwaited ? DEFAULT_WAIT_SECONDS * 1000 : null);
    // From outside the budget of the only root is that of its run.
    const { budget, ...bare } = request;
    const isRoot = this.ctx.parent === undefined;
    const [turn] = await this.#turns.add([isRoot ? bare : request], {
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

  /** Handlers are outside code, so their requests are checked here. */
  #checkRequest({ target, access, deadlineMs, priority }: SubmitTurnRequest): void {
    if (deadlineMs !== undefined) checkDuration(deadlineMs, 'deadlineMs');
    if (priority !== undefined) checkWholeNumber(priority, 'priority', { min: -100, max: 100 });
    const { name, tags } = target.kind === 'new' ? target.profile : target.agent.profile;
    if (access !== 'trusted') {
      this.checkDelegation({ profileName: name, tags });
      if (target.kind === 'reuse') this.checkReuse(target.agent);
    }
  }

  readonly checkFanOut: HandlerTools['checkFanOut'] = (turns) => {
    const maxFanOut = this.#gathering.opening.limits.max_fan_out ?? DEFAULT_MAX_FAN_OUT;
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
    for (const request of requests) this.#checkRequest(request);
    if (options.runBudget !== undefined && this.ctx.parent !== undefined)
      throw new KernelError('bad_request', {
        message: 'arguments.budget: limits a run, and this one has begun; limit the tasks instead.',
        details: { field: 'arguments.budget' },
      });
    return this.#turns.add(requests, {
      isAwaited: false,
      deadlineMs: null,
      runBudget: options.runBudget,
    });
  };

  readonly joinTurns: HandlerTools['joinTurns'] = async (turnIds, request = {}) => {
    const wait = request.wait ?? true;
    if (wait) this.#checkAwaitsNothing();
    if (request.deadlineMs !== undefined) checkDuration(request.deadlineMs, 'deadlineMs');
    if (request.minSuccess !== undefined)
      checkWholeNumber(request.minSuccess, 'minSuccess', { min: 1, max: turnIds.length });
    const { batchId, deadlineMs, isDue, runIds } = await joinTurns(this.#gathering, {
      turns: this.#turns,
      turnIds,
      request: { ...request, wait },
    });
    const [runId, ...others] = runIds;
    if (runId !== undefined && others.length === 0) this.#batchRuns.set(batchId, runId);
    if (isDue) this.dueBatchIds.push(batchId);
    if (wait)
      this.awaited = { kind: 'batch', id: batchId, deadlineMs: deadlineMs ?? DEFAULT_WAIT_SECONDS * 1000 };
    return { batchId, turnIds };
  };

  #checkAwaitsNothing(): void {
    if (this.awaited !== undefined)
      throw new KernelError('bad_request', {
        message: 'A primitive can wait for one turn or batch only.',
      });
  }

  readonly endSubtrees: HandlerTools['endSubtrees'] = async (request) => {
    const { call } = this.#gathering;
    const ended = await endSubtrees(this.tx, {
      ...request,
      ...(call === undefined ? {} : { alsoLock: [call.turnId] }),
    });
    this.ended.push(ended);
    return ended.endedTurnIds;
  };

  get unended(): HandlerTools['unended'] {
    return this.ended.flatMap(({ unended }) => unended);
  }

  readonly ring: HandlerTools['ring'] = (rings) => void this.rings.push(...rings);

  readonly endTurn: HandlerTools['endTurn'] = (deliverable) => {
    if (this.#gathering.call === undefined) {
      throw new KernelError('bad_request', {
        message: `${this.ctx.primitive} ends the turn that calls it; it cannot be submitted from outside.`,
        details: { primitive: this.ctx.primitive },
      });
    }
    // Handlers are outside code, as models and tools are.
    const { value: clean, isChanged } = sanitizeJson(deliverable);
    // The result of `submit_result` is the model's own text, which is not masked.
    const value = this.#isOwn ? clean : maskSecrets(clean);
    const sizeBytes = Buffer.byteLength(JSON.stringify(deliverableContent(value)));
    const limitBytes = this.#maxCardBytes ?? MAX_CARD_BYTES;
    if (sizeBytes > limitBytes)
      throw new KernelError('payload_too_large', {
        message: `endTurn: the deliverable has ${sizeBytes} bytes; the limit is ${limitBytes}.`,
        details: { type: CARD_TYPES.deliverable, sizeBytes, limitBytes },
      });
    this.ending = { deliverable: value, isSanitized: isChanged || value !== clean };
  };
}
