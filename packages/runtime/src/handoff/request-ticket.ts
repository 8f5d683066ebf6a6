/** Requests for the approval of handoffs. Rule: docs/approvals.md, "Handoffs". */
import {
  argsHash,
  buildCard,
  isJsonObject,
  type JsonObject,
  type JsonValue,
  maskArguments,
  type TicketId,
  withoutQuery,
} from '@boxcar/kernel';
import { requestApproval } from '@boxcar/store';
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
  /** Who gets the result outside. */
  readonly callbackUrl: string | null;
  /** Two calls of turns never share a ticket: who approves one has not approved the other. */
  readonly toolCallId: string | null;
}

export const hashesOf = ({
  targetAgent,
  platform,
  task,
  context,
  payload,
  callbackUrl,
  toolCallId,
}: HandoffWords) => ({
  argsHash: argsHash({
    target_agent: targetAgent,
    platform,
    task,
    ...(callbackUrl === null ? {} : { callback: { url: callbackUrl } }),
  }),
  contextHash:
    toolCallId === null
      ? context === null || context === undefined
        ? ''
        : argsHash(context)
      : argsHash({ context: context ?? {}, tool_call_id: toolCallId }),
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
      };
    };
    readonly platform: string;
    readonly targetAgent: string;
    readonly callbackUrl: string | null;
    readonly policy: PolicyDecision;
    /** In place of those of the running call: of a handoff whose first ticket is void. */
    readonly call?: { readonly turnId: string; readonly toolCallId: string } | undefined;
  },
): Promise<TicketRequest> {
  const { asked, platform, targetAgent, callbackUrl, policy } = of;
  const { ctx, tx } = tools;
  const { task, context, payload, run_id } = asked.input;
  const toolCallId = (of.call?.toolCallId ?? tools.toolCallId ?? null) as typeof tools.toolCallId | null;
  const shown = maskArguments({
    target_agent: targetAgent,
    task,
    platform,
    ...(callbackUrl === null ? {} : { callback: { url: withoutQuery(callbackUrl) } }),
  });
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
    toolCallId: toolCallId ?? null,
    agent: asked.sourceAgent,
    toolName: 'handoff',
    card,
    ...hashesOf({
      targetAgent,
      platform,
      task,
      context: isEmpty(context) ? null : context,
      payload,
      callbackUrl,
      toolCallId: toolCallId ?? null,
    }),
    policyVersion: policy.policy_version,
    timeoutMs: approvalMs,
    callMs: null,
    metadata: {
      handoff: { target_agent: targetAgent, platform },
      handoff_id: asked.handoffId,
      policy: { rule_id: policy.rule_id, level: policy.level },
    },
  });
  return { id, timeoutMs: approvalMs };
}

const isEmpty = (context: JsonObject | undefined): boolean =>
  context === undefined || Object.keys(context).length === 0;
