/**
 * The arguments of the built-in primitives. Each primitive has a single schema, which every door checks: library,
 * queue, command line and calls of models. Models see a shorter form (`briefSchema`).
 */
import { z } from 'zod';
import type { JsonValue } from '../base/index.js';
import { MAX_ANCHOR_NAME, nameSchema, selectorNameSchema, tryParseId, whenObject } from '../base/index.js';
import { budgetSchema } from '../budget/index.js';
import { cardInputSchema, fieldsSchema } from '../card/index.js';
import {
  budgetStrategySchema,
  budgetTokensSchema,
  hasBudgetForStrategy,
  NEEDS_BUDGET,
} from '../packing/index.js';
import { FOR_PROGRAMS } from '../schema/index.js';
import { sessionAddressSchema, sessionRefSchema } from '../tape/index.js';

const text = z.string().refine((value) => value.trim() !== '', 'must not be blank');
const name = z.string().normalize('NFC').trim().min(1).max(200);
const boxIds = z.union([z.string().min(1), z.array(z.string().min(1))]).describe('One or a list.');
const deadlineSeconds = z
  .number()
  .positive()
  .max(30 * 86_400);

const prioritySchema = z.int().min(-100).max(100);

const optional = {
  context_box_id: boxIds.optional(),
  result_fields: fieldsSchema.optional().describe('What the result must have.'),
  wait: z.boolean().optional(),
  deadline_seconds: deadlineSeconds.optional().describe('How long to wait at most; default 3600.'),
  budget: budgetSchema.optional().describe('Limits of this turn and below.'),
  priority: prioritySchema.optional().describe('-100 to 100; higher starts sooner.'),
  budget_tokens: budgetTokensSchema.optional().describe('Limit of the context.'),
  budget_strategy: budgetStrategySchema
    .optional()
    .describe('error (default), newest, deliverables_only or summary.'),
};

/** Where the view of a turn begins. Rule: docs/reference/views.md, "Where a view begins". */
const viewStartSchema = z.union([
  z.enum(['last_anchor', 'full']),
  z.strictObject({ anchor: z.string().min(1).max(MAX_ANCHOR_NAME) }),
]);
export type TurnViewStart = z.infer<typeof viewStartSchema>;

/**
 * The start of a view, or a selector and the start of the view that it receives. Rule: docs/reference/views.md,
 * "Selectors".
 */
export const turnViewSchema = z.union([
  ...viewStartSchema.options,
  z
    .strictObject({ selector: selectorNameSchema, from: viewStartSchema.optional() })
    .meta({ [FOR_PROGRAMS]: true }),
]);
export type TurnView = z.infer<typeof turnViewSchema>;

const isSelector = (view: TurnView | undefined): view is Extract<TurnView, { readonly selector: string }> =>
  typeof view === 'object' && 'selector' in view;

/** The start of a view, if it is given. */
export const startOfView = (view: TurnView | undefined): TurnViewStart | undefined =>
  isSelector(view) ? view.from : view;

/** The name of the selector that makes the prompts; null without a selector. */
export const selectorOfView = (view: TurnView | undefined): string | null =>
  isSelector(view) ? view.selector : null;

const view = turnViewSchema.optional().describe('Where its view begins (last_anchor).');

const target = {
  target_strategy: z
    .enum(['new', 'reuse', 'clone'])
    .describe('new: a fresh agent of a profile; reuse: an agent; clone: a fresh one that sees what it sees.'),
  target_ref: z.union([name, sessionRefSchema]).describe("new: a profile; else an agent's id or name."),
  instruction: text,
  history: z.enum(['view', 'full']).optional().describe('clone: its view (default) or all.'),
  view,
};

const fitsHistory = (input: { readonly history?: unknown; readonly target_strategy: string }): boolean =>
  input.history === undefined || input.target_strategy === 'clone';
const fitsSession = (input: { readonly target_ref?: unknown; readonly target_strategy: string }): boolean =>
  typeof input.target_ref === 'string' || input.target_strategy !== 'new';
const NAMES_PROFILE = {
  path: ['target_ref'],
  message: 'is the name of a profile with target_strategy new; a session is for reuse and clone',
  ...whenObject,
};
const NEEDS_CLONE = {
  path: ['history'],
  message: 'is for target_strategy clone only',
  ...whenObject,
};

export const delegateAsyncSchema = z
  .strictObject({ ...target, ...optional })
  .refine(fitsHistory, NEEDS_CLONE)
  .refine(fitsSession, NAMES_PROFILE)
  .refine(hasBudgetForStrategy, NEEDS_BUDGET);
export type DelegateAsync = z.infer<typeof delegateAsyncSchema>;

const { wait: _wait, deadline_seconds: _deadline, ...perTask } = optional;

/** The highest `max_fan_out` that a project can allow; the project's own limit is checked later. */
const MAX_MEMBERS = 20_000;

export const forkJoinSchema = z
  .strictObject({
    tasks: z
      .array(
        z
          .strictObject({ ...target, ...perTask })
          .refine(fitsHistory, NEEDS_CLONE)
          .refine(fitsSession, NAMES_PROFILE)
          .refine(hasBudgetForStrategy, NEEDS_BUDGET),
      )
      .min(1)
      .max(MAX_MEMBERS),
    wait: z.boolean().optional().describe('false: a receipt; collect later.'),
    warm_cache: z.boolean().optional().describe('Start one first; others use its prompt cache.'),
    fail_fast: z.boolean().optional().describe('End the rest when one fails.'),
    min_success: z.int().positive().optional().describe('Enough successes end the rest.'),
    deadline_seconds: deadlineSeconds.optional().describe('Ends the rest; default 3600 when waiting.'),
    budget: budgetSchema
      .optional()
      .describe(
        'From outside only: what the run, that is all tasks together, may use. Each task can have its own.',
      ),
    priority: prioritySchema.optional().describe('Of tasks without one.'),
  })
  .superRefine((input, context) => {
    const { tasks, min_success } = input;
    // `tasks` may have a wrong type here, which is a separate finding.
    if (Array.isArray(tasks) && min_success !== undefined && min_success > tasks.length)
      context.addIssue({
        code: 'custom',
        path: ['min_success'],
        message: `is more than the number of tasks (${tasks.length})`,
      });
  }, whenObject);
export type ForkJoin = z.infer<typeof forkJoinSchema>;

export const collectSchema = z
  .strictObject({
    turn_ids: z
      .array(z.string().min(1))
      .min(1)
      .max(MAX_MEMBERS)
      .optional()
      .describe('Turns that were started before, from their receipts; they may have ended.'),
    batch_id: z.string().min(1).optional().describe('Or all turns of an earlier fork_join.'),
    deadline_seconds: deadlineSeconds
      .optional()
      .describe('How long to wait at most, in seconds; default 3600. Turns that have not ended go on.'),
  })
  .refine((input) => (input.turn_ids === undefined) !== (input.batch_id === undefined), {
    path: ['turn_ids'],
    message: 'give turn_ids or batch_id, one of them',
    ...whenObject,
  });
export type Collect = z.infer<typeof collectSchema>;

export const launchPrincipalSchema = z
  .strictObject({ profile_name: name, instruction: text, ...optional })
  .refine(hasBudgetForStrategy, NEEDS_BUDGET);
export type LaunchPrincipal = z.infer<typeof launchPrincipalSchema>;

export const askExpertSchema = z
  .strictObject({
    expert_profile: name,
    question: text,
    include_history: z.boolean().optional().describe('Also show the expert what the caller sees now.'),
    ...optional,
  })
  .refine(hasBudgetForStrategy, NEEDS_BUDGET);
export type AskExpert = z.infer<typeof askExpertSchema>;

/** How much of the tape a handoff gives to the target. Rule: docs/reference/tape.md, "Handoffs to other agents". */
const OWNERSHIPS = ['share', 'transfer'] as const;

const { context_box_id: _contextBoxId, result_fields: _resultFields, ...perHandoff } = optional;

export const contextHandoffSchema = z
  .strictObject({
    target_ref: z
      .union([name, sessionRefSchema])
      .describe(
        'An agent id or name, else the name of a profile, of which a fresh agent is made; agent: or profile: in front says which.',
      ),
    reason: text.describe('Why it is handed over.'),
    summary: text.describe('What has been done or found so far.'),
    tape_ref: text
      .optional()
      .describe(
        'The place to go on from: tape://{workspace}/{tape}/entry/{id} or tape://{workspace}/{tape}/anchor/{name}. Default: your own tape up to now.',
      ),
    intention: z
      .strictObject({
        next_steps: text.describe('What is to be done next: the instruction of the target.'),
        context_summary: text.optional().describe('What to know for it.'),
      })
      .optional(),
    view,
    ownership: z
      .enum(OWNERSHIPS)
      .optional()
      .describe(
        'share (default): the target may read the tape up to that place. transfer: it may read on and append, and you no longer append.',
      ),
    ...perHandoff,
  })
  .refine(hasBudgetForStrategy, NEEDS_BUDGET);
export type ContextHandoff = z.infer<typeof contextHandoffSchema>;

export const submitResultSchema = z.strictObject({
  result: z.custom<JsonValue>((value) => value !== undefined, 'is required'),
});
export type SubmitResult = z.infer<typeof submitResultSchema>;

/** Names appear in tables, logs and prompts, and must not be mistaken for ids. */
const agentRef = nameSchema;

const provisionAction = z.enum(['ensure', 'create', 'derive']);

export const provisionAgentSchema = z
  .strictObject({
    action: provisionAction.describe(
      'ensure: the named agent, made when it is missing; create: a fresh agent of a profile; derive: a fresh agent after an existing one.',
    ),
    agent_id: z
      .union([agentRef, sessionAddressSchema])
      .optional()
      .describe('ensure: id or name of the agent. create, derive: a name for it, unique in the project.'),
    profile_name: name
      .optional()
      .describe('The profile of the agent. derive: the profile of derived_from when not given.'),
    profile_version: z
      .union([z.literal('current'), z.int().positive().max(2_147_483_647)])
      .optional()
      .describe(
        "The version of the profile: 'current' or a number. With ensure it also moves an existing agent to that version; without it the agent keeps its own.",
      ),
    derived_from: z
      .union([name, sessionAddressSchema])
      .optional()
      .describe('derive only: id or name of the agent to start from.'),
    shared: z
      .boolean()
      .optional()
      .describe(
        'true: every agent whose delegation policy reaches its profile may give it turns. Otherwise only who made it and who may append to its tape. With ensure it also changes an existing agent.',
      ),
  })
  .superRefine((input, context) => {
    const refuse = (path: string, message: string): void =>
      context.addIssue({ code: 'custom', path: [path], message });
    if (!provisionAction.safeParse(input.action).success) return;
    if (input.action === 'ensure' && input.agent_id === undefined)
      refuse('agent_id', 'is required with action ensure');
    if (input.action === 'create' && input.profile_name === undefined)
      refuse('profile_name', 'is required with action create');
    if (input.action === 'derive' && input.derived_from === undefined)
      refuse('derived_from', 'is required with action derive');
    if (input.action !== 'derive' && input.derived_from !== undefined)
      refuse('derived_from', 'is for action derive only');
    if (input.action !== 'ensure' && typeof input.agent_id === 'object')
      refuse('agent_id', 'is a session with action ensure only; it makes the agent of the session');
    if (input.action !== 'ensure' && typeof input.agent_id === 'string' && tryParseId(input.agent_id))
      refuse('agent_id', 'must be a name here: ids of new agents are made by the kernel');
  }, whenObject);
export type ProvisionAgent = z.infer<typeof provisionAgentSchema>;

export const raiseBudgetSchema = z.strictObject({
  target: z.string().min(1).describe('Id of a run, or of a turn: the account that governs it is raised.'),
  budget: budgetSchema.describe(
    'The new limits, in all and not in addition; each must be above the old one.',
  ),
});
export type RaiseBudget = z.infer<typeof raiseBudgetSchema>;

/** The list may have a wrong type here, which is a separate finding. */
const isGiven = (list: unknown): boolean =>
  Array.isArray(list) ? list.length > 0 : list !== undefined && list !== null;

export const createBoxSchema = z
  .strictObject({
    // The packer limits the number of cards and their total size, because its limits can be configured.
    cards: z.array(cardInputSchema).optional(),
    card_ids: z.array(z.string().min(1)).optional(),
  })
  .refine(({ cards, card_ids: ids }) => isGiven(cards) || isGiven(ids), {
    message: 'give cards or card_ids',
    ...whenObject,
  });
export type CreateBox = z.infer<typeof createBoxSchema>;

export const grantBoxSchema = z.strictObject({
  box_id: z.union([z.string().min(1), sessionAddressSchema]),
  grantee: z.union([name, sessionAddressSchema]).describe('An agent id or name.'),
  mode: z.enum(['read', 'append']).optional(),
  until: z.iso.datetime({ offset: true }).optional(),
});
export type GrantBox = z.infer<typeof grantBoxSchema>;

export const cancelSchema = z
  .strictObject({
    turn_id: z.string().trim().min(1).optional().describe('The turn to end, with every turn below it.'),
    run_id: z.string().trim().min(1).optional().describe('The run to end: all of its turns.'),
    reason: z
      .string()
      .max(2_000)
      .refine((value) => value.trim() !== '', 'must not be blank')
      .optional()
      .describe('Why; shown to whoever waits for the turn.'),
  })
  .refine((input) => (input.turn_id === undefined) !== (input.run_id === undefined), {
    path: ['turn_id'],
    message: 'give either turn_id or run_id',
    ...whenObject,
  });
export type Cancel = z.infer<typeof cancelSchema>;
