/** Shared helpers of the files in `commands/`, each of which exports an `add…(program, run)` function. */
import { findingsOf, safeParse } from '@boxcar/kernel/base';
import { InvalidArgumentError } from 'commander';
import type { z } from 'zod';
import type { Context } from './context.js';
import { wrap } from './text/text.js';

export { EXIT } from './exit.js';
export { collect, notBlank, same } from './input/values.js';

/** Runs a command with its context, and sets the exit code of the process. */
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
 * The end of a command's help: remarks, examples and exit codes, for `addHelpText('after', …)`.
 *
 * @param of.remarks - Paragraphs separated by an empty line; wrapped here.
 * @param of.negative - When the command exits with 3.
 * @param of.error - When the command exits with 1, in addition to errors.
 */
export function helpOf(of: {
  readonly remarks?: string | undefined;
  readonly examples: readonly string[];
  readonly negative?: string;
  readonly error?: string;
  /** Further exit codes, as lines of the help. */
  readonly further?: readonly string[];
}): string {
  const exits = [
    '  0  success',
    `  1  ${of.error === undefined ? '' : `${of.error}, or `}an error, described on stderr`,
    '  2  usage error: an unknown or missing command or option, or a value',
    '     that is not valid',
    ...(of.negative === undefined ? [] : [`  3  ${of.negative}`]),
    ...(of.further ?? []),
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
