/** The exit codes, which scripts can rely on; `helpOf` prints them below every command. */
export const EXIT = {
  success: 0,
  error: 1,
  usage: 2,
  /** The command did its work, and the answer is negative. */
  negative: 3,
  /** Stopped before it was done. The shells' code for SIGINT; the process exits with 143 and 129 for SIGTERM and SIGHUP (`main.ts`). */
  interrupted: 130,
} as const;

/** The time for a process with a bug to hand back the work that it holds. */
export const CRASH_GRACE_MS = 5_000;
