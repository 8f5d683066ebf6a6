/** A step's prompt in a form for people: every message with its cards, every tool, and everything that was left out. */
import {
  type AgentId,
  type CardId,
  describeProviderData,
  type ErrorBody,
  EXPAND_TOOL,
  estimateTokens,
  type JsonValue,
  LIST_PROFILES,
  type Message,
  type MessageOrigin,
  type MessageToolCall,
  type Model,
  type OmissionReason,
  type ProfileId,
  type ProviderDataFacts,
  providerDataBytes,
  type RunId,
  type TurnId,
  type TurnStatus,
  toolNames,
  type ViewNotice,
  type WireNote,
} from '@boxcar/kernel';
import type { OfferedTool } from '@boxcar/store';
import type { TurnRows } from '@boxcar/store/report';
import type { BudgetCut, CardOrigin, CardOrigins } from './card-origin.js';
import type { Finding, RebuiltPrompt } from './rebuild.js';

/** The profile version of turns that adapters and functions serve. */
const HANDOFF_VERSION = 0;

const SERVED_ELSEWHERE: Finding = {
  code: 'served_elsewhere',
  message:
    'An adapter or a function served this turn: it was handed task, context, payload and cards of its context box, not this prompt. See boxcar handoffs show.',
};

export interface ExplainedMessage {
  /** Counts from 1. */
  readonly index: number;
  readonly role: Message['role'];
  readonly content: string;
  readonly tool_calls?: readonly MessageToolCall[];
  readonly tool_call_id?: string;
  readonly name?: string;
  readonly is_error?: boolean;
  /** A description, without values, of the provider data that was attached to the answer and sent with it. */
  readonly provider_data?: ProviderDataFacts;
  /** An estimate. */
  readonly tokens: number;
  readonly source: MessageOrigin['source']['kind'];
  /** The rule of a message that no card holds. */
  readonly notice: ViewNotice | null;
  readonly cards: readonly CardOrigin[];
}

export interface ExplainedTool {
  readonly name: string;
  readonly description: string;
  readonly parameters: JsonValue;
  readonly tokens: number;
  /** The origin of the schema: a registered function, a primitive or the profile itself. */
  readonly source: OfferedTool['source'];
  /**
   * Why it was offered: the profile lists it, a turn must end with it, result fields bind the turn, a compaction left
   * something out, or there are too many profiles to list.
   */
  readonly offered_by: 'tools' | 'must_end_with' | 'result_fields' | 'compaction' | 'profiles';
}

export interface ExplainedOmission {
  /** `budget`: left out when the context was packed. All other reasons: left out when the view was built. */
  readonly reason: OmissionReason | 'budget';
  readonly cut: BudgetCut | null;
  readonly card: CardOrigin;
}

/** The exact prompt of one step with its reasons. Plain data. */
export interface StepExplanation {
  readonly turn_id: TurnId;
  readonly run_id: RunId;
  readonly turn_status: TurnStatus;
  readonly agent: { readonly agent_id: AgentId; readonly name: string };
  readonly profile: { readonly profile_id: ProfileId; readonly name: string; readonly version: number };
  readonly step: number;
  readonly attempt: number;
  readonly opened_at: Date;
  /** Null for an attempt that is in progress, or was lost. */
  readonly committed_at: Date | null;
  readonly model: string | null;
  readonly usage: JsonValue;
  readonly error: ErrorBody | null;
  readonly prompt_hash: string | null;
  readonly rebuilt_hash: string | null;
  /** True when the prompt below is, byte by byte, the prompt that was sent. */
  readonly verified: boolean;
  /** The differences or missing parts, when the prompt is not verified. */
  readonly findings: readonly Finding[];
  /** An estimate for messages and tools. */
  readonly tokens: number;
  readonly messages: readonly ExplainedMessage[];
  /** Null when the rows do not name the tools. */
  readonly tools: readonly ExplainedTool[] | null;
  /** Tools of the profile that the worker had no implementation for, so they were not offered. */
  readonly missing_tools: readonly string[];
  readonly omissions: readonly ExplainedOmission[];
  /**
   * The parts that the model's adapter sends in another form, and its additions. Null when the rows do not name the
   * tools, or when this process does not know the model.
   */
  readonly wire: readonly WireNote[] | null;
}

function tokensOf(message: Message): number {
  const calls = message.role === 'assistant' ? (message.toolCalls ?? []) : [];
  const texts = [message.content, ...calls.flatMap((call) => [call.name, JSON.stringify(call.arguments)])];
  const attached = message.role === 'assistant' ? providerDataBytes(message.provider) : 0;
  return estimateTokens(texts.reduce((bytes, text) => bytes + Buffer.byteLength(text), attached));
}

/** The cards of a message in their order, each with its place in the source of the message. */
export function originsOf(origin: MessageOrigin, origins: CardOrigins): readonly CardOrigin[] {
  if (origin.source.kind === 'profile') return [origins.profile()];
  const byId = new Map<CardId, CardOrigin>();
  for (const card of origins.at(origin.source)) if (!byId.has(card.card_id)) byId.set(card.card_id, card);
  return origin.cardIds.flatMap((id) => byId.get(id) ?? []);
}

function explainMessage(
  message: Message,
  index: number,
  of: { readonly origin: MessageOrigin; readonly origins: CardOrigins },
): ExplainedMessage {
  const { source } = of.origin;
  return {
    index: index + 1,
    role: message.role,
    content: message.content,
    ...(message.role === 'assistant' && message.toolCalls !== undefined
      ? { tool_calls: message.toolCalls }
      : {}),
    ...(message.role === 'assistant' && message.provider !== undefined
      ? { provider_data: describeProviderData(message.provider) }
      : {}),
    ...(message.role === 'tool'
      ? { tool_call_id: message.toolCallId, name: message.name, is_error: message.isError }
      : {}),
    tokens: tokensOf(message),
    source: source.kind,
    notice: source.kind === 'notice' ? source.notice : null,
    cards: originsOf(of.origin, of.origins),
  };
}

/** Tools that are offered even when the profile does not list them. */
const ADDED: ReadonlyMap<string, ExplainedTool['offered_by']> = new Map([
  [EXPAND_TOOL, 'compaction'],
  [LIST_PROFILES, 'profiles'],
]);

export function explainTool(tool: OfferedTool, rows: TurnRows, hasResultFields: boolean): ExplainedTool {
  const { name, description, parameters, source } = tool;
  const isRequired = rows.turn.profile.content.must_end_with.includes(name);
  const isBound = hasResultFields && name === 'submit_result';
  const added = ADDED.get(name);
  const isAdded = added !== undefined && !toolNames(rows.turn.profile.content).includes(name);
  return {
    name,
    description,
    parameters,
    tokens: estimateTokens(Buffer.byteLength(JSON.stringify({ name, description, parameters }))),
    source,
    offered_by: isRequired ? 'must_end_with' : isBound ? 'result_fields' : isAdded ? added : 'tools',
  };
}

/** Cards in reach of the view that are not in it, then the cards that a budget left out of this turn's context. */
function explainOmissions(
  rows: TurnRows,
  prompt: RebuiltPrompt,
  origins: CardOrigins,
): readonly ExplainedOmission[] {
  const omitted = prompt.view.manifest.omitted.flatMap((range) =>
    origins.at(range).map((card) => ({ reason: range.reason, cut: null, card })),
  );
  const cut = origins
    .cutFrom(rows.turn.contextBoxId)
    .map((of) => ({ reason: 'budget' as const, cut: of.cut, card: of.card }));
  return [...omitted, ...cut];
}

/** The last step offers fewer tools by rule, so a tool that is absent there is not missing. */
function missingTools({ turn }: TurnRows, { tools, step }: RebuiltPrompt): readonly string[] {
  if (tools === null || step.step >= turn.maxSteps) return [];
  const { content } = turn.profile;
  const offered = new Set(tools.map(({ name }) => name));
  const names = new Set([...toolNames(content), ...content.must_end_with]);
  return [...names].filter((name) => !offered.has(name));
}

/** The adapter itself describes the wire form. */
function describeWire(
  { turn }: TurnRows,
  { view, tools, unmade }: RebuiltPrompt,
  model: Pick<Model, 'describeWire'> | undefined,
): readonly WireNote[] | null {
  if (tools === null || unmade !== undefined) return null;
  const { messages, sharedMessages } = view;
  return model?.describeWire?.(turn.profile.content.model, { messages, tools, sharedMessages }) ?? null;
}

export function explainPrompt(
  rows: TurnRows,
  prompt: RebuiltPrompt,
  {
    origins,
    model,
  }: {
    readonly origins: CardOrigins;
    readonly model: Pick<Model, 'describeWire'> | undefined;
  },
): StepExplanation {
  const { turn } = rows;
  const { step, view } = prompt;
  const messages = view.messages.flatMap((message, index) => {
    const origin = view.origins[index];
    return origin === undefined ? [] : explainMessage(message, index, { origin, origins });
  });
  const tools = prompt.tools?.map((tool) => explainTool(tool, rows, prompt.hasResultFields)) ?? null;
  const sum = (items: readonly { readonly tokens: number }[]): number =>
    items.reduce((total, item) => total + item.tokens, 0);
  return {
    turn_id: turn.turnId,
    run_id: turn.runId,
    turn_status: turn.status,
    agent: { agent_id: turn.agentId, name: turn.agentName },
    profile: { profile_id: turn.profile.profileId, name: turn.profile.name, version: turn.profile.version },
    step: step.step,
    attempt: step.attempt,
    opened_at: step.openedAt,
    committed_at: step.committedAt,
    model: step.model,
    usage: step.usage,
    error: step.error,
    prompt_hash: step.promptHash,
    rebuilt_hash: prompt.hash,
    verified: prompt.isVerified,
    findings: turn.profile.version === HANDOFF_VERSION ? [SERVED_ELSEWHERE] : prompt.findings,
    tokens: sum(messages) + sum(tools ?? []),
    messages,
    tools,
    missing_tools: missingTools(rows, prompt),
    omissions: explainOmissions(rows, prompt, origins),
    wire: describeWire(rows, prompt, model),
  };
}
