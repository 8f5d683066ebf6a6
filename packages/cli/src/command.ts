/** What the files in `commands/` share to put themselves on the program: `add…(program, run)` each. */
import { findingsOf, safeParse } from '@boxcar/kernel/base';
import { InvalidArgumentError } from 'commander';
import type { z } from 'zod';
import type { Context } from './context.js';
import { wrap } from './text/text.js';

export { EXIT } from './exit.js';
export { collect, notBlank, same } from './input/values.js';

/** Hands a command its context, and its exit code to the process. */
export type Run = (command: (context: Context) => Promise<number>) => Promise<void>;

/** A flag that follows the same rule as the setting it overrides. */
export const flag =
  <T>(schema: z.ZodType<T, string>) =>
  (text: string): T => {
    const parsed = safeParse(schema, text);
    if (parsed.success) return parsed.data;
    throw new InvalidArgumentError(`It ${findingsOf(parsed.error)[0]?.message ?? 'is not valid'}.`);
  };

/**
 * The end of a command's help: remarks, examples and exit codes, to be handed to `addHelpText('after', …)`.
 *
 * @param of.remarks - Paragraphs with an empty line in between; wrapped here.
 * @param of.negative - When it exits 3.
 * @param of.error - When it exits 1, beside an error.
 */
export function helpOf(of: {
  readonly remarks?: string | undefined;
  readonly examples: readonly string[];
  readonly negative?: string;
  readonly error?: string;
}): string {
  const exits = [
    '  0  success',
    `  1  ${of.error === undefined ? '' : `${of.error}, or `}an error; stderr says which`,
    '  2  wrong usage',
    ...(of.negative === undefined ? [] : [`  3  ${of.negative}`]),
  ];
  return [
    ...(of.remarks?.split('\n\n').flatMap((paragraph) => ['', ...wrap(paragraph, 80)]) ?? []),
    '',
    'Examples:',
    ...of.examples.map((line) => `  ${line}`),
    '',
    'Exit codes:',
    ...exits,
  ].join('\n');
}
