/**
 * A handover: its target profile, the arguments that it packs, and the boxes that it names. Source:
 * docs/reference/packing.md.
 */
import { z } from 'zod';
import {
  type BoxId,
  cutEcho,
  isJsonObject,
  isPlainName,
  type JsonObject,
  type JsonValue,
  jsonObjectSchema,
  KernelError,
  PLAIN_NAME,
  parseJsonValue,
  safeParse,
  toBadRequest,
  tryParseId,
  whenObject,
} from '../base/index.js';
import { CARD_TYPES } from '../card/index.js';

const packRuleSchema = z.object({
  arg_key: z.string().min(1).refine(isPlainName, PLAIN_NAME),
  as_card_type: z.string().trim().min(1).refine(isPlainName, PLAIN_NAME).default(CARD_TYPES.instruction),
  card_metadata: jsonObjectSchema.default({}),
});
export type PackRule = z.infer<typeof packRuleSchema>;

export const budgetTokensSchema = z.number().int().min(1).max(1_000_000_000);
export const budgetStrategySchema = z.string().trim().min(1).max(64);

/** A strategy says how to meet a budget, so it has no effect without a budget. */
export const hasBudgetForStrategy = (input: {
  readonly budget_tokens?: number | undefined;
  readonly budget_strategy?: string | undefined;
}): boolean => input.budget_strategy === undefined || input.budget_tokens !== undefined;
export const NEEDS_BUDGET = {
  path: ['budget_strategy'],
  message: 'needs budget_tokens as well',
  ...whenObject,
};

/**
 * Whether an item is a rule that names its argument. Other items of the list are skipped, as the PMO document requires.
 */
const isRule = (item: unknown): boolean =>
  isJsonObject(item) && item.arg_key !== undefined && item.arg_key !== null && item.arg_key !== '';

const targetSchema = z.object({ profile_name: z.string().optional() });
const inheritSchema = z.object({
  include_boxes_from_args: z.array(z.string().min(1)).optional(),
  include_parent: z.boolean().optional(),
});
const packingSchema = z.object({
  pack_arguments: z
    .preprocess(
      // A skipped item keeps its place, so that an error names a rule by its index in the caller's list.
      (items) => (Array.isArray(items) ? items.map((item) => (isRule(item) ? item : undefined)) : items),
      z.array(packRuleSchema.optional()).transform((rules) => rules.filter((rule) => rule !== undefined)),
    )
    .optional(),
  inherit_context: inheritSchema.optional(),
  /** The most tokens that the box may have, by the stored estimate. */
  budget_tokens: budgetTokensSchema.optional(),
  /** The strategy when the box would exceed the budget; default `error`. */
  budget_strategy: budgetStrategySchema.optional(),
});

/**
 * How a handover packs. The keys are those of the PMO document. Unknown keys are ignored, so that a handler can keep
 * its own settings there.
 */
export const handoverSchema = z.object({
  target_profile_config: targetSchema.optional(),
  context_packing_config: packingSchema.refine(hasBudgetForStrategy, NEEDS_BUDGET).optional(),
});
export type Handover = z.infer<typeof handoverSchema>;
export type HandoverInput = z.input<typeof handoverSchema> & { readonly [setting: string]: unknown };

/** @throws KernelError `bad_request` naming the path inside the handover. */
export function parseHandover(input: unknown): Handover {
  const parsed = safeParse(handoverSchema, parseJsonValue(input, 'handover'));
  if (!parsed.success) throw toBadRequest(parsed.error, 'handover');
  return parsed.data;
}

/** @throws KernelError as `parseHandover`. */
export function assertHandover(input: unknown): asserts input is HandoverInput {
  parseHandover(input);
}

/** A part of a handover that has no effect. */
export interface HandoverNotice {
  readonly field: string;
  readonly message: string;
}

/** The most notices: a handover can have any number of keys. */
const MAX_NOTICES = 100;

function unknownKeys(value: unknown, schema: z.ZodObject, path: string): readonly HandoverNotice[] {
  if (!isJsonObject(value)) return [];
  return Object.keys(value)
    .filter((key) => !Object.hasOwn(schema.shape, key))
    .map((key) => ({
      field: `${path}.${cutEcho(key)}`,
      message: 'is not a key of a handover; it is ignored',
    }));
}

/** Lists the skipped and ignored parts of a handover. They are not errors, but a typing error looks the same. */
export function handoverNotices(input: unknown): readonly HandoverNotice[] {
  if (!isJsonObject(input)) return [];
  const config = input.context_packing_config;
  const { pack_arguments: rules, inherit_context } = isJsonObject(config) ? config : {};
  const at = 'handover.context_packing_config';
  return [
    ...unknownKeys(input, handoverSchema, 'handover'),
    ...unknownKeys(input.target_profile_config, targetSchema, 'handover.target_profile_config'),
    ...unknownKeys(config, packingSchema, at),
    ...(Array.isArray(rules) ? rules : []).flatMap((rule: unknown, index): readonly HandoverNotice[] => {
      const field = `${at}.pack_arguments.${index}`;
      if (isRule(rule)) return unknownKeys(rule, packRuleSchema, field);
      const message = `is ${isJsonObject(rule) ? 'a rule without arg_key' : 'not an object'}; it is skipped`;
      return [{ field, message }];
    }),
    ...unknownKeys(inherit_context, inheritSchema, `${at}.inherit_context`),
  ].slice(0, MAX_NOTICES);
}

/** The target profile of a handover: the argument takes precedence over the configuration; both are trimmed. */
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
 * @throws KernelError `bad_request` for a value that is not a string, a number or a list of these; `not_found` for an
 * id that is not a uuid, since no box can have it.
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

/**
 * The fixed handover of a delegation: instruction, optional result fields, boxes of `input_box_ids`, parent pointer.
 */
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
