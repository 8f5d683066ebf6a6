/** A boxcar command in a process of its own, for `boxcar dev`: what it says arrives line by line. */
import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { childEnvironment } from '@boxcar/host/base';

const MAIN = fileURLToPath(
  new URL(import.meta.url.endsWith('.ts') ? '../../main.ts' : '../../main.js', import.meta.url),
);
/** Beyond the patience it has itself. */
const KILL_AFTER_MS = 5_000;
/** The same, for a child that nobody waits for any more. */
export const GIVEN_UP_MS = 1_000;
/** How long its outputs may stay open after its end: what it has started may hold them. */
const LAST_LINES_MS = 1_000;

export interface Child {
  readonly pid: number | undefined;
  readonly exited: Promise<{ readonly code: number | null; readonly signal: NodeJS.Signals | null }>;
  readonly isRunning: boolean;
  /** Asks it to finish, and ends it when it does not. A child with nothing in hand needs no patience. */
  stop(graceMs: number, killAfterMs?: number): Promise<void>;
}

/**
 * @param options.onLine - Each line of its stdout and stderr, as JSON where it is one.
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
    // A channel that breaks when this process is killed; and a group of its own, so that Ctrl-C asks this process alone.
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
    // After its last line.
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
