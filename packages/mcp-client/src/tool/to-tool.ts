/** Converts a tool of a server to a tool of the runtime. */
import {
  checkBySchema,
  isCleanText,
  isJsonObject,
  type JsonObject,
  type JsonValue,
  loosenSchema,
} from '@boxcar/kernel';
import type { Tool } from '@boxcar/runtime';
import type { Tool as ServerTool } from '@modelcontextprotocol/client';
import { z } from 'zod';
import type { ServerDefinition } from '../servers/server-definition.js';
import { toolNameOf } from './tool-name.js';

const MAX_DESCRIPTION = 4_000;
const MAX_SCHEMA = 64 * 1024;
/** The depth limit of JSON in this system. */
const MAX_LEVELS = 200;
/** The limit of tools per server. */
const MAX_TOOLS = 256;

/** A tool that agents do not get, with the reason. */
export interface LeftOut {
  readonly tool: string;
  readonly why: string;
}

/** The tools that agents get, and the tools that are left out. */
export interface ToolList {
  readonly tools: readonly Tool[];
  readonly leftOut: readonly LeftOut[];
}

/** Sends a call to the server. */
export type CallTool = (
  call: { readonly tool: string; readonly shown: string; readonly args: JsonObject },
  signal: AbortSignal,
) => Promise<JsonValue>;

/**
 * Checks arguments against the part of the schema that can be enforced; the server checks all of it. The schema is compiled on the first
 * call, since most tools of a list are never called.
 */
function argumentsBy(schema: JsonObject): z.ZodType<JsonObject> {
  let enforced: { readonly schema: JsonObject | undefined } | undefined;
  return z.custom<JsonObject>(isJsonObject, 'must be an object').superRefine((args, context) => {
    enforced ??= { schema: loosenSchema(schema) };
    if (enforced.schema === undefined) return;
    for (const finding of checkBySchema(enforced.schema, args, '')) {
      const at = finding.indexOf(': ');
      const path = finding.slice(0, at);
      const message = finding.slice(at + 2);
      context.addIssue({ code: 'custom', path: path === '' ? [] : path.split('.'), message });
    }
  });
}

const clean = (text: string): string => (isCleanText(text) ? text : text.replaceAll('\0', '').toWellFormed());

function describe({ name, title, description, annotations }: ServerTool): string {
  const text = clean(description ?? title ?? annotations?.title ?? name).trim();
  return text === '' ? name : text.slice(0, MAX_DESCRIPTION).toWellFormed();
}

const isDeeperThan = (value: unknown, levels: number): boolean =>
  typeof value === 'object' &&
  value !== null &&
  (levels === 0 || Object.values(value).some((part) => isDeeperThan(part, levels - 1)));

/** Why agents do not get a tool; undefined when they do. */
function findFault({ name, inputSchema }: ServerTool, { tools }: ServerDefinition): string | undefined {
  if (tools !== undefined && !tools.includes(name)) return 'not among the tools of its entry';
  if (isDeeperThan(inputSchema, MAX_LEVELS)) return `its schema has more than ${MAX_LEVELS} levels`;
  const size = JSON.stringify(inputSchema).length;
  if (size > MAX_SCHEMA) return `its schema has ${size} characters (${MAX_SCHEMA} at most)`;
  return undefined;
}

function toTool(
  server: string,
  definition: ServerDefinition,
  { tool, call }: { readonly tool: ServerTool; readonly call: CallTool },
): Tool<JsonObject> {
  const name = toolNameOf(server, tool.name);
  const { $schema: _dialect, ...parameters } = tool.inputSchema as JsonObject;
  const { retry_safe = [], timeout_ms: timeoutMs } = definition;
  return {
    name,
    description: describe(tool),
    input: argumentsBy(tool.inputSchema as JsonObject),
    parameters,
    // Depends only on the operator's entry, never on the server's own declarations.
    retry: retry_safe.includes(tool.name) ? 'safe' : 'never',
    ...(timeoutMs === undefined ? {} : { timeoutMs }),
    run: (args, { signal }) => call({ tool: tool.name, shown: name, args }, signal),
  };
}

/**
 * The tools of a server that agents get.
 *
 * @param before - Tools of an earlier list, by their text. An unchanged tool is the same object in the new list.
 */
export function toTools(
  server: string,
  definition: ServerDefinition,
  {
    listed,
    call,
    before,
  }: { readonly listed: readonly ServerTool[]; readonly call: CallTool; readonly before: Map<string, Tool> },
): ToolList {
  const leftOut: LeftOut[] = [];
  const counts = new Map<string, number>();
  for (const { name } of listed) counts.set(name, (counts.get(name) ?? 0) + 1);
  const offered = listed.filter((tool) => {
    const isTwice = (counts.get(tool.name) ?? 0) > 1;
    const why = isTwice ? 'the server has two tools of this name' : findFault(tool, definition);
    if (why !== undefined) leftOut.push({ tool: tool.name, why });
    return why === undefined;
  });
  for (const { name } of offered.slice(MAX_TOOLS))
    leftOut.push({
      tool: name,
      why: `more than ${MAX_TOOLS} tools; name those that agents need in its entry`,
    });
  const texts = new Map(offered.slice(0, MAX_TOOLS).map((tool) => [JSON.stringify(tool), tool]));
  const tools = [...texts].map(
    ([text, tool]) => before.get(text) ?? (toTool(server, definition, { tool, call }) as Tool),
  );
  before.clear();
  [...texts.keys()].forEach((text, index) => {
    const tool = tools[index];
    if (tool !== undefined) before.set(text, tool);
  });
  return { tools, leftOut };
}
