import { newId } from '@boxcar/runtime';
import pg from 'pg';
import { Cleanup } from '../cleanup.js';
import { ANSWER, PROMPT, type System, type Target } from '../system.js';
import { forkWorker } from '../worker-process.js';
import { batched } from './batch.js';
import { openBell } from './doorbell.js';
import { ENDED_CHANNEL, insertTurn, readAnswers } from './rows.js';

/** The bare loop, with the caller in this process. */
export async function openFloor(target: Target): Promise<System> {
  const cleanup = new Cleanup();
  const pool = new pg.Pool({ connectionString: target.databaseUrl, max: 6, keepAlive: true });
  // The next query reports a connection that was lost while idle.
  pool.on('error', () => undefined);
  cleanup.defer(() => pool.end());
  const bell = openBell({ databaseUrl: target.databaseUrl, redisUrl: target.redisUrl });
  cleanup.defer(() => bell.close());
  const worker = await forkWorker(new URL('./worker', import.meta.url), target);
  cleanup.defer(() => worker.close());

  const waiting = new Map<string, () => void>();
  const listener = new pg.Client({ connectionString: target.databaseUrl });
  listener.on('error', () => undefined);
  listener.on('notification', ({ payload = '' }) => {
    for (const id of payload.split(',')) waiting.get(id)?.();
  });
  await listener.connect();
  cleanup.defer(() => listener.end());
  await listener.query(`listen ${ENDED_CHANNEL}`);

  const read = batched(
    async (turnIds: readonly string[]) => {
      const answers = await readAnswers(pool, turnIds);
      return (turnId) => answers.get(turnId);
    },
    { maxItems: 64, inFlight: 1 },
  );
  const answer = async (): Promise<void> => {
    const id = newId();
    const ended = new Promise<void>((settle) => waiting.set(id, settle));
    await insertTurn(pool, { id, promptCardId: newId(), prompt: PROMPT, joinId: null });
    await bell.ring({ turn_id: id, epoch: 1 });
    await ended;
    waiting.delete(id);
    const text = await read(id);
    if (text !== ANSWER) throw new Error(`floor turn ${id} answered '${text}'`);
  };
  return {
    name: 'floor',
    workerPid: worker.pid,
    answer,
    startProfile: () => worker.startProfile(),
    stopProfile: () => worker.stopProfile(),
    [Symbol.asyncDispose]: () => cleanup[Symbol.asyncDispose](),
  };
}
