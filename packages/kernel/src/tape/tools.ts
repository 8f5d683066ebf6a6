/** The tape tools of models: their arguments, their descriptions, and the texts of their answers. */

import { z } from 'zod';
import { copyKeyOrder, type JsonObject, type JsonValue, jsonObjectSchema, jsonText } from '../base/index.js';
import type { TapeRecord } from './record.js';
import { sessionAddressSchema } from './session-address.js';
import { ENTRY_KINDS } from './tape.js';

const tape = z
  .union([z.string().trim().min(1), sessionAddressSchema])
  .optional()
  .describe('Another tape that you have a grant for, by its name or the id of its box. Default: your own.');

const DEFAULT_HANDOFF = 'handoff';

/** Accepts both generations of Bub's arguments, and a state as people write it in commands. */
export const tapeHandoffSchema = z.strictObject({
  name: z.string().trim().max(4_096).optional(),
  summary: z.string().optional(),
  next_steps: z.string().optional(),
  state: jsonObjectSchema.optional(),
  tape,
});
export type TapeHandoff = z.infer<typeof tapeHandoffSchema>;

/** The exact definition that models see. Source: handoff architecture, 10.3. */
export const TAPE_HANDOFF = {
  name: 'tape.handoff',
  description: 'Create tape anchor with optional summary and next_steps state',
  parameters: {
    type: 'object',
    properties: {
      name: { type: 'string', description: "Anchor name (e.g., 'phase-1')" },
      summary: { type: 'string', description: 'Progress summary' },
      next_steps: { type: 'string', description: 'Next steps to take' },
    },
    required: ['name'],
  },
} as const;

export const tapeAnchorsSchema = z.strictObject({
  limit: z
    .int()
    .min(0)
    .max(500)
    .optional()
    .describe('The number of anchors, counted from the last one; default 20.'),
  before: z
    .int()
    .min(1)
    .max(2 ** 31 - 2)
    .optional()
    .describe(
      'Only anchors before this position. To continue a list, give the position of its first anchor.',
    ),
  tape,
});
export type TapeAnchors = z.infer<typeof tapeAnchorsSchema>;

export const tapeSearchSchema = z.strictObject({
  query: z
    .string()
    .refine((text) => text.trim() !== '', 'must not be blank')
    .describe('The words to search for. Small typing errors in longer words are allowed.'),
  limit: z.int().min(0).max(500).optional().describe('The largest number of matches; default 20.'),
  start: z.string().optional().describe('Only entries from this date or time on, ISO 8601.'),
  end: z.string().optional().describe('Only entries up to this date or time, ISO 8601.'),
  kinds: z
    .array(z.enum(ENTRY_KINDS))
    .optional()
    .describe('The kinds of entries; default message and tool_result.'),
  tape,
});
export type TapeSearchInput = z.infer<typeof tapeSearchSchema>;

export const tapeInfoSchema = z.strictObject({ tape });
export const tapeResetSchema = z.strictObject({ archive: z.boolean().optional() });

/**
 * The anchor that a handoff writes. Its state holds the fields that are not blank; without such a field there is no
 * state.
 */
export function handoffOf(input: TapeHandoff): {
  readonly name: string;
  readonly state: JsonObject | undefined;
} {
  const { summary = '', next_steps: nextSteps = '' } = input;
  const state = {
    ...input.state,
    ...(summary.trim() === '' ? {} : { summary }),
    ...(nextSteps.trim() === '' ? {} : { next_steps: nextSteps }),
  };
  copyKeyOrder(input.state, state);
  const { name = '' } = input;
  return {
    name: name === '' ? DEFAULT_HANDOFF : name,
    state: Object.keys(state).length === 0 ? undefined : state,
  };
}

export const handoffText = (name: string): string => `anchor added: ${name}`;

/** @param earlier - How to list earlier anchors, when the list does not hold all that were requested. */
export function anchorsText(anchors: readonly { readonly name: string }[], earlier?: string): string {
  if (anchors.length === 0) return '(no anchors)';
  return [...(earlier === undefined ? [] : [`… ${earlier}`]), ...anchors.map(({ name }) => `→ ${name}`)].join(
    '\n',
  );
}

/** The most characters of one match: a search should find entries, not repeat them. */
const MAX_MATCH = 4_000;

/** A match as one line for a model. */
export function matchLine({ date, payload }: Pick<TapeRecord, 'date' | 'payload'>): string {
  const text = jsonText(payload);
  const content: JsonValue =
    text.length <= MAX_MATCH ? payload : `${text.slice(0, MAX_MATCH).toWellFormed()} … (cut)`;
  return jsonText({ date, content });
}

/**
 * The answer of a search for a model.
 *
 * @param lines - The matches, each by {@link matchLine}.
 * @param filtered - The number of answers of earlier searches that were left out.
 */
export const searchText = (lines: readonly string[], filtered: number): string =>
  [`[tape.search]: ${lines.length} matches (${filtered} filtered)`, ...lines].join('\n');

export const infoText = (info: Readonly<Record<string, string | number | null>>): string =>
  Object.entries(info)
    .map(([name, value]) => `${name}: ${value ?? 'none'}`)
    .join('\n');
