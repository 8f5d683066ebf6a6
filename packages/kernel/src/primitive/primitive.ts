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
  result_fields: fieldsSchema.optional().describe('Required result fields.'),
  wait: z.boolean().optional(),
  deadline_seconds: deadlineSeconds.optional().describe('The longest wait, in seconds; default 3600.'),
  budget: budgetSchema.optional().describe('Limits of this turn and below.'),
  priority: prioritySchema.optional().describe('Higher starts sooner.'),
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

const view = turnViewSchema.optional().describe('View start; default last_anchor.');

const target = {
  target_strategy: z
    .enum(['new', 'reuse', 'clone'])
    .describe('new: a new agent of a profile; reuse: an agent; clone: a copy with its view.'),
  target_ref: z.union([name, sessionRefSchema]).describe("new: a profile; else an agent's id or name."),
  instruction: text,
  history: z.enum(['view', 'full']).optional().describe('clone: view (default) or full tape.'),
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
    warm_cache: z.boolean().optional().describe('Start one first, to fill the prompt cache.'),
    fail_fast: z.boolean().optional().describe('Cancel the rest when one fails.'),
    min_success: z.int().positive().optional().describe('Enough successes cancel the rest.'),
    deadline_seconds: deadlineSeconds.optional().describe('Then cancel the rest; default 3600 with wait.'),
    budget: budgetSchema
      .optional()
      .describe(
        'Only for callers outside of a turn: limits of the run, that is of all tasks together. Each task can also have its own limits.',
      ),
    priority: prioritySchema.optional().describe('For tasks without one.'),
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
      .describe('Ids of turns, from their receipts. The turns may have ended.'),
    batch_id: z
      .string()
      .min(1)
      .optional()
      .describe('Instead of turn_ids: the batch_id of an earlier fork_join, for all its turns.'),
    deadline_seconds: deadlineSeconds
      .optional()
      .describe('The longest wait, in seconds; default 3600. Turns that have not ended by then continue.'),
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
    include_history: z.boolean().optional().describe('true: the expert also sees what the caller sees now.'),
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
        'The id or name of an agent, or the name of a profile, of which a new agent is made. Prefix agent: or profile: if both have the name.',
      ),
    reason: text.describe('The reason for the handoff.'),
    summary: text.describe('The work that is done, and the findings so far.'),
    tape_ref: text
      .optional()
      .describe(
        'The position to continue from: tape://{workspace}/{tape}/entry/{id} or tape://{workspace}/{tape}/anchor/{name}. Default: the end of your own tape.',
      ),
    intention: z
      .strictObject({
        next_steps: text.describe('The next steps: the instruction for the target.'),
        context_summary: text.optional().describe('The background that the target needs.'),
      })
      .optional(),
    view,
    ownership: z
      .enum(OWNERSHIPS)
      .optional()
      .describe(
        'share (default): the target may read the tape up to that position. transfer: the target may also read later entries and append, and you can no longer append.',
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
      'ensure: the named agent, which is made if it does not exist; create: a new agent of a profile; derive: a new agent from an existing one.',
    ),
    agent_id: z
      .union([agentRef, sessionAddressSchema])
      .optional()
      .describe(
        'ensure: id or name of the agent. create, derive: a name for the new agent, unique in the project.',
      ),
    profile_name: name
      .optional()
      .describe('The profile of the agent. derive: default is the profile of derived_from.'),
    profile_version: z
      .union([z.literal('current'), z.int().positive().max(2_147_483_647)])
      .optional()
      .describe(
        "The version of the profile: 'current' or a number. With ensure, an existing agent moves to that version; without this argument it keeps its own.",
      ),
    derived_from: z
      .union([name, sessionAddressSchema])
      .optional()
      .describe('derive only: id or name of the existing agent.'),
    shared: z
      .boolean()
      .optional()
      .describe(
        'true: every agent whose delegation policy allows its profile may give it turns. Otherwise only its maker and the agents that may append to its tape. With ensure, an existing agent is changed, too.',
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
  target: z.string().min(1).describe('The id of a run or turn. The budget that limits it is raised.'),
  budget: budgetSchema.describe('The new limits: totals, not additions. Each must be above the old one.'),
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
  grantee: z.union([name, sessionAddressSchema]).describe('The id or name of an agent.'),
  mode: z.enum(['read', 'append']).optional(),
  until: z.iso.datetime({ offset: true }).optional(),
});
export type GrantBox = z.infer<typeof grantBoxSchema>;

export const cancelSchema = z
  .strictObject({
    turn_id: z.string().trim().min(1).optional().describe('The turn to cancel, with all turns below it.'),
    run_id: z.string().trim().min(1).optional().describe('The run to cancel, with all its turns.'),
    reason: z
      .string()
      .max(2_000)
      .refine((value) => value.trim() !== '', 'must not be blank')
      .optional()
      .describe('The reason. The turn that waits for this one sees it.'),
  })
  .refine((input) => (input.turn_id === undefined) !== (input.run_id === undefined), {
    path: ['turn_id'],
    message: 'give either turn_id or run_id',
    ...whenObject,
  });
export type Cancel = z.infer<typeof cancelSchema>;
