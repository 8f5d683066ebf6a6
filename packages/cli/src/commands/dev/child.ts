/** Runs a boxcar command in a separate process for `boxcar dev`, and delivers its output line by line. */
import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { childEnvironment } from '@boxcar/host/base';

const MAIN = fileURLToPath(
  new URL(import.meta.url.endsWith('.ts') ? '../../main.ts' : '../../main.js', import.meta.url),
);
/** Added to the child's own grace time. */
const KILL_AFTER_MS = 5_000;
/** The shorter time for a child whose result is no longer needed. */
export const GIVEN_UP_MS = 1_000;
/** How long the outputs of a child may stay open after its exit: processes that it started may hold them. */
const LAST_LINES_MS = 1_000;

export interface Child {
  readonly pid: number | undefined;
  readonly exited: Promise<{ readonly code: number | null; readonly signal: NodeJS.Signals | null }>;
  readonly isRunning: boolean;
  /** Asks the child to finish, and kills it when it does not. A child without work in progress can have a short time limit. */
  stop(graceMs: number, killAfterMs?: number): Promise<void>;
}

/**
 * @param options.onLine - Receives each line of its stdout and stderr; JSON where the child writes JSON.
 */
export function startChild(
  args: readonly string[],
  options: {
    readonly env: Readonly<Record<string, string | undefined>>;
    readonly onLine: (from: 'stdout' | 'stderr', line: string) => void;
  },
): Child {
  const child: ChildProcess = spawn(process.execPath, [...process.execArgv, MAIN, ...args], {
    env: childEnvironment(options.env),
    // The IPC channel breaks when this process is killed. A separate process group ensures that Ctrl-C reaches only this process.
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    detached: true,
  });
  let isRunning = true;
  for (const from of ['stdout', 'stderr'] as const) {
    const stream = child[from];
    if (stream !== null) createInterface({ input: stream }).on('line', (line) => options.onLine(from, line));
  }
  const exited = new Promise<{ code: number | null; signal: NodeJS.Signals | null }>((settle) => {
    child.once('error', (error) => {
      isRunning = false;
      options.onLine('stderr', error.message);
      settle({ code: null, signal: null });
    });
    // `close` follows the last line of output.
    child.once('close', (code, signal) => {
      isRunning = false;
      settle({ code, signal });
    });
    child.once('exit', () => {
      setTimeout(() => {
        child.stdout?.destroy();
        child.stderr?.destroy();
      }, LAST_LINES_MS).unref();
    });
  });
  return {
    pid: child.pid,
    exited,
    get isRunning() {
      return isRunning;
    },
    stop: async (graceMs, killAfterMs = KILL_AFTER_MS) => {
      if (!isRunning) return;
      child.kill('SIGTERM');
      const timer = setTimeout(() => child.kill('SIGKILL'), graceMs + killAfterMs);
      await exited;
      clearTimeout(timer);
    },
  };
}
