/** Tools of approvals. Rule: docs/reference/approvals.md. */
import { type JsonObject, KernelError, type Principal, TICKET_STATUSES } from '@boxcar/kernel';
import { ApprovalGate, findActor } from '@boxcar/runtime';
import type { McpServer } from '@modelcontextprotocol/server';
import { z } from 'zod';
import { type McpClientScope, OPERATOR } from '../client-scope.js';
import {
  addTool,
  ENDS,
  inputOf,
  outputOf,
  parseArguments,
  READS,
  type ToolDefinition,
  toJson,
} from '../tool/index.js';

const listSchema = z.strictObject({
  status: z.enum(TICKET_STATUSES).optional(),
  run_id: z.string().min(1).optional(),
  agent: z.string().min(1).optional().describe('The name of the agent whose call needs the approval.'),
  limit: z.int().min(1).max(200).optional().describe('Default 50.'),
  cursor: z.string().min(1).optional().describe('The next_cursor of the previous page.'),
});

const decisionSchema = z.strictObject({
  ticket_id: z.string().min(1),
  decision: z.enum(['approve', 'deny']),
  reason: z.string().optional(),
});

const open = z.record(z.string(), z.unknown());
const done = { success: z.literal(true) };

/** Undefined: the operator decides. */
function principalOf({ as, principal, scopes }: McpClientScope): Principal | undefined {
  if (principal !== undefined || as === OPERATOR) return principal;
  return { id: as, kind: 'agent', scopes };
}

/** @throws KernelError `feature_disabled`. */
function gateOf(
  { runtime }: McpClientScope,
  projectId: ConstructorParameters<typeof ApprovalGate>[0]['projectId'],
) {
  if (runtime.gate.approvalMs !== undefined) return new ApprovalGate({ runtime, projectId });
  throw new KernelError('feature_disabled', {
    message: 'Approvals are switched off: BOXCAR_APPROVALS_ENABLED is false.',
    next: 'Start the server with BOXCAR_APPROVALS_ENABLED=true.',
  });
}

/** The operator sees all tickets of the project, an agent only the tickets of its own requests. */
async function list(scope: McpClientScope, args: JsonObject): Promise<JsonObject> {
  const asked = parseArguments(listSchema, args);
  const actor = await findActor(scope.runtime.pool, scope.projectId, scope.as);
  const own = actor.agentId === actor.operatorId ? undefined : actor.agentName;
  if (own !== undefined && asked.agent !== undefined && asked.agent !== own)
    return { success: true, approvals: [], next_cursor: null };
  const page = await gateOf(scope, actor.projectId).list(
    { ...asked, agent: own ?? asked.agent },
    // For the operator: requests from outside may carry any agent name.
    own === undefined ? {} : { agentId: actor.agentId },
  );
  return { success: true, approvals: toJson(page.approvals), next_cursor: page.next_cursor };
}

/** @throws KernelError `approval_resolved` for a ticket that was already decided; `permission_denied` for an agent. */
export async function decide(scope: McpClientScope, args: JsonObject): Promise<JsonObject> {
  const { ticket_id: ticketId, decision, reason } = parseArguments(decisionSchema, args);
  const { projectId } = await findActor(scope.runtime.pool, scope.projectId, scope.as);
  const ticket = await gateOf(scope, projectId)[decision](ticketId, {
    principal: principalOf(scope),
    reason,
  });
  return { success: true, approval: toJson(ticket) };
}

const tools = (scope: McpClientScope): readonly ToolDefinition[] => [
  {
    name: 'list_approvals',
    title: 'List approvals',
    description:
      'Lists calls that wait for an approval and calls that were decided, the newest first. Arguments are masked.',
    input: inputOf(listSchema),
    output: outputOf(z.object({ ...done, approvals: z.array(open), next_cursor: z.string().nullable() })),
    scope: 'approvals:read',
    annotations: READS,
    run: (args) => list(scope, args),
  },
  {
    name: 'decide_approval',
    title: 'Decide an approval',
    description:
      'Approves or denies a ticket. The call that waits for it continues, or is refused. A decision is final.',
    input: inputOf(decisionSchema),
    output: outputOf(z.object({ ...done, approval: open })),
    scope: 'approvals:write',
    annotations: ENDS,
    isOnce: true,
    run: (args) => decide(scope, args),
  },
];

export function registerApprovalTools(server: McpServer, scope: McpClientScope): void {
  for (const tool of tools(scope)) addTool(server, scope, tool);
}
