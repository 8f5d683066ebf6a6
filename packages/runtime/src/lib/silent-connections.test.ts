/** A process without a worker also replaces a silent connection. */
import { createModelRouter } from '@boxcar/llm';
import { createPool, endPool, limitByLease } from '@boxcar/store';
import { statementProxy, waitFor } from '@boxcar/testkit';
import { expect, test } from 'vitest';
import { InProcessDoorbell } from '../queue/doorbell-in-process.js';
import { Runtime } from '../runtime.js';
import { type Harness, harness } from '../testing/harness.js';

/** A connection may wait for four tenths of this lease. */
const LEASE_MS = 1_000;

const launch = async (h: Harness): Promise<string> => {
  await h.profile('p', [{ say: 'done' }], { worker_target: 'nowhere' });
  const answer = await h.runtime.submit('launch_principal', { profile_name: 'p', instruction: 'x' });
  return (answer as { turn_id: string }).turn_id;
};

test.each<[string, (runtime: Runtime, h: Harness, turnId: string) => Promise<unknown>]>([
  [
    'a wait for a turn',
    async (runtime, h, turnId) => {
      const waiting = runtime.waitForTurn(turnId, { timeoutMs: 60_000 });
      await h.runtime.submit('cancel', { turn_id: turnId });
      return waiting;
    },
  ],
  [
    'a cancel',
    async (runtime, _h, turnId) => {
      await runtime.submit('cancel', { turn_id: turnId });
      return runtime.getTurn(turnId);
    },
  ],
])('one silent connection does not delay %s', async (_title, work) => {
  await using h = await harness();
  const turnId = await launch(h);
  await using proxy = await statementProxy(h.database.url);
  const pool = createPool({ connectionString: proxy.url, max: 3 });
  limitByLease(pool, LEASE_MS);
  const events: string[] = [];
  const runtime = new Runtime({
    pool,
    directUrl: h.database.url,
    doorbell: new InProcessDoorbell(),
    model: createModelRouter({}),
    log: (_level, event) => void events.push(event),
  });
  try {
    await runtime.getTurn(turnId);
    proxy.arm({ at: 1, when: 'before', scope: 'connection', effect: 'silence' });
    const startedAt = performance.now();
    expect(await work(runtime, h, turnId)).toMatchObject({ status: 'canceled' });
    expect(proxy.struck).toBeDefined();
    // Without the check, the work would take the statement limit plus two seconds.
    expect(performance.now() - startedAt).toBeLessThan(15_000);
    await waitFor(() => events.includes('pool.connection_silent'), { message: 'it is said' });
  } finally {
    await runtime.close();
    await endPool(pool);
  }
});
