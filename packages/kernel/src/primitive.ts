/** The arguments of the built-in primitives: one schema each for queue, HTTP, CLI, MCP and the tools shown to models. */
import { z } from 'zod';
import { cardInputSchema, fieldsSchema } from './card.js';
import { budgetStrategySchema, budgetTokensSchema, hasBudgetForStrategy, NEEDS_BUDGET } from './handover.js';
import { tryParseId } from './ids.js';
import type { JsonValue } from './json.js';

const text = z.string().refine((value) => value.trim() !== '', 'must not be blank');
const name = z.string().trim().min(1).max(200);
const boxIds = z
  .union([z.string().min(1), z.array(z.string().min(1))])
  .describe('One box id or a list of them.');
const deadlineSeconds = z
  .number()
  .positive()
  .max(30 * 86_400);

const optional = {
  context_box_id: boxIds.optional(),
  result_fields: fieldsSchema
    .optional()
    .describe('What the result must contain: a list of {name, description?, type?, required?}.'),
  wait: z.boolean().optional(),
  deadline_seconds: deadlineSeconds
    .optional()
    .describe('How long to wait at most, in seconds; default 3600.'),
  budget_tokens: budgetTokensSchema.optional().describe('The most tokens the context may have.'),
  budget_strategy: budgetStrategySchema
    .optional()
    .describe(
      'When the context would exceed budget_tokens: error (default), newest, deliverables_only or summary.',
    ),
};

export const delegateAsyncSchema = z
  .strictObject({
    target_strategy: z
      .enum(['new', 'reuse', 'clone'])
      .describe(
        'new: a fresh agent of a profile; reuse: an existing agent; clone: a fresh agent that also sees what an existing one sees.',
      ),
    target_ref: name.describe('new: a profile name; reuse and clone: an agent id or name.'),
    instruction: text,
    ...optional,
    history: z
      .enum(['view', 'full'])
      .optional()
      .describe('clone only: its view since the last anchor (default), or everything.'),
  })
  .refine((input) => input.history === undefined || input.target_strategy === 'clone', {
    path: ['history'],
    message: 'is for target_strategy clone only',
  })
  .refine(hasBudgetForStrategy, NEEDS_BUDGET);
export type DelegateAsync = z.infer<typeof delegateAsyncSchema>;

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

export const submitResultSchema = z.strictObject({
  result: z.custom<JsonValue>((value) => value !== undefined, 'is required'),
});
export type SubmitResult = z.infer<typeof submitResultSchema>;

/** Names stand in tables, logs and prompts, and must not be taken for ids. */
const agentRef = name.refine((value) => !/\p{Cc}/u.test(value), 'must not contain control characters');

export const provisionAgentSchema = z
  .strictObject({
    action: z
      .enum(['ensure', 'create', 'derive'])
      .describe(
        'ensure: the named agent, made when it is missing; create: a fresh agent of a profile; derive: a fresh agent after an existing one.',
      ),
    agent_id: agentRef
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
    derived_from: name.optional().describe('derive only: id or name of the agent to start from.'),
  })
  .superRefine((input, context) => {
    const refuse = (path: string, message: string): void =>
      context.addIssue({ code: 'custom', path: [path], message });
    if (input.action === 'ensure' && input.agent_id === undefined)
      refuse('agent_id', 'is required with action ensure');
    if (input.action === 'create' && input.profile_name === undefined)
      refuse('profile_name', 'is required with action create');
    if (input.action === 'derive' && input.derived_from === undefined)
      refuse('derived_from', 'is required with action derive');
    if (input.action !== 'derive' && input.derived_from !== undefined)
      refuse('derived_from', 'is for action derive only');
    if (input.action !== 'ensure' && input.agent_id !== undefined && tryParseId(input.agent_id) !== undefined)
      refuse('agent_id', 'must be a name here: ids of new agents are made by the kernel');
  });
export type ProvisionAgent = z.infer<typeof provisionAgentSchema>;

export const createBoxSchema = z
  .strictObject({
    // How many, and how large together, is the packer's to say: its limits can be configured.
    cards: z.array(cardInputSchema).optional(),
    card_ids: z.array(z.string().min(1)).optional(),
  })
  .refine(
    (input) => (input.cards?.length ?? 0) + (input.card_ids?.length ?? 0) > 0,
    'give cards or card_ids',
  );
export type CreateBox = z.infer<typeof createBoxSchema>;

export const grantBoxSchema = z.strictObject({
  box_id: z.string().min(1),
  grantee: name.describe('An agent id or name.'),
  mode: z.enum(['read', 'append']).optional(),
  until: z.iso.datetime({ offset: true }).optional(),
});
export type GrantBox = z.infer<typeof grantBoxSchema>;
