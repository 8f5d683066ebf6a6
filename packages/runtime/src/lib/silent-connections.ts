import { dropSilent, limitsOn } from '@boxcar/store';
import type pg from 'pg';
import type { Log } from './log.js';

/** How many checks are made during the time that a connection may wait. */
const LOOKS = 4;

/**
 * Closes the connections of a pool on which the server has not answered for as long as the time limit of a lock. Work that waits
 * on them is retried on another connection. Without this check the silence would go unnoticed for half a minute. The check sends
 * no statement while all connections answer.
 *
 * @returns A function that stops the checks.
 */
export function cutOffSilent(pool: pg.Pool, log: Log): () => void {
  let timer: NodeJS.Timeout;
  let isOver = false;
  const dropSilentOnes = async (): Promise<void> => {
    try {
      const count = await dropSilent(pool, limitsOn(pool).lockMs);
      if (count > 0) log('warn', 'pool.connection_silent', { connections: count });
    } catch (error) {
      // The server is unreachable or busy; the next check asks again.
      log('debug', 'pool.not_asked', { error });
    }
    schedule();
  };
  const schedule = (): void => {
    if (isOver) return;
    timer = setTimeout(() => void dropSilentOnes(), limitsOn(pool).lockMs / LOOKS);
    timer.unref();
  };
  schedule();
  return () => {
    isOver = true;
    clearTimeout(timer);
  };
}
