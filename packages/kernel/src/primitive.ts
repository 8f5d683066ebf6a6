/** The arguments of the built-in primitives: one schema each for queue, HTTP, CLI, MCP and the tools shown to models. */
import { z } from 'zod';
import { cardInputSchema, fieldsSchema } from './card.js';
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
  });
export type DelegateAsync = z.infer<typeof delegateAsyncSchema>;

export const launchPrincipalSchema = z.strictObject({ profile_name: name, instruction: text, ...optional });
export type LaunchPrincipal = z.infer<typeof launchPrincipalSchema>;

export const askExpertSchema = z.strictObject({
  expert_profile: name,
  question: text,
  include_history: z.boolean().optional().describe('Also show the expert what the caller sees now.'),
  ...optional,
});
export type AskExpert = z.infer<typeof askExpertSchema>;

export const submitResultSchema = z.strictObject({
  result: z.custom<JsonValue>((value) => value !== undefined, 'is required'),
});
export type SubmitResult = z.infer<typeof submitResultSchema>;

export const createBoxSchema = z
  .strictObject({
    cards: z.array(cardInputSchema).max(10_000).optional(),
    card_ids: z.array(z.string().min(1)).max(10_000).optional(),
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
