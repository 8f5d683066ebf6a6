/** Errors in the words of the command line: the flag that was written, in place of the argument that it became. */
import { KernelError } from '@boxcar/kernel';

/** By the name of an argument, or its whole path: the flag. */
export type FlagNames = Readonly<Record<string, string>>;

/** A name or a path, not in quotes: those are words of the caller. */
const PATHS = /(?<![\w.'])\w+(?:\.\w+)*/g;

/** A path without the indexes at its end, where an argument is a list. */
function argumentOf(path: string): string {
  const parts = path.split('.');
  return parts.slice(0, parts.findLastIndex((part) => !/^\d+$/.test(part)) + 1).join('.');
}

const inWords = (text: string, flags: FlagNames): string =>
  text.replaceAll(PATHS, (path) => flags[argumentOf(path)] ?? path);

/** Does the work; an error that names an argument of `flags` names the flag. */
export async function inFlags<T>(flags: FlagNames, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof KernelError)) throw error;
    const message = inWords(error.problem, flags);
    const next = inWords(error.next, flags);
    if (message === error.problem && next === error.next) throw error;
    const { field } = error;
    throw new KernelError(error.code, {
      message,
      next,
      details: { ...error.details, ...(field === undefined ? {} : { field: inWords(field, flags) }) },
      cause: error,
    });
  }
}
