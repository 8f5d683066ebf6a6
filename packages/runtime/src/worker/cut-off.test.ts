import { createModelRouter } from '@boxcar/llm';
import { queueBackends, tcpProxy, waitFor } from '@boxcar/testkit';
import { describe, expect, test } from 'vitest';
import { openRuntime } from '../open.js';
import { checkInvariants } from '../testing/invariants.js';
import { testBackend } from '../testing/queue-backend.js';
import { createWorker } from './worker.js';

const TURNS = 40;
const SLOTS = 4;

// The queues must be on another server than the rows: with Postgres queues such a worker hears no rings.
describe.runIf(queueBackends().includes('redis'))('a worker that does not reach its database', () => {
  test.each([
    { way: 'has lost its lease', leaseMs: 1_000, most: 0 },
    { way: 'still has its lease', leaseMs: 60_000, most: SLOTS },
  ])(
    'leaves the rings to other workers when it $way, and takes rings again afterwards',
    async ({ leaseMs, most }) => {
      await using backend = await testBackend('redis');
      await using proxy = await tcpProxy(backend.database.url);
      const model = createModelRouter({});
      const healthy = openRuntime({ ...backend.urls, model });
      const cutOff = openRuntime({ ...backend.urls, model, databaseUrl: proxy.url });
      let taken = 0;
      const { doorbell } = cutOff.runtime;
      const listen = doorbell.listen.bind(doorbell);
      doorbell.listen = (of) =>
        listen({
          ...of,
          handle: (ring) => {
            taken += 1;
            return of.handle(ring);
          },
        });
      await healthy.runtime.applyProfile({
        name: 'leaf',
        instructions: 'Answer.',
        model: 'scripted',
        script: [{ say: 'leaf' }],
      });
      const launch = async (): Promise<string> => {
        const { answer } = await healthy.runtime.accept('launch_principal', {
          profile_name: 'leaf',
          instruction: 'go',
        });
        return (answer as { turn_id: string }).turn_id;
      };
      const runAll = async (): Promise<void> => {
        const turnIds = await Promise.all(Array.from({ length: TURNS }, launch));
        for (const turnId of turnIds)
          expect(await healthy.runtime.waitForTurn(turnId as never, { timeoutMs: 60_000 })).toMatchObject({
            result: 'leaf',
          });
      };
      const own = await createWorker(cutOff.runtime, { concurrency: SLOTS, leaseMs, heartbeatMs: 200 });
      const other = await createWorker(healthy.runtime, { concurrency: 1, sweepMs: 200, lostRingMs: 500 });
      await proxy.cut();
      if (most === 0)
        await waitFor(
          async () =>
            (
              await backend.database.pool.query(
                'select from boxcar.workers where id = $1 and lease_until > now()',
                [own.id],
              )
            ).rowCount === 0,
          { message: 'the lease has passed' },
        );
      taken = 0;
      await runAll();
      expect(taken).toBeLessThanOrEqual(most);

      await proxy.restore();
      // While it is not alone, rings come to it by the queue.
      const third = await createWorker(healthy.runtime, { targets: ['elsewhere'] });
      await other.close();
      await waitFor(
        async () =>
          (await backend.database.pool.query('select from boxcar.workers where lease_until > now()'))
            .rowCount === 2,
        { message: 'it has a lease again' },
      );
      await runAll();
      expect(taken).toBeGreaterThan(0);
      await own.close();
      await third.close();
      await checkInvariants(backend.database.pool);
      await cutOff.close();
      await healthy.close();
    },
  );

  test('takes rings again as soon as its pool has an answer, long before the next renewal of its lease', async () => {
    await using backend = await testBackend('redis');
    await using proxy = await tcpProxy(backend.database.url);
    const model = createModelRouter({});
    const log: string[] = [];
    const cutOff = openRuntime({
      ...backend.urls,
      model,
      databaseUrl: proxy.url,
      // The connection of the lease does not break.
      directUrl: backend.database.url,
      log: (_level, event) => void log.push(event),
    });
    const healthy = openRuntime({ ...backend.urls, model });
    await healthy.runtime.applyProfile({
      name: 'leaf',
      instructions: 'Answer.',
      model: 'scripted',
      script: [{ say: 'leaf' }],
    });
    const launch = async (): Promise<string> => {
      const { turn_id } = await healthy.runtime.submit<{ turn_id: string }>('launch_principal', {
        profile_name: 'leaf',
        instruction: 'go',
      });
      return turn_id;
    };
    const worker = await createWorker(cutOff.runtime, { leaseMs: 1_200_000, sweepMs: 3_600_000 });
    await proxy.cut();
    await launch();
    await waitFor(() => log.includes('turn.failure_not_noted'), { message: 'a claim fails' });
    await proxy.restore();
    expect(await healthy.runtime.waitForTurn((await launch()) as never, { timeoutMs: 60_000 })).toMatchObject(
      { result: 'leaf' },
    );
    await worker.close();
    await cutOff.close();
    await healthy.close();
  });
});
