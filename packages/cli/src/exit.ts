/** What scripts can rely on; `helpOf` prints it below every command. */
export const EXIT = {
  success: 0,
  error: 1,
  usage: 2,
  /** The command did its work, and the answer is no. */
  negative: 3,
  /** Stopped before it was done. As shells say it for SIGINT; the process says 143 and 129 for SIGTERM and SIGHUP (`main.ts`). */
  interrupted: 130,
} as const;

/** How long a process that met a bug may take to hand back what it holds. */
export const CRASH_GRACE_MS = 5_000;
