/** What `boxcar doctor` says about one thing. */

/** A word of a command line that can be pasted into a shell. */
export const quoteWord = (word: string): string =>
  /^[\w.-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;

export type Level = 'ok' | 'warn' | 'fail';

export interface Finding {
  readonly check: string;
  readonly level: Level;
  readonly message: string;
  /** What to do; absent when there is nothing to do. */
  readonly next?: string;
  /** Ids involved; a few of them. */
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

/** The worst of them, as the answer to all. */
export const worstOf = (findings: readonly Finding[]): Level =>
  findings.some(({ level }) => level === 'fail')
    ? 'fail'
    : findings.some(({ level }) => level === 'warn')
      ? 'warn'
      : 'ok';
