/** Rewords errors for the command line: they name the flag that the user wrote, not the argument that it became. */
import { KernelError } from '@boxcar/kernel';

/** The flag, by the name or the whole path of an argument. */
export type FlagNames = Readonly<Record<string, string>>;

/** A name or a path that is not in quotes; quoted text comes from the caller. */
const PATHS = /(?<![\w.'])\w+(?:\.\w+)*/g;

/** A path without trailing indexes, for an argument that is a list. */
function argumentOf(path: string): string {
  const parts = path.split('.');
  return parts.slice(0, parts.findLastIndex((part) => !/^\d+$/.test(part)) + 1).join('.');
}

const inWords = (text: string, flags: FlagNames): string =>
  text.replaceAll(PATHS, (path) => flags[argumentOf(path)] ?? path);

/** Runs the work; an error that names an argument in `flags` then names the flag. */
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
