/** A handover: whom it targets, what it packs, which boxes it names. Source: docs/packing.md. */
import { z } from 'zod';
import { CARD_TYPES } from './card.js';
import { KernelError } from './errors.js';
import { safeParse, toBadRequest, whenObject } from './findings.js';
import { type BoxId, tryParseId } from './ids.js';
import { isJsonObject, type JsonObject, type JsonValue, jsonObjectSchema, parseJsonValue } from './json.js';
import { isPlainName, PLAIN_NAME } from './names.js';

const packRuleSchema = z.strictObject({
  arg_key: z.string().min(1).refine(isPlainName, PLAIN_NAME),
  as_card_type: z.string().trim().min(1).refine(isPlainName, PLAIN_NAME).default(CARD_TYPES.instruction),
  card_metadata: jsonObjectSchema.default({}),
});
export type PackRule = z.infer<typeof packRuleSchema>;

export const budgetTokensSchema = z.number().int().min(1).max(1_000_000_000);
export const budgetStrategySchema = z.string().trim().min(1).max(64);

/** A strategy is how to meet a budget; without one it would do nothing. */
export const hasBudgetForStrategy = (input: {
  readonly budget_tokens?: number | undefined;
  readonly budget_strategy?: string | undefined;
}): boolean => input.budget_strategy === undefined || input.budget_tokens !== undefined;
export const NEEDS_BUDGET = {
  path: ['budget_strategy'],
  message: 'needs budget_tokens beside it',
  ...whenObject,
};

/** How a handover packs; the keys are those of the PMO document, unknown ones are refused. */
export const handoverSchema = z.strictObject({
  target_profile_config: z.strictObject({ profile_name: z.string().optional() }).optional(),
  context_packing_config: z
    .strictObject({
      /** Items that are no objects are ignored, as the PMO document says. */
      pack_arguments: z
        .preprocess(
          (items) => (Array.isArray(items) ? items.filter(isJsonObject) : items),
          z.array(packRuleSchema),
        )
        .optional(),
      inherit_context: z
        .strictObject({
          include_boxes_from_args: z.array(z.string().min(1)).optional(),
          include_parent: z.boolean().optional(),
        })
        .optional(),
      /** The most tokens, by the stored estimate, that the box may have. */
      budget_tokens: budgetTokensSchema.optional(),
      /** What to do when it would have more; default `error`. */
      budget_strategy: budgetStrategySchema.optional(),
    })
    .refine(hasBudgetForStrategy, NEEDS_BUDGET)
    .optional(),
});
export type Handover = z.infer<typeof handoverSchema>;
export type HandoverInput = z.input<typeof handoverSchema>;

/** @throws KernelError `bad_request` naming the path inside the handover. */
export function parseHandover(input: unknown): Handover {
  const parsed = safeParse(handoverSchema, parseJsonValue(input, 'handover'));
  if (!parsed.success) throw toBadRequest(parsed.error, 'handover');
  return parsed.data;
}

/** The profile a handover targets: the argument wins over the configuration; both are trimmed. */
export function decideTargetProfile(args: JsonObject, handover: Handover): string {
  const { profile_name: fromArguments } = args;
  if (fromArguments !== undefined && fromArguments !== null && typeof fromArguments !== 'string') {
    throw new KernelError('bad_request', {
      message: 'arguments.profile_name: must be a string.',
      details: { field: 'arguments.profile_name' },
    });
  }
  const name = fromArguments?.trim() || handover.target_profile_config?.profile_name?.trim() || '';
  if (name === '') {
    throw new KernelError('bad_request', {
      message:
        'No target profile: give arguments.profile_name or handover.target_profile_config.profile_name.',
      details: { field: 'arguments.profile_name' },
    });
  }
  return name;
}

/** A box that an argument names. */
export interface NamedBox {
  readonly argument: string;
  readonly boxId: BoxId;
}

/**
 * The boxes that the listed arguments name, in order. An absent argument is skipped.
 *
 * @throws KernelError `bad_request` for a value that is no string, number or list of them; `not_found` for an id that is
 * no uuid, since no box can have it.
 */
export function decideNamedBoxes(args: JsonObject, handover: Handover): readonly NamedBox[] {
  const named: NamedBox[] = [];
  for (const argument of handover.context_packing_config?.inherit_context?.include_boxes_from_args ?? []) {
    if (!Object.hasOwn(args, argument)) continue;
    const value = args[argument];
    const items = Array.isArray(value) ? value : [value];
    items.forEach((item: JsonValue | undefined, index) => {
      const field = Array.isArray(value) ? `arguments.${argument}.${index}` : `arguments.${argument}`;
      if (typeof item !== 'string' && typeof item !== 'number') {
        throw new KernelError('bad_request', { message: `${field}: must be a box id.`, details: { field } });
      }
      const boxId = tryParseId<'box'>(String(item));
      if (boxId === undefined) {
        throw new KernelError('not_found', {
          message: `${field}: no box '${String(item).slice(0, 80)}'.`,
          details: { field, box_id: item },
        });
      }
      named.push({ argument, boxId });
    });
  }
  return named;
}

/** The fixed recipe of delegation: instruction, optional result fields, boxes of `input_box_ids`, parent pointer. */
export function instructionHandover(
  profileName: string,
  budget: {
    readonly budget_tokens?: number | undefined;
    readonly budget_strategy?: string | undefined;
  } = {},
): Handover {
  const { budget_tokens, budget_strategy } = budget;
  return {
    target_profile_config: { profile_name: profileName },
    context_packing_config: {
      pack_arguments: [
        { arg_key: 'instruction', as_card_type: CARD_TYPES.instruction, card_metadata: {} },
        { arg_key: 'result_fields', as_card_type: CARD_TYPES.resultFields, card_metadata: {} },
      ],
      inherit_context: { include_boxes_from_args: ['input_box_ids'], include_parent: true },
      ...(budget_tokens === undefined ? {} : { budget_tokens }),
      ...(budget_strategy === undefined ? {} : { budget_strategy }),
    },
  };
}
