/** Structured settings of a project, given as YAML or JSON, inline or in a file. */
import { errorText, KernelError, type ProjectLimits } from '@boxcar/kernel';
import { parse } from 'yaml';
import { countOf } from '../text/text.js';
import { readInput } from './read-input.js';
import { usage } from './usage.js';

const refused = (field: string, message: string, cause: unknown): KernelError =>
  new KernelError('bad_request', { message: `${field}: ${message}`, details: { field }, cause });

/**
 * @param text - The value itself, `@` and a file, or `none`, which removes the setting.
 * @returns The parsed value, not yet validated; undefined for `none`.
 * @throws KernelError `bad_request` when the file does not exist, or is neither YAML nor JSON.
 */
export async function readSetting(text: string, field: string): Promise<unknown> {
  if (text === 'none') return undefined;
  const isFile = text.startsWith('@');
  const words = isFile
    ? await readInput(text.slice(1)).then(
        (bytes) => bytes.toString('utf8'),
        (error: unknown) => {
          throw refused(field, errorText(error), error);
        },
      )
    : text;
  try {
    return parse(words) as unknown;
  } catch (error) {
    const unread = refused(field, `is neither YAML nor JSON: ${errorText(error).split('\n', 1)[0]}`, error);
    throw isFile ? unread : usage(unread);
  }
}

/** One line for all limits; only the number of prices is shown. */
export const describeLimits = ({ run_budget, prices, ...limits }: ProjectLimits): string =>
  [
    ...Object.entries(limits).map(([name, value]) => `${name}=${JSON.stringify(value)}`),
    ...(run_budget === undefined ? [] : [`run_budget=${JSON.stringify(run_budget)}`]),
    ...(prices === undefined ? [] : [`prices=${countOf(Object.keys(prices).length, 'model')}`]),
  ].join(' ');
