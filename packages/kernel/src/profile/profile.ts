import { z } from 'zod';
import {
  isPlainName,
  type JsonValue,
  KernelError,
  nameSchema as name,
  PLAIN_NAME,
  parseJsonValue,
  plainWords,
  selectorNameSchema,
  toBadRequest,
} from '../base/index.js';
import { toolsSchema } from './queue-tool.js';

const jsonValue = z.custom<JsonValue>((value) => value !== undefined);

/** Names of pools of workers; empty = the default pool. */
export const WORKER_TARGET = /^[a-z0-9_-]{0,64}$/;

const TARGET_PROFILES = 'must be a list of names of profiles, null for every profile, or [] for none';

/** Names of MCP servers. Without a dot, so that the name of a tool, `server.tool`, has one meaning. */
export const SERVER_NAME = /^[a-zA-Z0-9_-]{1,32}$/;

/** Who the agents of a profile may reach. No policy = nobody; `target_profiles: null` = every profile, `[]` = none. */
export const delegationPolicySchema = z.strictObject({
  target_profiles: z
    .array(name, {
      error: ({ input }) => `${input === undefined ? 'is missing; it ' : ''}${TARGET_PROFILES}`,
    })
    .nullable(),
  /** When not empty, the target must carry at least one of these tags as well. */
  target_tags: z.array(name).default([]),
});
export type DelegationPolicy = z.infer<typeof delegationPolicySchema>;

const profileLimitsSchema = z.strictObject({
  max_steps: z.number().int().min(1).max(10_000).default(50),
  tool_timeout_seconds: z.number().positive().max(86_400).default(120),
  model_timeout_seconds: z.number().positive().max(86_400).default(600),
  /** Tokens of one turn, prompts and answers of all its steps; also what it gets of a budget at first. */
  tokens: z.number().int().positive().max(1e15).optional(),
  /** When a budget above the turn is used up: end it as partial, or let it wait until the budget is raised. */
  on_budget: z.enum(['end', 'pause']).optional(),
  /** What the model takes, prompt and answer together; default: what is known of the model, else 200,000. */
  context_tokens: z.number().int().min(100).max(1e9).optional(),
  /** The share of it above which an agent that can hand off is reminded of that; default 0.8. */
  context_reminder: z.number().positive().max(1).optional(),
  // No defaults here: they are decideRetry's, and profiles of before keep their version.
  /** How often a step's model call is tried again. */
  model_retries: z.number().int().min(0).max(100).optional(),
  /** The first pause before that; doubled each time, up to the longest. */
  retry_base_seconds: z.number().positive().max(3_600).optional(),
  retry_max_seconds: z.number().positive().max(86_400).optional(),
});

/** A profile: the named, versioned template of agents. Source: `docs/reference/profiles.md`. */
export const profileSchema = z.strictObject({
  name,
  description: z.string().optional(),
  instructions: z.string(),
  /** `scripted`, `scripted:<name>`, or `<provider>:<model>`. */
  model: z.string().trim().min(1).refine(isPlainName, PLAIN_NAME),
  model_settings: z
    .strictObject({
      temperature: z.number().min(0).max(2).optional(),
      max_output_tokens: z.number().int().positive().optional(),
      /** False: the provider is asked for its answer in one piece (docs/reference/models.md). */
      stream: z.boolean().optional(),
    })
    .prefault({}),
  /** The script of the `scripted` model; the adapter checks its inside when the profile is applied. */
  script: z.array(jsonValue).optional(),
  /** Tools and primitives its agents may call, and declarations of tools that go to a queue. None listed = none allowed. */
  tools: toolsSchema.default([]),
  /** MCP servers, defined by the operator, whose tools its agents may call as `server.tool` (docs/reference/mcp.md). */
  mcp: z
    .array(z.string().regex(SERVER_NAME, 'letters, digits, _ and - only, 32 at most'))
    .refine((names) => new Set(names).size === names.length, 'names a server twice')
    .optional(),
  /** Tools and primitives that may be called again with the same arguments and nothing new to go by. */
  repeatable: z.array(name).optional(),
  /** Tools and primitives whose calls wait for the approval of a person (docs/reference/approvals.md). */
  requires_approval: z.array(name).optional(),
  /** True: comma commands in its answers are calls (docs/reference/tape.md). */
  comma_commands: z.boolean().optional(),
  delegation_policy: delegationPolicySchema.optional(),
  /** A turn may end only by a successful call of one of these tools; empty = plain text ends it. */
  must_end_with: z.array(name).default([]),
  tags: z.array(name).default([]),
  /** True: other platforms reach it by A2A, with a key (docs/reference/a2a.md). */
  public: z.boolean().optional(),
  /** Which workers run its turns; empty = the default pool. */
  worker_target: z.string().regex(WORKER_TARGET, 'lower-case letters, digits, - and _ only').default(''),
  limits: profileLimitsSchema.prefault({}),
  /** Where views of its turns begin, unless a submission or a session says so, or the selector that makes their prompts (docs/reference/views.md). */
  view: z
    .union([
      z.enum(['last_anchor', 'full']),
      z.strictObject({ selector: selectorNameSchema, from: z.enum(['last_anchor', 'full']).optional() }),
    ])
    .optional(),
});
export type Profile = z.infer<typeof profileSchema>;

/** @throws KernelError `profile_invalid` naming every wrong field; `bad_request` for what is no JSON at all. */
export function parseProfile(input: unknown): Profile {
  // Its own members keep the order of the schema, so that a comparison of versions shows no moved lines.
  const parsed = profileSchema.safeParse(parseJsonValue(input, 'profile'), { error: plainWords });
  if (!parsed.success) throw toBadRequest(parsed.error, '', 'profile_invalid');
  const { name, public: isPublic } = parsed.data;
  if (isPublic === true && ['.', '..'].includes(name))
    throw new KernelError('profile_invalid', {
      message: `name: '${name}' cannot be public, since no web address leads to it.`,
      details: { field: 'name' },
    });
  return parsed.data;
}
