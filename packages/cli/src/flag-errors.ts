/** Errors in the words of the command line: the flag that was written, in place of the argument that it became. */
import { KernelError } from '@boxcar/kernel';

/** By the name of an argument, or its whole path: the flag. */
export type FlagNames = Readonly<Record<string, string>>;

const toPattern = (text: string): string => text.replaceAll(/[.*+?^${}()|[\]\\]/g, '\\$&');

/** With an index, where an argument is a list. */
function inWords(text: string, flags: FlagNames): string {
  const longestFirst = Object.keys(flags).toSorted((a, b) => b.length - a.length);
  return longestFirst.reduce(
    (words, name) =>
      words.replaceAll(
        new RegExp(`(?<![\\w.'])${toPattern(name)}(\\.\\d+)*(?![\\w.]*\\w)`, 'g'),
        flags[name] ?? name,
      ),
    text,
  );
}

/** Does the work; an error that names an argument of `flags` names the flag. */
export async function inFlags<T>(flags: FlagNames, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof KernelError)) throw error;
    const text = inWords(error.message, flags);
    if (text === error.message) throw error;
    const { field } = error.details;
    // The last sentence is what to do next.
    const end = text.lastIndexOf('. ') + 1;
    throw new KernelError(error.code, {
      message: text.slice(0, end),
      next: text.slice(end + 1),
      details: { ...error.details, ...(typeof field === 'string' ? { field: inWords(field, flags) } : {}) },
      cause: error,
    });
  }
}
