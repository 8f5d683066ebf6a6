import { createModelRouter } from '@boxcar/llm';
import { type QueueBackend, queueBackends, waitFor } from '@boxcar/testkit';
import type pg from 'pg';
import { describe, expect, test } from 'vitest';
import { silentLog } from '../lib/log.js';
import { BullMqDoorbell, PRIMITIVES_QUEUE } from '../queue/doorbell-bullmq.js';
import { openQueues } from '../queue/queues.js';
import type { TurnResult } from '../queue/turn-result.js';
import { Runtime } from '../runtime.js';
import { testBackend } from '../testing/queue-backend.js';
import { createQueueDoor } from './queue-door.js';

/** A full queue with a cancel at its head, and a door that takes one job at a time after `before` has run. */
async function place(
  kind: QueueBackend,
  before: (pool: pg.Pool) => Promise<unknown> = async () => undefined,
) {
  const backend = await testBackend(kind);
  const queues = openQueues(backend.connection);
  const { pool, url } = backend.database;
  const log: { readonly event: string; readonly name: unknown }[] = [];
  const runtime = new Runtime({
    pool,
    directUrl: url,
    doorbell: new BullMqDoorbell(queues, silentLog),
    model: createModelRouter({}),
    log: (_level, event, fields = {}) => void log.push({ event, name: fields.name }),
  });
  await runtime.applyProfile({
    name: 'writer',
    instructions: 'x',
    model: 'scripted',
    script: [{ say: 'x' }],
  });
  const { turn_id: turnId } = (await runtime.submit('launch_principal', {
    profile_name: 'writer',
    instruction: 'go',
  })) as unknown as TurnResult;
  const queue = backend.queue(PRIMITIVES_QUEUE);
  const project_id = 'default';
  const box = { cards: [{ type: 'note', content: { kind: 'text', text: 'x' } }] };
  const others = await queue.addBulk(
    Array.from({ length: 50 }, () => ({ name: 'create_box', data: { project_id, arguments: box } })),
  );
  const job = await queue.add('cancel', { project_id, arguments: { turn_id: turnId } }, { lifo: true });
  await before(pool);
  const door = createQueueDoor(runtime, queues, { concurrency: 1 });
  /** The times at which the cancel and the other jobs were answered; resolves when all are answered. */
  const answered = async (): Promise<{ readonly cancel: number; readonly others: readonly number[] }> => {
    await waitFor(async () => (await queue.getCompletedCount()) === 51, { message: 'all are answered' });
    const at = async (id: string | undefined): Promise<number> =>
      (await queue.getJob(id ?? ''))?.finishedOn ?? 0;
    const [cancel = 0, ...rest] = await Promise.all([job, ...others].map(({ id }) => at(id)));
    expect(cancel).toBeGreaterThan(0);
    expect((await queue.getJob(job.id ?? ''))?.returnvalue).toMatchObject({ turn_ids: [turnId] });
    return { cancel, others: rest };
  };
  return {
    pool,
    log,
    answered,
    [Symbol.asyncDispose]: async (): Promise<void> => {
      await door.close();
      await runtime.close();
      await queues.close();
      await backend[Symbol.asyncDispose]();
    },
  };
}

describe.each(queueBackends())('a cancel that is put at the front, on %s', (kind) => {
  test('overtakes a full queue', async () => {
    await using p = await place(kind);
    const { cancel, others } = await p.answered();
    expect(others.filter((at) => at < cancel)).toEqual([]);
  });

  test('stays at the front while the database refuses everything for a time', async () => {
    await using p = await place(kind, (pool) =>
      pool.query(`
        create function public.refuse() returns trigger language plpgsql as $$ begin raise exception 'not now' using errcode = '28P01'; end $$;
        create trigger refuse before insert on boxcar.operations for each row execute function public.refuse()`),
    );
    await waitFor(() => p.log.some(({ event, name }) => event === 'door.retry' && name === 'cancel'), {
      message: 'the cancel was refused',
    });
    await p.pool.query('drop trigger refuse on boxcar.operations');
    const { cancel, others } = await p.answered();
    expect(others.filter((at) => at < cancel)).toEqual([]);
  });
});
