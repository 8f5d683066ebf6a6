/** The tools that a model has for its own tape, for clients. Rule: docs/reference/tape.md, "Tools". */
import {
  type JsonObject,
  KernelError,
  matchLine,
  NOTIFY_PARENT,
  type SessionAddress,
  sessionAddressSchema,
  TAPE_HANDOFF,
  tapeAnchorsSchema,
  tapeHandoffSchema,
  tapeInfoSchema,
  tapeSearchSchema,
  tryParseId,
} from '@boxcar/kernel';
import type { Tape, TapeTarget } from '@boxcar/runtime';
import type { McpServer } from '@modelcontextprotocol/server';
import { z } from 'zod';
import { type McpClientScope, OPERATOR } from '../client-scope.js';
import {
  ADDS,
  addTool,
  inputOf,
  outputOf,
  parseArguments,
  READS,
  type ToolDefinition,
  toJson,
} from '../tool/index.js';

const key = { idempotency_key: z.string().min(1).max(500).optional() };
const handoffSchema = tapeHandoffSchema.extend(key);
const forkSchema = z
  .strictObject({
    tape: z
      .union([z.string().trim().min(1), sessionAddressSchema])
      .optional()
      .describe('Default: your own.'),
    session: z.string().min(1).optional().describe('Makes a session with this name and an agent of its own.'),
    from_anchor: z
      .string()
      .min(1)
      .optional()
      .describe('The anchor at which the first views of the session begin.'),
    next_steps: z.string().min(1).optional().describe('The purpose of the session.'),
    context_summary: z.string().min(1).optional().describe('The background that the session needs.'),
    notify_parent: z
      .boolean()
      .optional()
      .describe('true: this tape gets a notice when a turn of the session ends.'),
    profile: z
      .string()
      .min(1)
      .optional()
      .describe('The profile of its agent. Default: the profile of this tape’s agent.'),
  })
  .refine(({ tape: _tape, session, ...rest }) => session !== undefined || Object.keys(rest).length === 0, {
    error: 'is required with from_anchor, next_steps, context_summary, notify_parent and profile',
    path: ['session'],
  });

const done = { success: z.literal(true) };
const open = z.record(z.string(), z.unknown());

function targetOf(ref: string | SessionAddress | undefined, { as }: McpClientScope): TapeTarget {
  if (ref === undefined) {
    if (as !== OPERATOR) return { agent: as };
    throw new KernelError('bad_request', {
      message: 'arguments.tape: is required here: the operator has no tape of its own.',
      details: { field: 'arguments.tape' },
    });
  }
  if (typeof ref !== 'string') return ref;
  const box = tryParseId<'box'>(ref);
  return box === undefined ? ref : { box };
}

/** Opens an existing tape, with the rights of the client. */
const openTape = (scope: McpClientScope, ref: string | SessionAddress | undefined): Promise<Tape> => {
  const { runtime, projectId, as } = scope;
  return runtime.tape(targetOf(ref, scope), { projectId, as, create: false });
};

async function handOff(scope: McpClientScope, args: JsonObject): Promise<JsonObject> {
  const { runtime, projectId, as } = scope;
  const { idempotency_key: idempotencyKey, ...input } = parseArguments(handoffSchema, args);
  const message = await runtime.submit(TAPE_HANDOFF.name, input, {
    projectId,
    idempotencyKey,
    ...(as === OPERATOR ? {} : { sourceAgentId: as }),
  });
  return { success: true, message };
}

async function fork(scope: McpClientScope, args: JsonObject): Promise<JsonObject> {
  const input = parseArguments(forkSchema, args);
  const tape = await openTape(scope, input.tape);
  const { session, from_anchor, next_steps = '', context_summary = '', notify_parent, profile } = input;
  if (session === undefined) {
    const made = await tape.forkTape();
    return { success: true, fork_id: made.id, box_id: made.tape.boxId };
  }
  const made = await tape.forkSession(session, {
    fromAnchor: from_anchor,
    ...(`${next_steps}${context_summary}` === '' ? {} : { intention: { next_steps, context_summary } }),
    ...(notify_parent === true ? { triggerOnComplete: NOTIFY_PARENT } : {}),
    profile,
  });
  return { success: true, session: made.name, agent_id: made.agentId, box_id: made.tape.boxId };
}

/** The limit of the matches in one answer, in bytes. Each match is also cut, as for models. */
const MAX_MATCHES_BYTES = 262_144;

async function search(scope: McpClientScope, args: JsonObject): Promise<JsonObject> {
  const { tape: ref, query, limit, ...range } = parseArguments(tapeSearchSchema, args);
  const tape = await openTape(scope, ref);
  const { pages } = await tape.searchPages(query, { ...range, limit: limit === 0 ? undefined : limit });
  const matches: JsonObject[] = [];
  let left = MAX_MATCHES_BYTES;
  for await (const page of pages)
    for (const { record, match } of page) {
      const line = matchLine(record);
      left -= Buffer.byteLength(line);
      if (left < 0) return { success: true, matches, is_cut: true };
      const { position, kind } = record;
      matches.push({ position, kind, match, ...(JSON.parse(line) as JsonObject) });
    }
  return { success: true, matches, is_cut: false };
}

const writers = (scope: McpClientScope): readonly ToolDefinition[] => [
  {
    name: 'tape_handoff',
    title: 'Anchor a tape',
    description:
      'Writes an anchor on a tape, with a summary and next steps. From then on, views of the tape begin at this anchor.',
    input: inputOf(handoffSchema),
    output: outputOf(z.object({ ...done, message: z.string() })),
    scope: 'tapes:write',
    annotations: ADDS,
    isKeyed: true,
    run: (args) => handOff(scope, args),
  },
  {
    name: 'tape_fork',
    title: 'Fork a tape',
    description:
      'Forks a tape. The fork can be merged later. With session it becomes a session with an agent of its own instead.',
    input: inputOf(forkSchema),
    output: outputOf(
      z.object({
        ...done,
        box_id: z.string(),
        fork_id: z.string().optional(),
        session: z.string().optional(),
        agent_id: z.string().optional(),
      }),
    ),
    scope: 'tapes:write',
    annotations: ADDS,
    isOnce: true,
    run: (args) => fork(scope, args),
  },
];

const readers = (scope: McpClientScope): readonly ToolDefinition[] => [
  {
    name: 'tape_anchors',
    title: 'List the anchors of a tape',
    description:
      'Lists the last anchors of a tape, in the order in which they were written, with their states.',
    input: inputOf(tapeAnchorsSchema),
    output: outputOf(z.object({ ...done, anchors: z.array(open), next: z.int().nullable() })),
    scope: 'tapes:read',
    annotations: READS,
    run: async (args) => {
      const { tape, limit, before } = parseArguments(tapeAnchorsSchema, args);
      const { anchors, next } = await (await openTape(scope, tape)).anchorsPage({ limit, before });
      return { success: true, anchors: toJson(anchors), next };
    },
  },
  {
    name: 'tape_search',
    title: 'Search a tape',
    description: 'Searches the entries of a tape, also those before the last anchor. The newest come first.',
    input: inputOf(tapeSearchSchema),
    output: outputOf(z.object({ ...done, matches: z.array(open), is_cut: z.boolean() })),
    scope: 'tapes:read',
    annotations: READS,
    run: (args) => search(scope, args),
  },
  {
    name: 'tape_info',
    title: 'Describe a tape',
    description:
      'Returns the length of a tape, its last anchor, and the number of entries after that anchor.',
    input: inputOf(tapeInfoSchema),
    output: outputOf(z.object({ ...done, tape: open })),
    scope: 'tapes:read',
    annotations: READS,
    run: async (args) => {
      const { tape } = parseArguments(tapeInfoSchema, args);
      return { success: true, tape: toJson(await (await openTape(scope, tape)).info()) };
    },
  },
];

export function registerTapeTools(server: McpServer, scope: McpClientScope): void {
  for (const tool of [...writers(scope), ...readers(scope)]) addTool(server, scope, tool);
}
