/** One result of a check of `boxcar doctor`. */

/** A word of a command line that can be pasted into a shell. */
export const quoteWord = (word: string): string =>
  /^[\w.-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;

export type Level = 'ok' | 'warn' | 'fail';

export interface Finding {
  readonly check: string;
  readonly level: Level;
  readonly message: string;
  /** The recommended action; absent when none is needed. */
  readonly next?: string;
  /** Some of the ids involved. */
  readonly ids?: readonly string[];
}

export const ok = (check: string, message: string): Finding => ({ check, level: 'ok', message });
export const warn = (check: string, message: string, next: string, ids?: readonly string[]): Finding => ({
  check,
  level: 'warn',
  message,
  next,
  ...(ids === undefined || ids.length === 0 ? {} : { ids }),
});
export const fail = (check: string, message: string, next: string, ids?: readonly string[]): Finding => ({
  ...warn(check, message, next, ids),
  level: 'fail',
});

/** The worst level, as the overall result. */
export const worstOf = (findings: readonly Finding[]): Level =>
  findings.some(({ level }) => level === 'fail')
    ? 'fail'
    : findings.some(({ level }) => level === 'warn')
      ? 'warn'
      : 'ok';
