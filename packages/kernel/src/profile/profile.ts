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

/** Names of worker pools; the empty name is the default pool. */
export const WORKER_TARGET = /^[a-z0-9_-]{0,64}$/;

const TARGET_PROFILES = 'must be a list of names of profiles, null for every profile, or [] for none';

/** Names of MCP servers. They contain no dot, so that a tool's name, `server.tool`, has only one meaning. */
export const SERVER_NAME = /^[a-zA-Z0-9_-]{1,32}$/;

/**
 * The profiles that agents of this profile may reach. Without a policy they may reach no profile; `target_profiles:
 * null` = every profile, `[]` = none.
 */
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
  /**
   * The limit of tokens for one turn: prompts and answers of all its steps. It is also the turn's first share of a
   * budget.
   */
  tokens: z.number().int().positive().max(1e15).optional(),
  /**
   * What happens when a budget above the turn is used up: the turn ends as partial, or waits until the budget is
   * raised.
   */
  on_budget: z.enum(['end', 'pause']).optional(),
  /** The model's window for prompt and answer together. Default: the known window of the model, else 200,000. */
  context_tokens: z.number().int().min(100).max(1e9).optional(),
  /** The share of the window above which an agent that can hand off is reminded to do so; default 0.8. */
  context_reminder: z.number().positive().max(1).optional(),
  // No defaults here: `decideRetry` has them, so that earlier profiles keep their version.
  /** How often a step's model call is tried again. */
  model_retries: z.number().int().min(0).max(100).optional(),
  /** The first pause before a retry; doubled each time, up to `retry_max_seconds`. */
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
      /** False asks the provider for its answer in one piece (docs/reference/models.md). */
      stream: z.boolean().optional(),
    })
    .prefault({}),
  /** The script of the `scripted` model; the adapter checks its content when the profile is applied. */
  script: z.array(jsonValue).optional(),
  /** The tools and primitives that its agents may call, and declarations of queue tools. An empty list allows none. */
  tools: toolsSchema.default([]),
  /** MCP servers, defined by the operator, whose tools its agents may call as `server.tool` (docs/reference/mcp.md). */
  mcp: z
    .array(z.string().regex(SERVER_NAME, 'letters, digits, _ and - only, 32 at most'))
    .refine((names) => new Set(names).size === names.length, 'names a server twice')
    .optional(),
  /** Tools and primitives that may be called again with the same arguments and no new information. */
  repeatable: z.array(name).optional(),
  /** Tools and primitives whose calls wait for the approval of a person (docs/reference/approvals.md). */
  requires_approval: z.array(name).optional(),
  /** True: comma commands in the agent's answers are calls (docs/reference/tape.md). */
  comma_commands: z.boolean().optional(),
  delegation_policy: delegationPolicySchema.optional(),
  /** A turn may end only with a successful call of one of these tools; with an empty list, plain text ends it. */
  must_end_with: z.array(name).default([]),
  tags: z.array(name).default([]),
  /** True: other platforms can call it over A2A, with a key (docs/reference/a2a.md). */
  public: z.boolean().optional(),
  /** The pool of workers that run its turns; empty = the default pool. */
  worker_target: z.string().regex(WORKER_TARGET, 'lower-case letters, digits, - and _ only').default(''),
  limits: profileLimitsSchema.prefault({}),
  /**
   * Where views of its turns begin, or the selector that makes their prompts. A submission or a session can override it
   * (docs/reference/views.md).
   */
  view: z
    .union([
      z.enum(['last_anchor', 'full']),
      z.strictObject({ selector: selectorNameSchema, from: z.enum(['last_anchor', 'full']).optional() }),
    ])
    .optional(),
});
export type Profile = z.infer<typeof profileSchema>;

/** @throws KernelError `profile_invalid` naming every wrong field; `bad_request` for a value that is not JSON. */
export function parseProfile(input: unknown): Profile {
  // The profile's own members keep the order of the schema, so that a comparison of versions shows no moved lines.
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
