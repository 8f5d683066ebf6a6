/** A purge reads the rows that it removes and the rows that refer to them, however many other rows exist. */
import { createPool, purgeRuns, purgeTapes } from '@boxcar/store';
import pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { copyRuns, type RunPattern, readRuns } from '../../testing/copy-runs.js';
import { readsOf } from '../../testing/count-reads.js';
import { type Harness, harness } from '../../testing/harness.js';

const COPIES = 100;
const FACTOR = 5;

/** Tables in which rows are found by time, in ranges of pages. */
const BY_TIME = new Set(['runs', 'operations']);
const A_RANGE = 1_000;

let h: Harness;
let db: pg.Client;
/** A single connection, so that its reads are counted when it reports them. */
let pool: pg.Pool;
let pattern: RunPattern;

beforeAll(async () => {
  h = await harness();
  db = new pg.Client({ connectionString: h.database.url });
  await db.connect();
  pool = createPool({ connectionString: h.database.url, max: 1 });
  const policy = { delegation_policy: { target_profiles: null } };
  const cards = [{ type: 'note', role: 'user', content: { kind: 'text', text: 'A fact.' } }];
  await h.profile('writer', [{ say: 'written' }]);
  await h.profile(
    'boss',
    [
      { calls: [{ tool: 'create_box', arguments: { cards } }] },
      {
        calls: [
          {
            tool: 'delegate_async',
            arguments: {
              target_strategy: 'new',
              target_ref: 'writer',
              instruction: 'go',
              context_box_id: '{{results/create_box/box_id}}',
              wait: true,
            },
          },
        ],
      },
      {
        calls: [
          {
            tool: 'fork_join',
            arguments: {
              tasks: [1, 2].map(() => ({
                target_strategy: 'new',
                target_ref: 'writer',
                instruction: 'go',
              })),
            },
          },
        ],
      },
      { say: 'done' },
    ],
    { tools: ['create_box', 'delegate_async', 'fork_join'], ...policy },
  );
  await play();
  pattern = await readRuns(db);
});
afterAll(async () => {
  await pool.end();
  await db.end();
  await h[Symbol.asyncDispose]();
});

/** Waits for the end of a turn. The worker runs only until then, because the reads of its sweeps do not belong to the purge. */
async function finish(turn: never): Promise<void> {
  const worker = await h.worker();
  expect(await h.runtime.waitForTurn(turn)).toMatchObject({ status: 'success' });
  await worker.close();
}

async function play(): Promise<void> {
  const { turn_id: turn, agent_id: agent } = (await h.runtime.submit('launch_principal', {
    profile_name: 'boss',
    instruction: 'go',
  })) as { turn_id: never; agent_id: string };
  await finish(turn);
  const tape = await h.runtime.tape({ agent });
  await (await tape.forkTape()).merge();
  await h.runtime.submit('grant_box', { box_id: tape.boxId, grantee: agent });
  await h.runtime.submit('delegate_async', {
    target_strategy: 'reuse',
    target_ref: agent,
    instruction: ',anchors',
  });
}

async function now(): Promise<Date> {
  const [row] = await h.rows<{ at: Date }>("select clock_timestamp() + interval '1 millisecond' as at");
  const at = row?.at ?? new Date(0);
  await h.rows('select pg_sleep(greatest(0, extract(epoch from $1::timestamptz - clock_timestamp())))', [at]);
  return at;
}

/** The reads of a purge of one run, beside all rows that exist by now. */
async function purgeOne(): Promise<ReadonlyMap<string, number>> {
  // All earlier rows become too young for the purge.
  await db.query(`
    update boxcar.runs set created_at = now() + interval '1 day';
    update boxcar.turns set created_at = now() + interval '1 day', ended_at = ended_at + interval '1 day';
    update boxcar.operations set created_at = now() + interval '1 day'`);
  await db.query('vacuum analyze');
  await play();
  const before = await now();
  return readsOf(pool, async () => {
    const report = await purgeRuns(pool, { before });
    expect(report).toMatchObject({ removed: { runs: 1, turns: 4, agents: 4 }, kept: [] });
  }, [db]);
}

test('the reads of a run’s purge do not grow with the rows of other runs', async () => {
  await copyRuns(db, pattern, { first: 1, last: COPIES });
  await db.query('set session_replication_role = origin');
  await purgeOne();
  const few = await purgeOne();
  await copyRuns(db, pattern, { first: COPIES + 1, last: FACTOR * COPIES });
  await db.query('set session_replication_role = origin');
  const grownIn = (many: ReadonlyMap<string, number>) =>
    // Each process reads the schema version every few seconds.
    [...many].filter(
      ([name, n]) =>
        name !== 'schema_version' && n > (few.get(name) ?? 0) * 1.2 + (BY_TIME.has(name) ? A_RANGE : 20),
    );
  let many = await purgeOne();
  // A server process may report its reads up to ten seconds late. Such reads are in only one of the counts.
  for (let tries = 1; grownIn(many).length > 0 && tries < 3; tries += 1) {
    const again = await purgeOne();
    many = new Map([...many].map(([name, n]) => [name, Math.min(n, again.get(name) ?? 0)]));
  }
  const [rows] = await h.rows<{ boxes: number; entries: number }>(
    'select (select count(*)::int from boxcar.boxes) as boxes, (select count(*)::int from boxcar.tape_entries) as entries',
  );
  expect(rows?.boxes).toBeGreaterThan(FACTOR * COPIES * 8);
  expect(rows?.entries).toBeGreaterThan(FACTOR * COPIES * 20);
  expect(grownIn(many)).toEqual([]);
  expect(many.get('boxes')).toBeLessThan((rows?.boxes ?? 0) / 4);
  expect(many.get('tape_entries')).toBeLessThan((rows?.entries ?? 0) / 4);
});

test('a purge of tapes does not read tapes that have a name', async () => {
  const { boxId } = await h.runtime.tape('named');
  const count = 2_000;
  await db.query(
    `with b as (
       insert into boxcar.boxes (id, project_id, kind, owner_agent_id, maker_agent_id, tape_name, incarnation, head_position, last_anchor_position, view_position, anchor_count)
       select gen_random_uuid(), x.project_id, 'tape', x.owner_agent_id, x.maker_agent_id, 'named ' || n, 1, 1, 1, 1, 1
       from boxcar.boxes x cross join generate_series(1, ${count}) n where x.id = $1 returning id, project_id)
     insert into boxcar.tape_entries (box_id, position, kind, card_id, tokens, author_id, anchor_name)
     select b.id, 1, 'anchor', p.bootstrap_card_id, 0, 'x', 'session/start' from b join boxcar.projects p on p.id = b.project_id`,
    [boxId],
  );
  await db.query('vacuum analyze');
  await h.runtime.importTape('imported', {
    main: {
      lines: () => ['{"id":1,"kind":"message","payload":{"role":"user","content":"words"},"meta":{}}'],
    },
  });
  const before = await now();
  const reads = await readsOf(pool, async () => {
    expect((await purgeTapes(pool, { before })).removed.tapes).toBe(1);
  }, [db]);
  expect(reads.get('boxes')).toBeLessThan(count / 4);
  expect(reads.get('tape_entries')).toBeLessThan(count / 4);
});

test('a purge does not read the operations between two turns of an agent', async () => {
  const { turn_id: turn, agent_id: agent } = (await h.runtime.submit('launch_principal', {
    profile_name: 'writer',
    instruction: 'go',
  })) as { turn_id: never; agent_id: string };
  await finish(turn);
  const count = 8_000;
  // Long answers fill many of the page ranges in which operations are searched by time.
  await db.query(
    `insert into boxcar.operations (project_id, idempotency_key, primitive, request_hash, response, made, created_at)
     select gen_random_uuid(), 'other ' || n, 'x', '', json_build_object('x', repeat('x', 1500)), array[gen_random_uuid()], clock_timestamp() from generate_series(1, ${count}) n`,
  );
  await db.query('vacuum analyze');
  const again = (await h.runtime.submit('delegate_async', {
    target_strategy: 'reuse',
    target_ref: agent,
    instruction: 'go',
  })) as { turn_id: never };
  await finish(again.turn_id);
  const before = await now();
  const reads = await readsOf(pool, async () => {
    const { removed, kept } = await purgeRuns(pool, { before });
    expect({ runs: removed.runs, kept }).toEqual({ runs: 2, kept: [] });
  }, [db]);
  expect(reads.get('operations')).toBeLessThan(count / 2);
  expect(await h.rows("select from boxcar.operations where idempotency_key like 'other %'")).toHaveLength(
    count,
  );
});
