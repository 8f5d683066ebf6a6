/**
 * Many clients at once: each entry has a number of its own, no entry is lost, and the cost of an update does not depend on the length of
 * the session.
 */
import { createPool } from '@boxcar/store';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { readsOf } from '../testing/count-reads.js';
import { statementsOf } from '../testing/count-statements.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { type HandoffSessions, openHandoffSessions, requestHandoff } from './index.js';

let h: Harness;
/** Two processes, as far as the database can tell. */
let clients: readonly HandoffSessions[];
let otherPool: ReturnType<typeof createPool>;

beforeAll(async () => {
  h = await harness({ connections: 8 });
  otherPool = createPool({ connectionString: h.database.url, max: 8 });
  clients = [
    await openHandoffSessions(h.runtime),
    await openHandoffSessions({ pool: otherPool, limits: {} }),
  ];
});
afterAll(async () => {
  await checkInvariants(h.database.pool, { isSettled: false });
  await otherPool.end();
  await h[Symbol.asyncDispose]();
});

const client = (n: number): HandoffSessions => clients[n % 2] as HandoffSessions;
const says = (content: string) => ({ context_type: 'message', content });
const range = (n: number): number[] => Array.from({ length: n }, (_, index) => index);

const SESSIONS = 100;
const UPDATES = 50;

test('with 100 sessions and 50 updates each at once, no number is missing or used twice, and nothing is lost', async () => {
  const keys = range(SESSIONS).map((n) => `race-${n}`);
  await Promise.all(
    keys.map((session_key, n) => client(n).register({ session_key, agent_from: `agent-${n}` })),
  );
  const update = async (session_key: string, n: number, u: number) => {
    const answer = await client(n + u).update({ session_key, ...says(`${n}/${u}`) });
    if (answer.outcome !== 'updated') throw new Error(answer.outcome);
    return { session_key, number: answer.entries[0]?.sequence_number };
  };
  /** Two processes write to each session at the same moment; more processes would only wait for a connection. */
  const updateAll = async (session_key: string, n: number) => {
    const made = [];
    for (let u = 0; u < UPDATES; u += 2)
      made.push(...(await Promise.all([update(session_key, n, u), update(session_key, n, u + 1)])));
    return made;
  };
  const answers = (await Promise.all(keys.map((key, n) => updateAll(key, n)))).flat();
  const wanted = range(UPDATES).map((u) => u + 2);
  for (const [n, session_key] of keys.entries()) {
    const numbers = answers.filter((a) => a.session_key === session_key).map((a) => a.number ?? 0);
    expect(numbers.sort((a, b) => a - b)).toEqual(wanted);
    const page = await client(n).context({ session_key });
    if (page.outcome !== 'found') throw new Error(page.outcome);
    expect(page.entries.map((entry) => entry.sequence_number)).toEqual([1, ...wanted]);
    expect(
      page.entries
        .slice(1)
        .map((entry) => entry.content)
        .sort(),
    ).toEqual(
      range(UPDATES)
        .map((u) => `${n}/${u}`)
        .sort(),
    );
  }
}, 120_000);

test('an update at the moment of the end is in the session before the end, or is refused', async () => {
  for (const round of range(10)) {
    const session_key = `end-${round}`;
    await client(0).register({ session_key, agent_from: 'x' });
    const [closed, ...updates] = await Promise.all([
      client(0).close({ session_key }),
      ...range(6).map((n) => client(n).update({ session_key, ...says(`${n}`) })),
    ]);
    expect(closed.outcome).toBe('closed');
    const taken = updates.filter(({ outcome }) => outcome === 'updated').length;
    const page = await client(1).context({ session_key });
    if (page.outcome !== 'found') throw new Error(page.outcome);
    expect(page.entries).toHaveLength(taken + 2);
    expect(page.entries.at(-1)).toMatchObject({ content: 'Session completed by agent: operator' });
  }
});

test('the same key from two processes at once is one update', async () => {
  const session_key = 'one-key';
  await client(0).register({ session_key, agent_from: 'x' });
  const answers = await Promise.all(
    range(8).map((n) => client(n).update({ session_key, ...says('once'), idempotency_key: 'k' })),
  );
  expect(answers.filter((a) => a.outcome === 'updated' && !a.is_repeated)).toHaveLength(1);
  expect(await client(0).get({ session_key })).toMatchObject({ context_entries: 2 });
});

test('each operation takes as many statements at 10,000 entries as at 10', async () => {
  const [one] = clients as readonly [HandoffSessions];
  const fill = async (session_key: string, entries: number): Promise<void> => {
    await one.register({ session_key, agent_from: 'x' });
    for (let left = entries; left > 0; left -= 500) {
      const batch = range(Math.min(left, 500)).map((n) => says(`entry ${n}`));
      await one.update({ session_key, entries: batch });
    }
  };
  await fill('short', 10);
  await fill('long', 10_000);
  const operations: Record<string, (session_key: string) => Promise<unknown>> = {
    update: (session_key) => one.update({ session_key, ...says('x') }),
    batch: (session_key) => one.update({ session_key, entries: range(100).map((n) => says(`${n}`)) }),
    context: (session_key) => one.context({ session_key, limit: 10 }),
    summary: (session_key) => one.summary({ session_key }),
    list: () => one.list({ agent: 'x', limit: 1 }),
    close: (session_key) => one.close({ session_key }),
    continue: (session_key) =>
      one.register({ session_key: `${session_key}-2`, agent_from: 'y', continues: session_key }),
  };
  const counts: Record<string, readonly number[]> = {};
  for (const [name, operation] of Object.entries(operations)) {
    const sent = [];
    for (const key of ['short', 'long'])
      sent.push((await statementsOf(h.database, () => operation(key))).length);
    expect(sent[1], name).toBe(sent[0]);
    counts[name] = sent;
  }
  // A batch costs what one entry costs.
  expect(counts.batch).toEqual(counts.update);
  expect(counts.update).toEqual([8, 8]);
  expect(await one.get({ session_key: 'long-2' })).toMatchObject({ context_entries: 10_104 });
}, 60_000);

test('a page and a summary of 10,000 entries read few rows, wherever the page begins', async () => {
  const single = createPool({ connectionString: h.database.url, max: 1 });
  try {
    const one = await openHandoffSessions({ pool: single, limits: {} });
    await h.database.pool.query('analyze boxcar.handoff_session_entries, boxcar.tape_entries, boxcar.cards');
    const work: (() => Promise<unknown>)[] = [
      () => one.context({ session_key: 'long-2', cursor: 9_000, limit: 3 }),
      () => one.context({ session_key: 'long-2', limit: 3 }),
      () => one.summary({ session_key: 'long-2' }),
    ];
    for (const read of work) {
      // The first read makes the query plans.
      await read();
      const reads = await readsOf(single, read);
      for (const table of ['handoff_session_entries', 'tape_entries', 'cards'])
        expect(reads.get(table) ?? 0, `${table}: ${read}`).toBeLessThan(100);
    }
    const page = await one.context({ session_key: 'long-2', cursor: 9_000, limit: 3 });
    if (page.outcome !== 'found') throw new Error(page.outcome);
    expect(page.entries.map((entry) => entry.sequence_number)).toEqual([9_001, 9_002, 9_003]);
    expect(page.next_cursor).toBe(9_003);
  } finally {
    await single.end();
  }
});

test('collaborations at once with the same agents in any order do not block each other', async () => {
  const session_key = 'race-shared';
  await client(0).register({ session_key, agent_from: 'claude' });
  await h.profile('idle', [{ say: 'done' }], { worker_target: 'nowhere' });
  for (const agent_id of ['ada', 'bob'])
    await h.runtime.submit('provision_agent', { action: 'create', profile_name: 'idle', agent_id });
  const hand = (n: number) => {
    const [target_agent = '', ...more] = n % 2 === 0 ? ['ada', 'bob'] : ['bob', 'ada'];
    const target_agents = [...more, `far-${n}`];
    return requestHandoff(h.runtime, {
      session_key,
      target_agent,
      target_agents,
      request_type: 'collaboration',
    });
  };
  // More requests at once than there are connections.
  const answers = await Promise.all(range(16).map(hand));
  expect(new Set(answers.map(({ outcome }) => outcome))).toEqual(new Set(['handed_on']));
}, 60_000);
