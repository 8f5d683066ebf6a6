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

/** The parts of a request to which an approval is bound. */
export interface HandoffWords {
  readonly targetAgent: string;
  readonly platform: string;
  readonly task: string;
  readonly context: JsonObject | null | undefined;
  readonly payload: JsonValue | undefined;
  /** The boxes whose cards go along. */
  readonly boxIds: readonly string[];
  /** The receiver of the result outside. */
  readonly callbackUrl: string | null;
  /** The only call or handoff that may use the ticket. Null: identical requests share the ticket. */
  readonly asker: string | null;
}

/** Calls of turns never share a ticket: the approval of one call does not approve another. The same holds for programs that name no run. */
export const askerOf = (of: {
  readonly toolCallId: string | null | undefined;
  readonly runId: string | null | undefined;
  readonly handoffId: string;
}): string | null => of.toolCallId ?? (of.runId == null ? of.handoffId : null);

/** The arguments that a person sees and approves. */
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

/** Requests an approval, or joins an identical pending request. */
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
    /** The calling turn waits for the result: the ticket ends together with the call. */
    readonly isAwaited: boolean;
    /** The call that requests the handoff. */
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

/** The boxes whose cards go along, by the names in the request. Read from the ticket of a handoff. */
export const boxIdsOf = ({ metadata }: Pick<TicketRow, 'metadata'>): readonly string[] =>
  (metadata.handoff as { readonly context_box_id?: readonly string[] } | undefined)?.context_box_id ?? [];

const isEmpty = (context: JsonObject | undefined): boolean =>
  context === undefined || Object.keys(context).length === 0;
