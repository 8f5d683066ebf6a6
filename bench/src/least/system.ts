/**
 * The least floor of turns between two processes: the floor's rows, queue and worker, and a caller that sends submissions and rings in
 * batches, as the floor's worker does with its claims.
 */
import { newId } from '@boxcar/runtime';
import pg from 'pg';
import { Cleanup } from '../cleanup.js';
import { batched } from '../floor/batch.js';
import { type FloorJob, openBell } from '../floor/doorbell.js';
import { type FloorTurn, readAnswers } from '../floor/rows.js';
import { ANSWER, PROMPT, type System, type Target } from '../system.js';
import { listenForEnds } from './ended.js';
import { insertTurns } from './rows.js';

const LIMITS = { maxItems: 64, inFlight: 2 };

/**
 * A separate caller for the worker of the floor. It must be open only while it is measured: it receives the notice of every ended turn,
 * which would slow down the floor's own caller.
 */
export async function openLeast(target: Target, floor: System): Promise<System> {
  const cleanup = new Cleanup();
  const pool = new pg.Pool({ connectionString: target.databaseUrl, max: 6, keepAlive: true });
  // The next query reports a connection that was lost while idle.
  pool.on('error', () => undefined);
  cleanup.defer(() => pool.end());
  const bell = openBell({ databaseUrl: target.databaseUrl, redisUrl: target.redisUrl });
  cleanup.defer(() => bell.close());
  const waiting = new Map<string, () => void>();
  const ended = await listenForEnds(target.databaseUrl, (turnIds) => {
    for (const id of turnIds) waiting.get(id)?.();
  });
  cleanup.defer(() => ended.close());

  const submit = batched(async (turns: readonly FloorTurn[]) => {
    await insertTurns(pool, turns);
    return () => undefined;
  }, LIMITS);
  const ring = batched(async (jobs: readonly FloorJob[]) => {
    await bell.ringAll(jobs);
    return () => undefined;
  }, LIMITS);
  const read = batched(
    async (turnIds: readonly string[]) => {
      const answers = await readAnswers(pool, turnIds);
      return (turnId) => answers.get(turnId);
    },
    { maxItems: 64, inFlight: 1 },
  );
  const answer = async (): Promise<void> => {
    const id = newId();
    const isEnded = new Promise<void>((settle) => waiting.set(id, settle));
    await submit({ id, promptCardId: newId(), prompt: PROMPT, joinId: null });
    await ring({ turn_id: id, epoch: 1 });
    await isEnded;
    waiting.delete(id);
    const text = await read(id);
    if (text !== ANSWER) throw new Error(`least floor: turn ${id} answered '${text}'`);
  };
  return {
    name: 'least',
    workerPid: floor.workerPid,
    answer,
    startProfile: () => floor.startProfile(),
    stopProfile: () => floor.stopProfile(),
    [Symbol.asyncDispose]: () => cleanup[Symbol.asyncDispose](),
  };
}
