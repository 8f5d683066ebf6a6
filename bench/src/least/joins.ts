/** The least floor of a join: the floor's rows, queue and worker, and a parent that learns of the last end through its notice. */
import { setTimeout as delay } from 'node:timers/promises';
import { newId } from '@boxcar/runtime';
import pg from 'pg';
import { Cleanup } from '../cleanup.js';
import { openBell } from '../floor/doorbell.js';
import { insertJoin, readPending } from '../floor/rows.js';
import type { Target } from '../system.js';
import { listenForEnds } from './ended.js';

/** The interval between reads of the rows when no notice arrives, the same as in Boxcar's callers. */
const LOOK_MS = 500;
const PATIENCE_MS = 120_000;

export interface Joins extends AsyncDisposable {
  /** Starts the given number of turns with this prompt, and returns when all have ended. */
  join(children: number, prompt: string): Promise<void>;
}

/** Needs a worker of the floor on the same servers. */
export async function openJoins(target: Target): Promise<Joins> {
  const cleanup = new Cleanup();
  const pool = new pg.Pool({ connectionString: target.databaseUrl, max: 6 });
  cleanup.defer(() => pool.end());
  const bell = openBell({ databaseUrl: target.databaseUrl, redisUrl: target.redisUrl });
  cleanup.defer(() => bell.close());
  const waiting = new Map<string, () => void>();
  const ended = await listenForEnds(target.databaseUrl, (turnIds) => {
    for (const id of turnIds) waiting.get(id)?.();
  });
  cleanup.defer(() => ended.close());
  return {
    join: async (children, prompt) => {
      const id = newId();
      const turns = Array.from({ length: children }, () => ({ id: newId(), promptCardId: newId(), prompt }));
      const told = new Promise<void>((settle) => {
        let left = children;
        for (const turn of turns)
          waiting.set(turn.id, () => {
            left -= 1;
            if (left === 0) settle();
          });
      });
      await insertJoin(pool, { id, turns });
      await bell.ringAll(turns.map((turn) => ({ turn_id: turn.id, epoch: 1 })));
      const deadline = performance.now() + PATIENCE_MS;
      do {
        if (performance.now() > deadline) throw new Error('fanout: the join of the least floor never ended');
        await Promise.race([told, delay(LOOK_MS, undefined, { ref: false })]);
      } while ((await readPending(pool, id)) > 0);
      for (const turn of turns) waiting.delete(turn.id);
    },
    [Symbol.asyncDispose]: () => cleanup[Symbol.asyncDispose](),
  };
}
