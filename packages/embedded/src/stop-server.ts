/** Stops the server process, as gently as it allows. */
import { setTimeout as delay } from 'node:timers/promises';
import { codeOf, isAlive } from './process.js';

export const STOP_DEADLINE_MS = 20_000;

export async function stopServer(pid: number): Promise<void> {
  // First a fast shutdown; then one without the last checkpoint, which the next start repairs; then by force, with the same repair.
  for (const [signal, patienceMs] of [
    ['SIGINT', STOP_DEADLINE_MS],
    ['SIGQUIT', 3_000],
    ['SIGKILL', 3_000],
  ] as const) {
    if (!signalServer(pid, signal)) return;
    const deadline = Date.now() + patienceMs;
    while (Date.now() < deadline) {
      if (!isAlive(pid)) return;
      await delay(10);
    }
  }
}

/** The same inside an exit handler, where the process can only block. The wait is short, so that a joining process finds a clear state. */
export function stopServerNow(pid: number, signal: NodeJS.Signals): void {
  if (!signalServer(pid, signal)) return;
  const clock = new Int32Array(new SharedArrayBuffer(4));
  const deadline = Date.now() + 3_000;
  while (Date.now() < deadline && isAlive(pid)) Atomics.wait(clock, 0, 0, 10);
}

function signalServer(pid: number, signal: NodeJS.Signals): boolean {
  try {
    process.kill(pid, signal);
    return true;
  } catch (error) {
    if (codeOf(error) === 'ESRCH') return false;
    throw error;
  }
}
