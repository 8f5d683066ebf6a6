import { createModelRouter } from '@boxcar/llm';
import { queueBackends, tcpProxy, waitFor } from '@boxcar/testkit';
import { expect, test } from 'vitest';
import { HandoffTool } from '../handoff/handoff-tool.js';
import { openRuntime } from '../open.js';
import { checkInvariants } from '../testing/invariants.js';
import { type TestBackend, testBackend } from '../testing/queue-backend.js';
import { createWorker } from './worker.js';

/** A process that carries out handoffs to `slow`, which answers only after `letGo`. */
function openProcess(backend: TestBackend, directUrl?: string) {
  const log: string[] = [];
  const opened = openRuntime({
    ...backend.urls,
    ...(directUrl === undefined ? {} : { directUrl }),
    model: createModelRouter({}),
    handoffs: { enabled: true },
    log: (_level, event, fields) => void log.push(`${event} ${JSON.stringify(fields)}`),
  });
  const tool = new HandoffTool({ runtime: opened.runtime, concurrency: 0 });
  const begun: number[] = [];
  let letGo = (): void => undefined;
  const isLetGo = new Promise<void>((settle) => {
    letGo = settle;
  });
  tool.registerAgent('slow', async () => {
    begun.push(1);
    await isLetGo;
    return 'done';
  });
  const untilLogged = (event: string, id: string) =>
    waitFor(() => log.some((line) => line.startsWith(event) && line.includes(id)), {
      message: `${event} ${id}`,
    });
  return { opened, runtime: opened.runtime, tool, begun, letGo: () => letGo(), untilLogged };
}

test.each(
  queueBackends().flatMap((kind) => [
    { kind, concurrency: 1, waiting: 1, fault: 'its direct connection is silent' },
    { kind, concurrency: 3, waiting: 6, fault: 'its lease has ended' },
  ]),
)(
  'on $kind, $waiting turns that are taken from a worker with $concurrency slots while they wait for another turn do not keep its slots when $fault',
  async ({ kind, concurrency, waiting, fault }) => {
    await using backend = await testBackend(kind);
    await using proxy = await tcpProxy(backend.database.url);
    const { pool } = backend.database;
    const leader = openProcess(backend);
    const own = openProcess(backend, proxy.url);
    await own.runtime.applyProfile({
      name: 'quick',
      instructions: 'Answer.',
      model: 'scripted',
      script: [{ say: 'quick' }],
    });
    // Equal handoffs with a cache: the first is carried out, and the others wait for its result.
    const ask = () =>
      leader.tool.handoff({
        source_agent: 'main',
        target_agent: 'slow',
        task: 'x',
        payload: 1,
        cache: { ttl_seconds: 60 },
        wait: false,
      });
    const peer = await createWorker(leader.runtime, { concurrency: 1, sweepMs: 100, lostRingMs: 300 });
    await ask();
    await waitFor(() => leader.begun.length === 1, { message: 'the first handoff is carried out' });
    const worker = await createWorker(own.runtime, { concurrency, sweepMs: 3_600_000 });
    for (let n = 0; n < waiting; n += 1) await ask();
    const waits = await waitFor(
      async () => {
        const { rows } = await pool.query<{ id: string }>(
          "select id from boxcar.turns where status = 'running' and holder_id = $1",
          [worker.id],
        );
        return rows.length === waiting ? rows : undefined;
      },
      { message: 'the other handoffs wait for the first' },
    );
    const { id: workerId } = worker;
    if (fault === 'its lease has ended')
      await pool.query('update boxcar.workers set lease_until = now(), locked_at = null where id = $1', [
        workerId,
      ]);
    else {
      proxy.stallOpen();
      await pool.query(
        `select pg_terminate_backend(l.pid) from pg_locks l join boxcar.workers w
         on l.locktype = 'advisory' and (l.classid::bigint << 32) + l.objid::bigint = w.lock_key
       where w.id = $1 and l.granted
         and l.database = (select d.oid from pg_database d where d.datname = current_database())`,
        [workerId],
      );
    }
    // Rings of the next epoch take the slots, and wait for the ends of the older runs.
    for (const { id } of waits) await leader.untilLogged('sweep.taken_over', id);
    for (const { id } of waits) await own.untilLogged('turn.interrupted', id);
    const { answer } = await own.runtime.accept('launch_principal', {
      profile_name: 'quick',
      instruction: 'go',
    });
    const { turn_id } = answer as { turn_id: never };
    expect(await own.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 })).toMatchObject({ result: 'quick' });
    leader.letGo();
    own.letGo();
    for (const { id } of waits)
      expect(await own.runtime.waitForTurn(id as never, { timeoutMs: 60_000 })).toMatchObject({
        result: 'done',
      });
    await worker.close();
    await peer.close();
    await checkInvariants(pool);
    await own.opened.close();
    await leader.opened.close();
  },
);
