/** Requests for the approval of handoffs. Rule: docs/reference/approvals.md, "Handoffs". */
import {
  argsHash,
  buildCard,
  isJsonObject,
  type JsonObject,
  type JsonValue,
  maskArguments,
  type TicketId,
  type ToolCallId,
  withoutQuery,
} from '@boxcar/kernel';
import { requestApproval, type TicketRow } from '@boxcar/store';
import type { KernelTools } from '../handler/index.js';
import { newId } from '../lib/index.js';
import type { PolicyDecision } from './decide-policy.js';

export interface TicketRequest {
  readonly id: TicketId;
  readonly timeoutMs: number;
}

/** What an approval is bound to. */
export interface HandoffWords {
  readonly targetAgent: string;
  readonly platform: string;
  readonly task: string;
  readonly context: JsonObject | null | undefined;
  readonly payload: JsonValue | undefined;
  /** Whose cards go along. */
  readonly boxIds: readonly string[];
  /** Who gets the result outside. */
  readonly callbackUrl: string | null;
  /** The only one that may use the ticket, a call or a handoff; null: identical requests share it. */
  readonly asker: string | null;
}

/** Two calls of turns never share a ticket: who approves one has not approved the other. Nor do programs that name no run. */
export const askerOf = (of: {
  readonly toolCallId: string | null | undefined;
  readonly runId: string | null | undefined;
  readonly handoffId: string;
}): string | null => of.toolCallId ?? (of.runId == null ? of.handoffId : null);

/** The arguments that a person sees, and approves. */
const argumentsOf = ({
  targetAgent,
  platform,
  task,
  boxIds,
  callbackUrl,
}: Pick<HandoffWords, 'targetAgent' | 'platform' | 'task' | 'boxIds' | 'callbackUrl'>): JsonObject => ({
  target_agent: targetAgent,
  task,
  platform,
  ...(boxIds.length === 0 ? {} : { context_box_id: boxIds }),
  ...(callbackUrl === null ? {} : { callback: { url: callbackUrl } }),
});

export const hashesOf = ({ context, payload, asker, ...named }: HandoffWords) => ({
  argsHash: argsHash(argumentsOf(named)),
  contextHash:
    asker === null
      ? context === null || context === undefined
        ? ''
        : argsHash(context)
      : argsHash({ context: context ?? {}, asker }),
  payloadHash: payload === null || payload === undefined ? '' : argsHash(payload),
});

/** Asks for an approval, or joins an identical request that waits. */
export async function requestTicket(
  { tools, approvalMs }: { readonly tools: KernelTools; readonly approvalMs: number },
  of: {
    readonly asked: {
      readonly handoffId: string;
      readonly sourceAgent: string;
      readonly input: {
        readonly task: string;
        readonly context?: JsonObject | undefined;
        readonly payload?: JsonValue | undefined;
        readonly run_id?: string | undefined;
        readonly context_box_id?: string | readonly string[] | undefined;
      };
    };
    readonly platform: string;
    readonly targetAgent: string;
    readonly callbackUrl: string | null;
    readonly policy: PolicyDecision;
    /** The call that asks waits for the result: its ticket ends with it. */
    readonly isAwaited: boolean;
    /** The call that asks. */
    readonly toolCallId: ToolCallId | null;
  },
): Promise<TicketRequest> {
  const { asked, platform, targetAgent, callbackUrl, policy, toolCallId } = of;
  const { ctx, tx } = tools;
  const { task, context, payload, run_id, context_box_id = [] } = asked.input;
  const named = { targetAgent, platform, task, boxIds: [context_box_id].flat(), callbackUrl };
  const shown = maskArguments(
    argumentsOf({ ...named, callbackUrl: callbackUrl === null ? null : withoutQuery(callbackUrl) }),
  );
  const card = buildCard(
    {
      type: 'approval.request',
      role: null,
      content: { kind: 'json', data: isJsonObject(shown) ? shown : {} },
      metadata: {},
      authorId: ctx.source.agentId,
    },
    { id: newId<'card'>(), projectId: ctx.projectId },
  );
  const { id } = await requestApproval(tx, {
    id: newId<'ticket'>(),
    projectId: ctx.projectId,
    runId: run_id ?? ctx.parent?.runId ?? asked.handoffId,
    turnId: ctx.parent?.turnId ?? null,
    toolCallId: of.isAwaited ? toolCallId : null,
    agent: asked.sourceAgent,
    toolName: 'handoff',
    card,
    ...hashesOf({
      ...named,
      context: isEmpty(context) ? null : context,
      payload,
      asker: askerOf({ toolCallId, runId: run_id, handoffId: asked.handoffId }),
    }),
    policyVersion: policy.policy_version,
    timeoutMs: approvalMs,
    callMs: null,
    metadata: {
      handoff: {
        target_agent: targetAgent,
        platform,
        ...(named.boxIds.length === 0 ? {} : { context_box_id: named.boxIds }),
      },
      handoff_id: asked.handoffId,
      policy: { rule_id: policy.rule_id, level: policy.level },
    },
  });
  return { id, timeoutMs: approvalMs };
}

/** Of the ticket of a handoff: the boxes whose cards go along, as they were named. */
export const boxIdsOf = ({ metadata }: Pick<TicketRow, 'metadata'>): readonly string[] =>
  (metadata.handoff as { readonly context_box_id?: readonly string[] } | undefined)?.context_box_id ?? [];

const isEmpty = (context: JsonObject | undefined): boolean =>
  context === undefined || Object.keys(context).length === 0;
