/** Tools of sessions: register, update, read, hand over. The runtime implements them. Rule: docs/reference/mcp.md. */
import {
  acceptHandoffSchema,
  closeSessionSchema,
  completeHandoffSchema,
  getContextSchema,
  getSummarySchema,
  registerSessionSchema,
  rejectHandoffSchema,
  requestHandoffSchema,
  updateContextSchema,
} from '@boxcar/kernel';
import {
  acceptHandoff,
  completeHandoff,
  type HandoffSessions,
  openHandoffSessions,
  rejectHandoff,
} from '@boxcar/runtime';
import type { McpServer } from '@modelcontextprotocol/server';
import type { McpClientScope } from '../client-scope.js';
import { ADDS, addTool, ENDS, inputOf, READS, type ToolDefinition } from '../tool/index.js';
import { toClosed, toContextPage, toMoved, toRegistered, toSummary, toUpdated } from './answers.js';
import { listHandoffs } from './list-handoffs.js';
import { passOn } from './pass-on.js';
import { CLOSED, CONTEXT, HANDOFF, PACKAGE, REGISTERED, SUMMARY, UPDATED } from './schemas.js';

/** The sessions of the principal. The first call that needs them opens them, and so does the next call after a failure. */
function sessionsOf({ runtime, projectId, as }: McpClientScope): () => Promise<HandoffSessions> {
  let opening: Promise<HandoffSessions> | undefined;
  return () => {
    opening ??= openHandoffSessions(runtime, { projectId, as }).catch((error: unknown) => {
      opening = undefined;
      throw error;
    });
    return opening;
  };
}

const writers = (open: () => Promise<HandoffSessions>): readonly ToolDefinition[] => [
  {
    name: 'register_session',
    title: 'Register a session',
    description:
      'Registers a session under a key of your choice. Add to its context with update_context, and hand it over with request_handoff.',
    input: inputOf(registerSessionSchema),
    output: REGISTERED,
    scope: 'handoffs:write',
    annotations: ADDS,
    isKeyed: true,
    run: async (args) => toRegistered(await (await open()).register(args), args),
  },
  {
    name: 'update_context',
    title: 'Add to the context',
    description:
      'Adds an entry to a session: a message, a file, a tool call or a system note. With entries it adds up to 500, all or none.',
    input: inputOf(updateContextSchema),
    output: UPDATED,
    scope: 'handoffs:write',
    annotations: ADDS,
    isKeyed: true,
    run: async (args) => toUpdated(await (await open()).update(args), Array.isArray(args.entries)),
  },
  {
    name: 'close_session',
    title: 'Close a session',
    description: 'Ends a session as completed or cancelled. After that no entry can be added.',
    input: inputOf(closeSessionSchema),
    output: CLOSED,
    scope: 'handoffs:write',
    annotations: ENDS,
    isKeyed: true,
    run: async (args) => toClosed(await (await open()).close(args)),
  },
];

const readers = (open: () => Promise<HandoffSessions>): readonly ToolDefinition[] => [
  {
    name: 'get_context',
    title: 'Read the context',
    description:
      'Reads the entries of a session in their order, page by page. Pass next_cursor as cursor to get the next page.',
    input: inputOf(getContextSchema),
    output: CONTEXT,
    scope: 'handoffs:read',
    annotations: READS,
    run: async (args) => toContextPage(await (await open()).context(args)),
  },
  {
    name: 'get_summary',
    title: 'Read the summary',
    description: 'Returns a summary of a session: counts, first and last message, participants.',
    input: inputOf(getSummarySchema),
    output: SUMMARY,
    scope: 'handoffs:read',
    annotations: READS,
    run: async (args) => toSummary(await (await open()).summary(args)),
  },
];

const handoffs = (server: McpServer, scope: McpClientScope): readonly ToolDefinition[] => [
  {
    name: 'request_handoff',
    title: 'Pass a session on',
    description:
      'Hands a session over to another agent. context_transfer shares its present entries, and the session continues. full_handoff ends the session for you. ' +
      'collaboration lets the target add entries. In request_data, instructions is the task for the target, and priority is low, normal, high or urgent.',
    input: inputOf(requestHandoffSchema),
    output: HANDOFF,
    scope: 'handoffs:write',
    annotations: { ...ENDS, openWorldHint: true },
    isKeyed: true,
    run: (args, call) => passOn(server, scope, { args, call }),
  },
  {
    name: 'accept_handoff',
    title: 'Accept a handoff',
    description:
      'Accepts a session that was handed over to you and waits. Then read it with get_summary and get_context.',
    input: inputOf(acceptHandoffSchema),
    output: PACKAGE,
    scope: 'handoffs:write',
    annotations: { ...ADDS, idempotentHint: true },
    run: async (args) => toMoved(await acceptHandoff(scope.runtime, args, scope)),
  },
  {
    name: 'reject_handoff',
    title: 'Reject a handoff',
    description:
      'Refuses a session that was handed over to you and waits, gives up a session that you have accepted, or takes back a session that you have handed over.',
    input: inputOf(rejectHandoffSchema),
    output: PACKAGE,
    scope: 'handoffs:write',
    annotations: { ...ENDS, idempotentHint: true },
    run: async (args) => toMoved(await rejectHandoff(scope.runtime, args, scope)),
  },
  {
    name: 'complete_handoff',
    title: 'Complete a handoff',
    description: 'Completes a handoff that you have accepted, with its result.',
    input: inputOf(completeHandoffSchema),
    output: PACKAGE,
    scope: 'handoffs:write',
    annotations: { ...ENDS, idempotentHint: true },
    run: async (args) => toMoved(await completeHandoff(scope.runtime, args, scope)),
  },
];

export function registerSessionTools(server: McpServer, scope: McpClientScope): void {
  const open = sessionsOf(scope);
  for (const tool of [...writers(open), ...handoffs(server, scope), ...readers(open), listHandoffs(scope)])
    addTool(server, scope, tool);
}
