/**
 * `handoff`: the door to every platform, for models, programs and queues alike.
 *
 * P1  What fits the schema leaves a row, whatever becomes of it. A refusal is recorded, and then told to the caller as an error.
 * P2  Platform and target are found before the policy is asked about them, and it is asked about each of their names. What it forbids
 *     under the name that was given is refused even when there is no such target.
 * P3  A native handoff makes its turn in its own transaction. So does every other one: what serves it is a turn that only processes
 *     with its adapter or function take.
 * Rule: docs/handoff.md, "A request".
 */
import {
  argsHash,
  CARD_TYPES,
  DEFAULT_HANDOFF_RETRY,
  DEFAULT_HANDOFF_SECONDS,
  type ErrorBody,
  type HandoffArguments,
  type HandoffId,
  type HandoffMode,
  type HandoffPhase,
  type Handover,
  handoffArgumentsSchema,
  handoffStatusOf,
  handoffToolSchema,
  isJsonObject,
  type JsonObject,
  type JsonValue,
  KernelError,
  MAX_HANDOFF_KEY,
  normalizePlatform,
  parseId,
  toErrorBody,
} from '@boxcar/kernel';
import {
  findCached,
  findHandoff,
  findHandoffPlace,
  findKeyedHandoff,
  type HandoffPlace,
  lockHandoffKey,
  type NewHandoffEvent,
} from '@boxcar/store';
import { type CallGateOptions, CHAIN_TARGET, type RuntimeCore } from '../core/index.js';
import type { Handler, KernelTools, SubmitTurnRequest } from '../handler/index.js';
import { newId } from '../lib/index.js';
import { agentTarget, platformTarget, RUNNER_TARGET } from './agents.js';
import { type TaskOrigin, withConversationAgent } from './conversation-agent.js';
import { decidePolicy, type PolicyDecision } from './decide-policy.js';
import type { HandoffRules } from './handoff-rules.js';
import { findNative, type NativeTarget } from './native-target.js';
import type { HandoffParts } from './parts.js';
import { requestTicket, type TicketRequest } from './request-ticket.js';
import { QUEUE_ROOM_MS, turnOf } from './serving-turn.js';
import { findWantedEnds, type WantedEnds } from './wanted-ends.js';

/** In whose place a request is made, and where in a chain. */
export interface MadeAs {
  readonly mode: HandoffMode;
  readonly hop: number | null;
  readonly compensates: HandoffId | null;
  /** Of a chain and its hops: who has begun it. Default: the caller. */
  readonly sourceAgent?: string | undefined;
}

const ORDINARY: MadeAs = { mode: 'handoff', hop: null, compensates: null };

/** A request with its defaults. */
export interface Asked extends MadeAs {
  readonly handoffId: HandoffId;
  readonly sourceAgent: string;
  readonly input: HandoffArguments;
  readonly key: string | undefined;
  readonly hash: string;
}

/** Where a handoff goes. */
interface Route {
  readonly platform: string;
  /** As rows and policies have it. */
  readonly targetAgent: string;
  /** Null: workers of the target's profile. */
  readonly workerTarget: string | null;
  readonly native: NativeTarget | undefined;
}

export const featureDisabled = (): KernelError =>
  new KernelError('feature_disabled', {
    message: 'Handoff feature is disabled',
    next: '',
    details: { variable: 'BOXCAR_HANDOFF_ENABLED' },
  });

/** What can be said of the primitive without a runtime. */
export const handoffForm = {
  description: 'Delegate work to another agent or system',
  input: handoffArgumentsSchema,
} as const;

export function handoffPrimitive(
  runtime: RuntimeCore,
  parts: HandoffParts,
  rules: () => HandoffRules,
  origin?: TaskOrigin,
): Handler<HandoffArguments> {
  return {
    ...handoffForm,
    parameters: handoffToolSchema('agdd').parameters as JsonValue,
    isOff: () => !rules().isEnabled,
    failureOf,
    profileNames: ({ target_agent, platform }) =>
      platform === undefined || platform.toLowerCase() === 'agdd' ? [target_agent] : [],
    handle: async (input, tools) => {
      const { isEnabled, gate } = rules();
      if (!isEnabled) throw featureDisabled();
      return new HandoffRequest(runtime, { parts, gate, tools: tools as KernelTools, origin }).make(input);
    },
  };
}

/** A refusal that has a row is an answer with an error. */
export const failureOf = (answer: JsonValue): ErrorBody | undefined =>
  isJsonObject(answer) && isJsonObject(answer.error) ? (answer.error as unknown as ErrorBody) : undefined;

const badSource = (name: string): KernelError =>
  new KernelError('bad_request', {
    message: `arguments.source_agent: ${name}.`,
    details: { field: 'arguments.source_agent' },
  });

/** Who asks: an agent in its own name, from outside whoever is named. A function asks in the name of the operator. */
function sourceOf(input: HandoffArguments, { ctx }: KernelTools): string {
  const { source, parent } = ctx;
  const given = input.source_agent;
  if (parent === undefined || source.isOperator) {
    if (given === undefined) throw badSource('is required from outside');
    return given;
  }
  if (given !== undefined && given !== source.name && given !== source.agentId)
    throw badSource(`is the calling agent, ${source.name}; leave it out`);
  return source.name;
}

/** @throws KernelError `bad_request` for a key in the context that is longer than one of the arguments may be. */
function keyOf({ idempotency_key, context }: HandoffArguments): string | undefined {
  if (idempotency_key !== undefined) return idempotency_key;
  const key = context?.idempotency_key;
  if (typeof key !== 'string' || key.trim() === '') return undefined;
  if (key.length > MAX_HANDOFF_KEY)
    throw new KernelError('bad_request', {
      message: `arguments.context.idempotency_key: has ${key.length} characters; a key has at most ${MAX_HANDOFF_KEY}.`,
      details: { field: 'arguments.context.idempotency_key' },
    });
  return key;
}

/** One request, in one try of its submission. */
export class HandoffRequest {
  readonly #runtime: RuntimeCore;
  readonly #parts: HandoffParts;
  readonly #gate: CallGateOptions;
  readonly #tools: KernelTools;
  readonly #origin: TaskOrigin | undefined;

  constructor(
    runtime: RuntimeCore,
    of: {
      readonly parts: HandoffParts;
      readonly gate: CallGateOptions;
      readonly tools: KernelTools;
      readonly origin?: TaskOrigin | undefined;
    },
  ) {
    this.#origin = of.origin;
    this.#runtime = runtime;
    this.#parts = of.parts;
    this.#gate = of.gate;
    this.#tools = of.tools;
  }

  async make(input: HandoffArguments, as: MadeAs = ORDINARY): Promise<JsonValue> {
    const sourceAgent = as.sourceAgent ?? sourceOf(input, this.#tools);
    const { wait: _wait, idempotency_key: _key, platform, ...rest } = input;
    // The same platform under another of its names is the same request.
    const first = platform && (normalizePlatform(platform) ?? platform.toLowerCase());
    const asked: Asked = {
      ...as,
      handoffId: newId<'handoff'>(),
      sourceAgent,
      input,
      // What a hop has in its context is for its target: each hop is a handoff of its own.
      key: as.hop === null ? keyOf(input) : input.idempotency_key,
      hash: argsHash({
        ...rest,
        ...(first === undefined ? {} : { platform: first }),
        source_agent: sourceAgent,
        ...(this.#origin === undefined ? {} : { conversation: this.#origin.conversation }),
      }),
    };
    const known = await this.#findFirst(asked);
    if (known !== undefined) return known;
    const wanted = await findWantedEnds(this.#runtime, input, this.#tools);
    const place = await this.#findPlace(input);
    const { callbackUrl } = wanted;
    // A policy sees the address that is used.
    const seen = callbackUrl === null ? input : { ...input, callback: { url: callbackUrl } };
    const decided =
      as.mode === 'chain' ? chainOf(input) : await this.#decide({ ...asked, input: seen }, place);
    return this.#write({ asked, place, decided: await this.#fromCache(asked, decided), wanted });
  }

  async #findFirst({ key, hash }: Asked): Promise<JsonValue | undefined> {
    const { db, tx, ctx } = this.#tools;
    if (key === undefined) return undefined;
    // Of two at the same moment the second waits for the first, and finds it then.
    await lockHandoffKey(tx, ctx.projectId, key);
    const first = await findKeyedHandoff(tx, ctx.projectId, key);
    if (first === undefined) return undefined;
    const handoffId = first.handoff_id;
    if (first.request_hash !== hash)
      throw new KernelError('idempotency_conflict', {
        message: `Key '${key}' was used with other arguments.`,
        details: { idempotency_key: key, handoff_id: handoffId },
      });
    const handoff = await findHandoff(db, { handoffId, projectId: ctx.projectId });
    if (handoff === undefined) return undefined;
    const { status, result, error, ticket_id, turn_id } = handoff;
    return {
      handoff_id: handoffId,
      status,
      ...(turn_id === null ? {} : { turn_id }),
      ...(status === 'completed' ? { result } : {}),
      ...(status === 'pending' && ticket_id !== null ? { ticket_id } : {}),
      ...(error === null
        ? {}
        : { error: { ...error, details: { ...error.details, handoff_id: handoffId } } as JsonObject }),
    };
  }

  async #findPlace({ parent_handoff_id }: HandoffArguments): Promise<HandoffPlace | undefined> {
    const { db, ctx } = this.#tools;
    if (parent_handoff_id !== undefined && ctx.parent !== undefined)
      throw new KernelError('bad_request', {
        message: 'arguments.parent_handoff_id: follows from the turn that calls; leave it out.',
        details: { field: 'arguments.parent_handoff_id' },
      });
    const handoffId =
      parent_handoff_id === undefined
        ? undefined
        : parseId<'handoff'>(parent_handoff_id, 'arguments.parent_handoff_id');
    const chain = ctx.parent?.chain.map(({ turn_id }) => turn_id) ?? [];
    if (handoffId === undefined && chain.length === 0) return undefined;
    const place = await findHandoffPlace(db, { projectId: ctx.projectId, handoffId, chain });
    if (place === undefined && handoffId !== undefined)
      throw new KernelError('not_found', {
        message: `arguments.parent_handoff_id: no handoff ${handoffId} in this project.`,
        details: { field: 'arguments.parent_handoff_id', handoff_id: handoffId },
      });
    return place;
  }

  /** P2. */
  async #decide(asked: Asked, place: HandoffPlace | undefined): Promise<Decided> {
    const given = asked.input.target_agent;
    let route: Route = { platform: 'agdd', targetAgent: given, workerTarget: null, native: undefined };
    let policy: PolicyDecision | undefined;
    const refused = (phase: 'failed' | 'rejected', error: unknown): Decided => ({
      kind: 'refused',
      phase,
      route,
      policy,
      error: toErrorBody(error),
    });
    try {
      const { platform } = asked.input;
      const found =
        platform === undefined
          ? ((await this.#parts.platformOfTarget(given)) ?? 'agdd')
          : await this.#parts.platformOf(platform);
      route = { ...route, platform: found };
    } catch (error) {
      if (!(error instanceof KernelError)) throw error;
      route = { ...route, platform: asked.input.platform?.toLowerCase() ?? 'agdd' };
      return refused('failed', error);
    }
    policy = await this.#ask(asked, route, [given]);
    if (policy?.level === 'never') return refused('rejected', this.#forbidden(given, policy));
    try {
      route = await this.#findRoute(asked, route);
      checkCycle(asked, route, place);
    } catch (error) {
      if (!(error instanceof KernelError) || !TELLABLE.has(error.code)) throw error;
      return refused('failed', error);
    }
    policy = await this.#ask(asked, route, [given, route.targetAgent, ...(route.native?.names ?? [])]);
    if (policy?.level === 'never') return refused('rejected', this.#forbidden(given, policy));
    if (policy === undefined || policy.level === 'always') return { kind: 'run', route, policy };
    if (this.#gate.approvalMs === undefined)
      return refused(
        'rejected',
        new KernelError('permission_denied', {
          message: `Handoff to ${given} requires approval but approval gate is not configured`,
          next: '',
        }),
      );
    const { evaluator } = this.#gate;
    if (evaluator !== undefined && evaluator !== this.#runtime.gate.evaluator)
      this.#parts.addAsker(policy.policy_version, evaluator);
    return { kind: 'park', route, policy, approvalMs: this.#gate.approvalMs };
  }

  /** What may run, and need not, since there is a result. */
  async #fromCache(asked: Asked, decided: Decided): Promise<Decided> {
    const { cache } = asked.input;
    if (cache === undefined || decided.kind !== 'run') return decided;
    const cached = await findCached(this.#tools.db, {
      projectId: this.#tools.ctx.projectId,
      cacheKey: cacheKeyOf(asked, decided.route),
      seconds: cache.ttl_seconds,
    });
    return cached === undefined ? decided : { ...decided, kind: 'cached', cached };
  }

  #ask(asked: Asked, { platform }: Route, names: readonly string[]): Promise<PolicyDecision | undefined> {
    return decidePolicy(this.#runtime, this.#gate.evaluator, {
      platform,
      sourceAgent: asked.sourceAgent,
      names,
      input: asked.input,
    });
  }

  #forbidden(target: string, { rule_id, policy_version }: PolicyDecision): KernelError {
    return new KernelError('permission_denied', {
      message: `Handoff to ${target} not allowed by policy`,
      next: '',
      details: { rule_id, policy_version },
    });
  }

  async #findRoute(asked: Asked, route: Route): Promise<Route> {
    const given = asked.input.target_agent;
    const { platform } = route;
    if (platform !== 'agdd') {
      await this.#parts.resolveTarget(platform, given);
      return { ...route, workerTarget: platformTarget(platform) };
    }
    if (this.#parts.agents.has(given)) return this.#toFunction(route, agentTarget(given));
    const native = await findNative(this.#runtime, given, this.#tools, { isTrusted: isOfChain(asked) });
    if (native.kind === 'elsewhere') return this.#toFunction(route, agentTarget(given));
    if (native.kind === 'found') {
      const target =
        this.#origin === undefined
          ? native.target
          : await withConversationAgent(this.#tools, native.target, this.#origin.servingAgentId);
      return { ...route, targetAgent: target.name, native: target };
    }
    if (this.#parts.runner !== undefined) return this.#toFunction(route, RUNNER_TARGET);
    throw native.error;
  }

  /** A function is an agent of this installation: the caller's delegation policy must allow its name. */
  #toFunction(route: Route, workerTarget: string): Route {
    this.#tools.checkDelegation({ profileName: route.targetAgent, tags: [] });
    return { ...route, workerTarget };
  }

  async #write(of: {
    readonly asked: Asked;
    readonly place: HandoffPlace | undefined;
    readonly decided: Decided;
    readonly wanted: WantedEnds;
  }): Promise<JsonValue> {
    const { asked, place, decided, wanted } = of;
    const tools = this.#tools;
    const { ctx } = tools;
    const { handoffId, sourceAgent, input } = asked;
    const { route, policy } = decided;
    const packed = await pack(asked, route, tools);
    const isAwaited = tools.toolCallId !== undefined && input.wait !== false;
    const ticket: TicketRequest | undefined =
      decided.kind === 'park'
        ? await requestTicket(
            { tools, approvalMs: decided.approvalMs },
            {
              asked,
              platform: route.platform,
              targetAgent: route.targetAgent,
              callbackUrl: wanted.callbackUrl,
              policy: decided.policy,
              isAwaited,
            },
          )
        : undefined;
    const timeoutMs = Math.ceil((input.timeout ?? DEFAULT_HANDOFF_SECONDS) * 1000);
    const turn =
      decided.kind === 'run'
        ? await tools.submitTurn(
            await turnOf(tools, {
              route,
              contextBoxId: packed.contextBoxId,
              timeoutMs,
              wait: input.wait !== false,
              isTrusted: isOfChain(asked),
            }),
          )
        : undefined;
    if (ticket !== undefined && isAwaited)
      tools.waitElsewhere((decided.kind === 'park' ? decided.approvalMs : 0) + timeoutMs + QUEUE_ROOM_MS);
    const error =
      decided.kind === 'refused'
        ? { ...decided.error, details: { ...decided.error.details, handoff_id: handoffId } }
        : null;
    const cached = decided.kind === 'cached' ? decided.cached : undefined;
    const phase = phaseOf(decided);
    const events = eventsOf(asked, { route, phase, error, ticket, cachedFrom: cached?.handoff_id });
    const { retry = DEFAULT_HANDOFF_RETRY } = input;
    tools.addHandoff({
      id: handoffId,
      projectId: ctx.projectId,
      phase,
      isEnded: error !== null || cached !== undefined,
      sourceAgent,
      sourceAgentId: ctx.source.agentId,
      targetAgent: route.targetAgent,
      platform: route.platform,
      runId: input.run_id ?? null,
      parentTurnId: ctx.parent?.turnId ?? null,
      toolCallId: tools.toolCallId ?? null,
      isAwaited,
      contextBoxId: packed.contextBoxId,
      taskCardId: packed.taskCardId,
      contextCardId: packed.contextCardId,
      payloadCardId: packed.payloadCardId,
      workerTarget: route.workerTarget,
      turnId: turn?.turnId ?? null,
      ticketId: ticket?.id ?? null,
      rootHandoffId: place?.root_handoff_id ?? handoffId,
      parentHandoffId: place?.handoff_id ?? null,
      depth: place === undefined ? 0 : place.depth + 1,
      mode: asked.mode,
      hop: asked.hop,
      compensates: asked.compensates,
      cachedFrom: cached?.handoff_id ?? null,
      cacheKey: input.cache === undefined || cached !== undefined ? null : cacheKeyOf(asked, route),
      cacheSeconds: input.cache?.ttl_seconds ?? null,
      decision: policy === undefined ? null : (policy as unknown as JsonObject),
      error,
      timeoutMs,
      retry: {
        max_attempts: retry.max_attempts,
        base_ms: retry.base_seconds * 1000,
        max_ms: retry.max_seconds * 1000,
      },
      idempotencyKey: asked.key ?? null,
      requestHash: asked.hash,
      callbackUrl: wanted.callbackUrl,
      toldAgentId: wanted.toldAgentId,
      notifies: wanted.toldAgentId === null ? null : true,
      publicAgent: this.#origin?.publicAgent ?? null,
      conversation: this.#origin?.conversation ?? null,
      messageId: this.#origin?.messageId ?? null,
      servingAgentId: this.#origin?.servingAgentId ?? null,
      events,
    });
    for (const { type, data } of events) tools.logLater(type, { handoff_id: handoffId, ...data });
    return {
      handoff_id: handoffId,
      status: handoffStatusOf(phase),
      context_box_id: packed.contextBoxId,
      ...(turn === undefined
        ? {}
        : { turn_id: turn.turnId, agent_id: turn.agentId, output_box_id: turn.outputBoxId }),
      ...(cached === undefined
        ? {}
        : { result: cached.result, cached: true, cached_from: cached.handoff_id }),
      ...(route.workerTarget === null || error !== null || cached !== undefined
        ? {}
        : { served_by: route.workerTarget }),
      ...(ticket === undefined ? {} : { ticket_id: ticket.id }),
      ...(error === null ? {} : { error: error as unknown as JsonObject }),
    };
  }
}

type Decided =
  | { readonly kind: 'run'; readonly route: Route; readonly policy: PolicyDecision | undefined }
  | {
      readonly kind: 'cached';
      readonly route: Route;
      readonly policy: PolicyDecision | undefined;
      readonly cached: NonNullable<Awaited<ReturnType<typeof findCached>>>;
    }
  | {
      readonly kind: 'park';
      readonly route: Route;
      readonly policy: PolicyDecision;
      readonly approvalMs: number;
    }
  | {
      readonly kind: 'refused';
      readonly phase: 'failed' | 'rejected';
      readonly route: Route;
      readonly policy: PolicyDecision | undefined;
      readonly error: ErrorBody;
    };

/** The phase with which a row begins. */
function phaseOf(decided: Decided): HandoffPhase {
  switch (decided.kind) {
    case 'run':
      return 'pending';
    case 'cached':
      return 'completed';
    case 'park':
      return 'awaiting_approval';
    case 'refused':
      return decided.phase;
    default:
      return decided satisfies never;
  }
}

/** What makes handoffs identical: where they go, and what is asked. */
function cacheKeyOf({ input }: Asked, { platform, targetAgent, workerTarget, native }: Route): string {
  const { idempotency_key: _key, ...context } = input.context ?? {};
  return argsHash({
    platform,
    target: [native?.agent?.agentId ?? null, native?.profile?.profileId ?? null, targetAgent, workerTarget],
    task: input.task,
    context,
    payload: input.payload ?? null,
    boxes: [input.context_box_id ?? []].flat(),
  });
}

/** A chain does nothing by itself: the policy is asked about its hops. */
const chainOf = ({ target_agent }: HandoffArguments): Decided => ({
  kind: 'run',
  route: { platform: 'agdd', targetAgent: target_agent, workerTarget: CHAIN_TARGET, native: undefined },
  policy: undefined,
});

const isOfChain = ({ hop }: Asked): boolean => hop !== null;

/** Failures of a request that its row tells. Others are the caller's or the server's. */
const TELLABLE: ReadonlySet<string> = new Set([
  'bad_request',
  'not_found',
  'delegation_denied',
  'delegation_cycle',
  'bad_config',
]);

/** @throws KernelError `delegation_cycle` for a target that stands in the chain already. */
function checkCycle(
  { sourceAgent }: Asked,
  { platform, targetAgent, workerTarget }: Route,
  place: HandoffPlace | undefined,
): void {
  const chain = place?.chain ?? [];
  const first = chain.at(-1);
  const isSource =
    platform === 'agdd' &&
    workerTarget === null &&
    (targetAgent === sourceAgent || targetAgent === first?.source_agent);
  const isTarget = chain.some((one) => one.platform === platform && one.target_agent === targetAgent);
  if (!isSource && !isTarget) return;
  const words = [
    first?.source_agent ?? sourceAgent,
    ...chain.map((one) => one.target_agent).reverse(),
    targetAgent,
  ];
  throw new KernelError('delegation_cycle', {
    message: `arguments.target_agent: '${targetAgent}' stands in the chain of handoffs already: ${words.join(' → ')}.`,
    next: 'Hand off to another agent.',
    details: { field: 'arguments.target_agent', chain: words },
  });
}

interface PackedRequest {
  readonly contextBoxId: SubmitTurnRequest['contextBoxId'];
  readonly taskCardId: NonNullable<
    Awaited<ReturnType<KernelTools['packer']['packResolved']>>[number]
  >['attachedCardIds'][number];
  readonly contextCardId: PackedRequest['taskCardId'] | null;
  readonly payloadCardId: PackedRequest['taskCardId'] | null;
}

/** Task, context and payload as cards, in this order, then the boxes that are named. */
async function pack(
  { input, hop }: Asked,
  { workerTarget }: Route,
  tools: KernelTools,
): Promise<PackedRequest> {
  const { ctx } = tools;
  const { task, context, payload } = input;
  const hasContext = context !== undefined && Object.keys(context).length > 0;
  const hasPayload = payload !== undefined && payload !== null;
  const isWrapped = typeof payload !== 'object';
  const rule = (arg_key: string, as_card_type: string, card_metadata: JsonObject = {}) => ({
    arg_key,
    as_card_type,
    card_metadata,
  });
  const handover: Handover = {
    context_packing_config: {
      pack_arguments: [
        rule('task', CARD_TYPES.instruction),
        ...(hasContext ? [rule('context', 'handoff_context')] : []),
        ...(hasPayload ? [rule('payload', 'handoff_payload', isWrapped ? { wrapped: true } : {})] : []),
      ],
      inherit_context: {
        include_boxes_from_args: ['context_box_id'],
        // A platform outside could not follow the pointer, and the turn of a function or of a chain has nothing to point at.
        include_parent: workerTarget === null && tools.toolCallId !== undefined && hop === null,
      },
    },
  };
  const boxIds = input.context_box_id;
  const [packed] = await tools.packer.packResolved([
    {
      projectId: ctx.projectId,
      actorId: ctx.source.agentId,
      toolSuffix: ctx.primitive,
      arguments: {
        task,
        ...(hasContext ? { context } : {}),
        ...(hasPayload ? { payload: isWrapped ? { payload } : payload } : {}),
        ...(boxIds === undefined ? {} : { context_box_id: [boxIds].flat() }),
      },
      handover,
      access: 'actor',
    },
  ]);
  const ids = packed?.attachedCardIds ?? [];
  const [taskCardId] = ids;
  if (packed === undefined || taskCardId === undefined)
    throw new KernelError('internal_error', { message: 'Packing a handoff gave no card.' });
  return {
    contextBoxId: packed.contextBoxId,
    taskCardId,
    contextCardId: (hasContext ? ids[1] : undefined) ?? null,
    payloadCardId: (hasPayload ? ids[hasContext ? 2 : 1] : undefined) ?? null,
  };
}

function eventsOf(
  { sourceAgent }: Asked,
  of: {
    readonly route: Route;
    readonly phase: string;
    readonly error: ErrorBody | null;
    readonly ticket: TicketRequest | undefined;
    readonly cachedFrom: HandoffId | undefined;
  },
): readonly NewHandoffEvent[] {
  const { route, phase, error, ticket, cachedFrom } = of;
  return [
    {
      type: 'handoff.requested',
      data: { source_agent: sourceAgent, target_agent: route.targetAgent, platform: route.platform },
    },
    ...(ticket === undefined
      ? []
      : [
          {
            type: 'approval.required',
            data: { ticket_id: ticket.id, timeout_minutes: ticket.timeoutMs / 60_000 },
          },
        ]),
    ...(cachedFrom === undefined
      ? []
      : [
          { type: 'handoff.cached', data: { cached_from: cachedFrom } },
          { type: 'handoff.completed', data: { status: phase, phase } },
        ]),
    ...(error === null ? [] : [{ type: `handoff.${phase}`, data: { status: phase, code: error.code } }]),
  ];
}
