/**
 * Tools of the server: the common path from the arguments of a client to an answer.
 *
 * T1  Arguments in camelCase are renamed, and then checked against the same schemas as in every other interface.
 * T2  An answer is its JSON as text, and the same as structured content. A failure that the client can react to is only text, with
 *     `isError`. It is never an error of the protocol.
 * T3  Every call has an id, in its answer and in each of its log lines.
 * T4  When the database is unavailable, a call is tried up to three times under one idempotency key, so it takes effect once.
 * Rule: docs/reference/mcp.md, "Answers".
 */
import { isJsonObject, type JsonObject, type Scope } from '@boxcar/kernel';
import type { Log } from '@boxcar/runtime';
import type {
  CallToolResult,
  InputRequiredResult,
  McpServer,
  ServerContext,
  StandardSchemaWithJSON,
  ToolAnnotations,
} from '@modelcontextprotocol/server';
import type { McpClientScope } from '../client-scope.js';
import { toSchemaNames } from './aliases.js';
import { failureBody, newRequestId, toFailure } from './failure.js';
import { withPatience } from './patience.js';

export interface ToolCall {
  readonly requestId: string;
  readonly log: Log;
  readonly signal: AbortSignal;
  /** The protocol's data of the request. */
  readonly request: ServerContext['mcpReq'];
}

/** The outcome of a call: an answer, or a question to the user of the client. */
export type ToolAnswer = JsonObject | InputRequiredResult;

export interface ToolDefinition {
  readonly name: string;
  readonly title: string;
  readonly description: string;
  /** JSON schema of an object. */
  readonly input: JsonObject;
  readonly output: JsonObject;
  readonly scope: Scope;
  readonly annotations: ToolAnnotations;
  /** Its arguments have an `idempotency_key`, which is set when the client sends none (T4). */
  readonly isKeyed?: boolean;
  /** It is never run a second time, since a second run would repeat its effect (T4). */
  readonly isOnce?: boolean;
  /**
   * @param args - Not yet checked.
   * @throws KernelError, ToolFailure the failure for the client.
   */
  run(args: JsonObject, call: ToolCall): Promise<ToolAnswer>;
}

/** For reads: a repeated call changes nothing. */
export const READS: ToolAnnotations = {
  readOnlyHint: true,
  destructiveHint: false,
  idempotentHint: true,
  openWorldHint: false,
};
/** For writes that remove nothing. */
export const ADDS: ToolAnnotations = {
  readOnlyHint: false,
  destructiveHint: false,
  idempotentHint: false,
  openWorldHint: false,
};
/** For writes that remove or end an object. */
export const ENDS: ToolAnnotations = { ...ADDS, destructiveHint: true };

/** Arguments are checked in `run`, so that their errors are reported like every other failure (T1, T2). */
const listed = (schema: JsonObject): StandardSchemaWithJSON<JsonObject> => ({
  '~standard': {
    version: 1,
    vendor: 'boxcar',
    validate: (value) => ({ value: isJsonObject(value) ? value : {} }),
    jsonSchema: { input: () => schema, output: () => schema },
  },
});

const textOf = (body: JsonObject): CallToolResult['content'] => [
  { type: 'text', text: JSON.stringify(body, null, 2) },
];

const names = new WeakMap<McpServer, Set<string>>();

/** Whether a server has a tool of this name. Plugins can name primitives freely. */
export const hasTool = (server: McpServer, name: string): boolean => names.get(server)?.has(name) === true;

/** Adds a tool, if the principal has the tool's scope. */
export function addTool(server: McpServer, scope: McpClientScope, tool: ToolDefinition): void {
  names.set(server, (names.get(server) ?? new Set()).add(tool.name));
  if (!scope.scopes.includes(tool.scope)) return;
  const { name, title, description, annotations } = tool;
  const config = {
    title,
    description,
    inputSchema: listed(tool.input),
    outputSchema: listed(tool.output),
    annotations: { title, ...annotations },
  };
  server.registerTool(name, config, (args: JsonObject, ctx) => runTool(tool, scope, { args, ctx }));
}

async function runTool(
  tool: ToolDefinition,
  scope: McpClientScope,
  { args, ctx }: { readonly args: JsonObject; readonly ctx: ServerContext },
): Promise<CallToolResult | InputRequiredResult> {
  const requestId = newRequestId();
  const log: Log = (level, event, fields = {}) =>
    scope.log(level, event, { tool: tool.name, request_id: requestId, ...fields });
  const startedAt = performance.now();
  const { mcpReq: request } = ctx;
  const call: ToolCall = { requestId, log, signal: request.signal, request };
  const ended = (outcome: string): void =>
    log('info', 'mcp.call', { outcome, ms: Math.round(performance.now() - startedAt) });
  const _meta = { request_id: requestId };
  try {
    const answer = await attempt(tool, args, call);
    ended(isQuestion(answer) ? 'question' : 'success');
    if (isQuestion(answer)) return answer;
    return { content: textOf(answer), structuredContent: answer, _meta };
  } catch (error) {
    const failure = toFailure(error, log);
    ended(failure.error_code);
    return { content: textOf(failureBody(failure, requestId)), isError: true, _meta };
  }
}

const isQuestion = (answer: ToolAnswer): answer is InputRequiredResult =>
  'resultType' in answer && answer.resultType === 'input_required';

async function attempt(tool: ToolDefinition, args: JsonObject, call: ToolCall): Promise<ToolAnswer> {
  const renamed = toSchemaNames(args, tool.input) as JsonObject;
  const key = tool.isKeyed === true ? { idempotency_key: `mcp:${call.requestId}` } : {};
  const run = (): Promise<ToolAnswer> => tool.run({ ...key, ...renamed }, call);
  if (tool.isOnce === true) return run();
  return withPatience(run, {
    signal: call.signal,
    onRetry: (error) => call.log('warn', 'mcp.call_again', { error }),
  });
}
