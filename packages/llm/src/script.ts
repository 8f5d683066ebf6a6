/**
 * The script of the `scripted` model: a list of steps, one per model call of a turn. This file defines the shape and every check that is
 * possible before a turn runs; `scripted.ts` runs the script.
 *
 * S1  A step defines an answer (`calls`, `say`, both, or `empty`), a failure (`fail`, `overflow`), or first a failure and then the
 *     answer.
 * S2  Every template of a script can be parsed, and reads only results of tools that an earlier step calls.
 * S3  `item` and `index` occur only in the calls of a `forEach`, and in the `$item` of a list element with `$forEach`.
 */
import { isJsonObject, type JsonValue, ROLES } from '@boxcar/kernel';
import { z } from 'zod';
import { exactTemplate, isRepeatedElement, parseTemplates } from './template.js';

const jsonValue = z.custom<JsonValue>((value) => value !== undefined);

const expectSchema = z.strictObject({
  /** The role of the prompt's last message. */
  lastRole: z.enum(ROLES).optional(),
  /** Must (not) occur in the text that is new since this turn's last answer; at step 1, in the whole context. */
  contains: z.string().min(1).optional(),
  notContains: z.string().min(1).optional(),
});

const callSchema = z
  .strictObject({
    /** The provider's id; may repeat. Templates allowed. Default: `call_<step>_<n>`. */
    id: z.string().optional(),
    tool: z.string().min(1),
    /** Templates allowed in every string; a list element `{ $forEach, $item }` is repeated. Default: `{}`. */
    arguments: jsonValue.optional(),
    /** The arguments exactly as this text, which need not be JSON; no templates. */
    raw: z.string().optional(),
  })
  .superRefine((call, context) => {
    if (call.arguments !== undefined && call.raw !== undefined) {
      context.addIssue({ code: 'custom', path: ['raw'], message: 'cannot be combined with arguments' });
    }
  });

const failSchema = z.strictObject({
  /** The HTTP status of the provider; 429 and 5xx can be retried. */
  status: z.number().int().min(400).max(599),
  /** Seconds, as in the HTTP header. */
  retryAfter: z.number().nonnegative().max(86_400).optional(),
  message: z.string().optional(),
  /** Fails while the attempt is at most this number. Default 1. A step without an answer always fails. */
  times: z.number().int().positive().optional(),
});

const usageSchema = z.strictObject({
  inputTokens: z.number().int().nonnegative().optional(),
  outputTokens: z.number().int().nonnegative().optional(),
});

const stepShape = z.strictObject({
  expect: expectSchema.optional(),
  calls: z.array(callSchema).min(1).optional(),
  /** One template that yields a list; `calls` is repeated for each item. An empty list makes an empty answer. */
  forEach: z.string().optional(),
  /** The answer's text, alone or together with calls. Templates allowed. */
  say: z.string().min(1).optional(),
  /** An answer with neither text nor calls. */
  empty: z.literal(true).optional(),
  fail: failSchema.optional(),
  /** The prompt exceeds the window: at the first attempt, or always when the step has no answer. */
  overflow: z.literal(true).optional(),
  delayMs: z.number().int().nonnegative().max(86_400_000).optional(),
  /** The number of pauses that `delayMs` is divided into, and of pieces that the text is streamed in. */
  chunks: z.number().int().min(1).max(10_000).optional(),
  usage: usageSchema.optional(),
  finishReason: z.enum(['stop', 'tool_calls', 'length', 'content_filter', 'other']).optional(),
});
type StepShape = z.infer<typeof stepShape>;

/** True when the step has an answer for the time when it no longer fails. */
export const hasAnswer = (step: StepShape): boolean =>
  step.calls !== undefined || step.say !== undefined || step.empty === true;

interface TemplateText {
  readonly path: readonly (string | number)[];
  readonly text: string;
  readonly isRepeated: boolean;
}

function textsOf(value: JsonValue, path: readonly (string | number)[], isRepeated: boolean): TemplateText[] {
  if (typeof value === 'string') return [{ path, text: value, isRepeated }];
  if (typeof value !== 'object' || value === null) return [];
  if (isRepeatedElement(value))
    return [
      ...textsOf(value.$forEach, [...path, '$forEach'], isRepeated),
      ...textsOf(value.$item, [...path, '$item'], true),
    ];
  const members: readonly (readonly [string | number, JsonValue])[] = isJsonObject(value)
    ? Object.entries(value)
    : [...value.entries()];
  return members.flatMap(([key, member]) => textsOf(member, [...path, key], isRepeated));
}

/** Every text of a step whose templates are filled in. */
function templateTextsOf(step: StepShape): readonly TemplateText[] {
  const isRepeated = step.forEach !== undefined;
  return [
    ...textsOf(step.forEach ?? null, ['forEach'], false),
    ...textsOf(step.say ?? null, ['say'], false),
    ...(step.calls ?? []).flatMap((call, index) => [
      ...textsOf(call.id ?? null, ['calls', index, 'id'], isRepeated),
      ...textsOf(call.arguments ?? null, ['calls', index, 'arguments'], isRepeated),
    ]),
  ];
}

/** One step of a script, checked by itself. */
export const scriptStepSchema = stepShape.superRefine((step, context) => {
  const refuse = (path: readonly (string | number)[], message: string): void => {
    context.addIssue({ code: 'custom', path: [...path], message });
  };
  const answers = hasAnswer(step);
  if (!answers && step.fail === undefined && step.overflow === undefined) {
    refuse([], 'a step needs calls, say, empty, fail or overflow');
  }
  if (step.empty && (step.calls ?? step.say) !== undefined)
    refuse(['empty'], 'cannot be combined with calls or say');
  if (step.fail && step.overflow) refuse(['overflow'], 'cannot be combined with fail');
  if (step.fail?.times !== undefined && !answers) {
    refuse(
      ['fail', 'times'],
      'needs an answer as well, for the later attempts; without it every attempt fails',
    );
  }
  for (const key of ['usage', 'finishReason'] as const) {
    if (step[key] !== undefined && !answers) refuse([key], 'needs an answer as well');
  }
  if (step.forEach !== undefined) {
    if (step.calls === undefined) refuse(['forEach'], 'repeats calls, which are missing');
    if (exactTemplate(step.forEach) === undefined)
      refuse(['forEach'], 'must be one template, such as {{results/x/y}}');
  }
  for (const { path, text, isRepeated } of templateTextsOf(step)) {
    for (const parsed of parseTemplates(text)) {
      if (parsed.outcome === 'refused') {
        refuse(path, parsed.why);
        continue;
      }
      const { root } = parsed.template.pointer;
      if ((root === 'item' || root === 'index') && !isRepeated) {
        refuse(path, `${root} is available only in the calls of a forEach and in a $item`);
      }
    }
  }
});
export type ScriptStep = z.infer<typeof scriptStepSchema>;

/** A whole script: its steps, and the results that each may read from earlier steps (S2). */
export const scriptSchema = z
  .array(scriptStepSchema)
  .min(1, 'a script needs at least one step')
  .superRefine((steps, context) => {
    const called = new Set<string>();
    for (const [index, step] of steps.entries()) {
      for (const { path, text } of templateTextsOf(step)) {
        for (const parsed of parseTemplates(text)) {
          if (parsed.outcome === 'refused' || parsed.template.pointer.root !== 'results') continue;
          const tool = parsed.template.pointer.segments[0] ?? '';
          if (called.has(tool)) continue;
          context.addIssue({
            code: 'custom',
            path: [index, ...path],
            message: `results/${tool}: no earlier step calls ${tool}`,
          });
        }
      }
      for (const call of step.calls ?? []) called.add(call.tool);
    }
  });
