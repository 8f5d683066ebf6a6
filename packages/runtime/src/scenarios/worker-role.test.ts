import { createModelRouter } from '@boxcar/llm';
import {
  createPool,
  endPool,
  eraseCards,
  grantWorkerRights,
  purgeRuns,
  setProjectLimits,
  setProviderLimits,
} from '@boxcar/store';
import { inspectInvariants } from '@boxcar/store/report';
import { queueBackends, type TestRole, testRole, waitFor } from '@boxcar/testkit';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { openRuntime } from '../open.js';
import { runAtDoors } from '../testing/faults/at-doors.js';
import { findFault } from '../testing/faults/conclude.js';
import type { Outcome } from '../testing/faults/outcome.js';
import type { Scenario } from '../testing/faults/scenario.js';
import { delegations, overflows, queueTools, tapeCommands, tools } from '../testing/faults/scenarios.js';
import { approvals } from '../testing/faults/scenarios-approvals.js';
import * as ends from '../testing/faults/scenarios-ends.js';
import {
  handoffEnds,
  handoffOnce,
  handoffs as servedHandoffs,
} from '../testing/faults/scenarios-handoffs.js';
import * as joins from '../testing/faults/scenarios-joins.js';
import { handoffs } from '../testing/faults/scenarios-tape.js';
import { tapeFiles } from '../testing/faults/scenarios-tape-files.js';
import * as tapes from '../testing/faults/scenarios-tapes.js';
import { Scenes } from '../testing/faults/scenes.js';
import { type TestBackend, testBackend } from '../testing/queue-backend.js';
import { createWorker } from '../worker/worker.js';

const SCENARIOS: readonly Scenario[] = [
  tools,
  delegations,
  queueTools,
  tapeCommands,
  overflows,
  handoffs,
  approvals,
  servedHandoffs,
  handoffOnce,
  handoffEnds,
  tapeFiles,
  ...Object.values(tapes),
  ...Object.values(joins),
  ...Object.values(ends),
];

/**
 * The other scenarios differ only in the kernel, not in the jobs that are queued. So a few scenarios are enough for the second kind of
 * queue.
 */
const FEW = [
  tools,
  delegations,
  queueTools,
  tapeCommands,
  joins.failFast,
  ends.cancelTree,
  ends.budgetRaised,
];

/** The outcome of each scenario when it runs as the owner. */
const calm = new Map<Scenario, Outcome>();

describe.each(queueBackends())('with only the rights that doctor lists, and queues on %s,', (kind) => {
  let backend: TestBackend;
  let scenes: Scenes;
  let role: TestRole;
  let pool: pg.Pool;
  const urls = (): TestBackend['urls'] => ({ ...backend.urls, databaseUrl: role.url });

  beforeAll(async () => {
    backend = await testBackend(kind);
    const { database } = backend;
    scenes = await Scenes.open(database);
    role = await testRole(database);
    pool = createPool({ connectionString: role.url, max: 2 });
    const schemas = kind === 'postgres' ? ['boxcar', 'bullmq'] : ['boxcar'];
    // The role must not inherit any right from the default rights of all roles.
    await database.pool.query(
      [
        `revoke all on database ${database.name} from public`,
        ...schemas.map((schema) => `revoke execute on all functions in schema ${schema} from public`),
        // Only for the tests: a trigger that counts losses.
        `grant insert on public.losses to ${role.name}`,
      ].join('; '),
    );
    await grantWorkerRights(database.url, role.name);
  });
  afterAll(async () => {
    await endPool(pool);
    await role.close();
    await scenes[Symbol.asyncDispose]();
    await backend.close();
  });

  test.each(kind === queueBackends()[0] ? SCENARIOS : FEW)('$name', async (scenario) => {
    if (scenario.judge === undefined && !calm.has(scenario))
      calm.set(scenario, await runAtDoors({ backend, scenes, scenario }));
    const refused: unknown[] = [];
    const outcome = await runAtDoors({
      backend,
      scenes,
      scenario,
      databaseUrl: role.url,
      log: (level, event, fields) => {
        if (JSON.stringify(fields ?? {}).includes('permission denied'))
          refused.push({ level, event, fields });
      },
    });
    expect(findFault(scenario, outcome, calm.get(scenario)) ?? '').toBe('');
    expect(refused).toEqual([]);
  });

  test('turns of a dead worker are taken over, and its row is removed', async () => {
    await using opened = openRuntime({ ...urls(), model: createModelRouter({}) });
    const { runtime } = opened;
    await runtime.applyProfile({
      name: 'slow',
      instructions: 'x',
      model: 'scripted',
      script: [{ say: 'done' }],
    });
    const { turn_id: turnId } = (await runtime.submit('launch_principal', {
      profile_name: 'slow',
      instruction: 'go',
    })) as { turn_id: string };
    const { rows } = await backend.database.pool.query<{ id: string }>(
      `insert into boxcar.workers (id, lock_key, lease_until, targets, concurrency, schema_version)
       select gen_random_uuid(), 9, now() - interval '2 days', '{""}', 1, max(version) from boxcar.schema_version returning id`,
    );
    await backend.database.pool.query(
      `with b as (update boxcar.boxes x set head_position = x.head_position + 1 from boxcar.turns t where t.id = $1 and x.id = t.output_box_id returning x.head_position, x.id),
         e as (insert into boxcar.tape_entries (box_id, position, kind, payload, turn_id, author_id)
           select b.id, b.head_position, 'event', json_build_object('name', 'turn.started', 'data', json_build_object('turn_id', t.id, 'context_box_id', t.context_box_id)), t.id, t.agent_id::text
           from b join boxcar.turns t on t.id = $1)
       update boxcar.turns t set status = 'running', epoch = 1, holder_id = $2, attempt = 1, dispatched_at = now(), start_position = b.head_position from b where t.id = $1`,
      [turnId, rows[0]?.id],
    );
    await using _worker = await createWorker(runtime, { sweepMs: 100 });
    expect(await runtime.waitForTurn(turnId, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
    await waitFor(
      async () =>
        (await pool.query('select from boxcar.workers where id = $1', [rows[0]?.id])).rowCount === 0,
      { message: 'the row of the dead worker is gone' },
    );
  });

  test('boxes, tapes and their search, sessions, limits and invariants can be used', async () => {
    await using opened = openRuntime({ ...urls(), model: createModelRouter({}) });
    const { runtime } = opened;
    await runtime.applyProfile({
      name: 'reader',
      instructions: 'x',
      model: 'scripted',
      script: [{ say: 'ok' }],
    });
    const { agent_id: agentId } = (await runtime.submit('provision_agent', {
      action: 'create',
      profile_name: 'reader',
    })) as { agent_id: string };
    const { box_id: boxId } = (await runtime.submit('create_box', {
      cards: [{ type: 'note', content: { kind: 'text', text: 'one' } }],
    })) as { box_id: string };
    const grant = { box_id: boxId, grantee: agentId };
    await runtime.submit('grant_box', grant);
    await runtime.submit('grant_box', { ...grant, until: new Date(Date.now() + 60_000).toISOString() });
    const tape = await runtime.tape('searched');
    await tape.append([{ kind: 'message', content: 'a needle in it' }]);
    expect(await tape.search('needle')).toHaveLength(1);
    const instruction = 'look for me in lists';
    await runtime.submit('launch_principal', { profile_name: 'reader', instruction });
    expect(await runtime.listTurns({ text: 'me in' })).toMatchObject({ turns: [{ instruction }] });
    expect((await runtime.listBoxes({ agent: agentId })).boxes).toHaveLength(1);
    expect(await runtime.listTools()).toMatchObject({ next_cursor: null });
    const { project_id: projectId } = (
      await pool.query<{ project_id: never }>('select project_id from boxcar.agents where id = $1', [agentId])
    ).rows[0] ?? { project_id: undefined as never };
    await setProjectLimits(pool, projectId, { max_depth: 5 });
    await setProviderLimits(pool, 'elsewhere', { maxConcurrent: 2 });
    const reports = await inspectInvariants(pool, { limit: 5, timeoutMs: 10_000 });
    expect(reports.filter(({ state }) => state !== 'holds')).toEqual([]);
  });

  test('erasure and purge are refused', async () => {
    const { rows } = await pool.query<{ id: never; project_id: never }>(
      'select id, project_id from boxcar.cards order by id limit 1',
    );
    const [{ id, project_id: projectId } = { id: '' as never, project_id: '' as never }] = rows;
    await expect(eraseCards(pool, [id], { projectId, reason: 'x' })).rejects.toMatchObject({
      code: 'database_forbidden',
    });
    await backend.database.pool.query(
      "update boxcar.turns set ended_at = now() - interval '2 days', created_at = now() - interval '3 days' where ended_at is not null",
    );
    await backend.database.pool.query("update boxcar.runs set created_at = now() - interval '3 days'");
    await expect(purgeRuns(pool, { before: new Date() })).rejects.toMatchObject({
      code: 'database_forbidden',
    });
    for (const text of [
      'delete from boxcar.runs',
      'truncate boxcar.workers',
      'alter table boxcar.cards disable trigger all',
      "insert into boxcar.unsealed values (pg_current_xact_id(), 'erase')",
      "update boxcar.cards set content = '{}'",
      "update boxcar.tape_entries set payload = '{}'",
      'create table boxcar.mine (n int)',
      'update boxcar.schema_version set version = 1',
    ])
      await expect(pool.query(text), text).rejects.toMatchObject({ code: '42501' });
  });
});
