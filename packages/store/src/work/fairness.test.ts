/** The turns that enter the window when it cannot hold all queued turns: projects take turns, however long one queue is. */
import type { ProjectId } from '@boxcar/kernel';
import { beforeEach, describe, expect, test } from 'vitest';
import { setProjectLimits } from '../submit/projects.js';
import { ringsOf, writeSubmission } from '../submit/submission.js';
import { emptySubmission } from '../submit/submission-rows.js';
import { DEFAULT_PROJECT, type TestProfile, type TestTurn, World } from '../testing/world.js';
import { CANDIDATES, promote } from './promote.js';
import { findReady } from './workers.js';

let world: World;
let queued = 0;

beforeEach(async () => {
  world = await World.open();
  return () => world[Symbol.asyncDispose]();
});

/** Adds queued turns of a project, each of its own agent. Only the columns that promotion reads have real values. */
async function queue(projectId: ProjectId, count: number, target = ''): Promise<void> {
  await world.pool.query(
    `insert into boxcar.turns (id, project_id, run_id, agent_id, profile_id, depth, primitive, status, epoch, max_steps, context_box_id, output_box_id, worker_target)
     select i.id, $1, i.id, i.id, i.id, 0, 'delegate_async', 'queued', 0, 1, i.id, i.id, $3
     from generate_series($4::int + 1, $4 + $2) n cross join lateral (select ('00000000-0000-7000-a000-' || lpad(to_hex(n), 12, '0'))::uuid as id) i`,
    [projectId, count, target, queued],
  );
  queued += count;
}

const projects = async (count: number): Promise<ProjectId[]> => {
  const ids: ProjectId[] = [];
  for (let n = 0; n < count; n++) ids.push((await world.project(`p${n}`)).projectId);
  return ids;
};

const active = (target = ''): Promise<{ id: string; project_id: ProjectId }[]> =>
  world.rows(
    "select id, project_id from boxcar.turns where status in ('dispatched', 'running') and worker_target = $1 order by dispatched_at, id",
    [target],
  );

const end = (ids: readonly string[]) =>
  world.pool.query(
    "update boxcar.turns set status = 'success', ended_at = now(), deliverable_card_id = id where id = any ($1::uuid[])",
    [ids],
  );

/** Serves `rounds` turns, the oldest in the window first, and counts them by project. */
async function serve(rounds: number): Promise<Map<string, number>> {
  const served = new Map<string, number>();
  for (let round = 0; round < rounds; round++) {
    await promote(world.pool, '');
    const [next] = await active();
    if (next === undefined) throw new Error('nothing was promoted');
    await end([next.id]);
    served.set(next.project_id, (served.get(next.project_id) ?? 0) + 1);
  }
  return served;
}

interface PlanNode {
  readonly 'Actual Rows': number;
  readonly 'Actual Loops': number;
  readonly 'Rows Removed by Join Filter'?: number;
  readonly Plans?: readonly PlanNode[];
}

const rowsTouched = (node: PlanNode | undefined): number =>
  node === undefined
    ? 0
    : (node['Actual Rows'] + (node['Rows Removed by Join Filter'] ?? 0)) * node['Actual Loops'] +
      (node.Plans ?? []).reduce((sum, child) => sum + rowsTouched(child), 0);

describe('projects are served in turn', () => {
  test.each([
    ['a window smaller than their number', 1, 100],
    ['a window for all of them', 10, 200],
  ])('through %s', async (_name, concurrency, rounds) => {
    const ids = await projects(10);
    // The first project has been there for long; its turns are the oldest.
    await queue(ids[0] as ProjectId, 500);
    for (const id of ids.slice(1)) await queue(id, 40);
    await world.worker({ concurrency });
    const served = await serve(rounds);
    expect(served.size).toBe(10);
    expect(Math.max(...served.values()) / Math.min(...served.values())).toBeLessThanOrEqual(1.3);
  });

  test('and a single project gets the whole window', async () => {
    const [busy, small] = (await projects(3)) as [ProjectId, ProjectId, ProjectId];
    await queue(busy, 100);
    await queue(small, 2);
    await world.worker({ concurrency: 10 });
    expect(await promote(world.pool, '')).toHaveLength(40);
    const of = (await active()).filter(({ project_id }) => project_id === small);
    expect(of).toHaveLength(2);
  });

  test('a project with more turns under way waits for projects with fewer', async () => {
    const [busy, late] = (await projects(2)) as [ProjectId, ProjectId];
    await queue(busy, 100);
    await world.worker({ concurrency: 2 });
    await promote(world.pool, '');
    await queue(late, 100);
    await end((await active()).slice(0, 4).map(({ id }) => id));
    await promote(world.pool, '');
    const of = (await active()).filter(({ project_id }) => project_id === late);
    expect(of).toHaveLength(4);
  });
});

test('promotion reads as many turns as there is room for, not the 100,000 queued turns', async () => {
  const ids = await projects(10);
  for (const id of ids) await queue(id, 100);
  await world.worker({ concurrency: 10 });
  const read = async (): Promise<number> => {
    await world.pool.query('vacuum analyze boxcar.turns');
    const { rows } = await world.pool.query<{ 'QUERY PLAN': { Plan: Record<string, number> }[] }>({
      text: `explain (analyze, buffers, format json) ${CANDIDATES.text}`,
      values: ['', 1],
    });
    const plan = rows[0]?.['QUERY PLAN'][0]?.Plan;
    expect(plan?.['Actual Rows']).toBe(40);
    return (plan?.['Shared Hit Blocks'] ?? 0) + (plan?.['Shared Read Blocks'] ?? 0);
  };
  const few = await read();
  for (const id of ids) await queue(id, 9_900);
  const many = await read();
  // The trees are deeper, but the number of look-ups is the same.
  expect(many).toBeLessThan(few * 3);
  expect(many).toBeLessThan(1_000);
});

test('promotion checks for each candidate whether its agent is free, and reads no other turns under way', async () => {
  const [id = DEFAULT_PROJECT] = await projects(1);
  await queue(id, 500);
  await world.worker({ concurrency: 10 });
  // The state at the last ANALYZE: hardly any turn is under way.
  await world.pool.query('vacuum analyze boxcar.turns');
  await queue(id, 3_000, 'elsewhere');
  await world.pool.query("update boxcar.turns set status = 'suspended' where worker_target = 'elsewhere'");
  const { rows } = await world.pool.query<{ 'QUERY PLAN': { Plan: PlanNode }[] }>({
    text: `explain (analyze, format json) ${CANDIDATES.text}`,
    values: ['', 1],
  });
  const plan = rows[0]?.['QUERY PLAN'][0]?.Plan;
  expect(plan?.['Actual Rows']).toBe(40);
  expect(rowsTouched(plan)).toBeLessThan(3_000);
});

describe('the limit max_concurrent', () => {
  const limit = (projectId: ProjectId, max_concurrent: number | null) =>
    setProjectLimits(world.pool, projectId, { max_concurrent });

  test('is kept exactly while submissions, promotions and ends happen at the same time, at every target', async () => {
    const [profile, gpu] = [
      await world.profile('writer'),
      await world.profile('gpu', { workerTarget: 'gpu' }),
    ];
    await world.worker({ concurrency: 50, targets: ['', 'gpu'] });
    await limit(DEFAULT_PROJECT, 3);
    const both = () => [promote(world.pool, ''), promote(world.pool, 'gpu')];
    const submit = (of: TestProfile): Promise<TestTurn> => world.submit({ profile: of });
    const count = async (): Promise<number> => (await active()).length + (await active('gpu')).length;
    for (let round = 0; round < 5; round++) {
      const peaks = [count(), count()];
      await Promise.all([...[profile, gpu, profile, gpu].map(submit), ...both(), ...both(), ...peaks]);
      await Promise.all([...both(), ...both()]);
      for (const peak of peaks) expect(await peak).toBeLessThanOrEqual(3);
      expect(await count()).toBe(3);
      const [one] = await active(round % 2 === 0 ? '' : 'gpu');
      await Promise.all([end(one === undefined ? [] : [one.id]), ...both()]);
      await Promise.all(both());
      expect(await count()).toBe(3);
    }
  });

  test('does not count suspended turns, and does not delay turns that resume', async () => {
    const profile = await world.profile('writer');
    await world.worker({ concurrency: 50 });
    await limit(DEFAULT_PROJECT, 1);
    const [first, second] = [await world.submit({ profile }), await world.submit({ profile })];
    expect(await promote(world.pool, '')).toHaveLength(1);
    expect(await promote(world.pool, '')).toEqual([]);
    await world.pool.query("update boxcar.turns set status = 'suspended' where id = $1", [first.turnId]);
    expect((await promote(world.pool, '')).map(({ turnId }) => turnId)).toEqual([second.turnId]);
    await world.pool.query("update boxcar.turns set status = 'dispatched' where id = $1", [first.turnId]);
    await end([second.turnId]);
    await world.submit({ profile });
    expect(await promote(world.pool, '')).toEqual([]);
  });

  test('of one project does not limit another project, and ends when it is removed', async () => {
    const profile = await world.profile('writer');
    const { projectId } = await world.project('other');
    const other = await world.profile('writer', { projectId });
    await world.worker({ concurrency: 50 });
    await limit(DEFAULT_PROJECT, 1);
    for (let n = 0; n < 3; n++) await world.submit({ profile });
    for (let n = 0; n < 3; n++) await world.submit({ profile: other });
    // The first turn of the other project did not wait for the limited project.
    expect(await active()).toHaveLength(1);
    expect(await promote(world.pool, '')).toHaveLength(3);
    expect(await active()).toHaveLength(4);
    expect(await limit(DEFAULT_PROJECT, null)).toEqual({});
    expect(await promote(world.pool, '')).toHaveLength(2);
  });
});

test('a priority counts only within its project', async () => {
  const profile = await world.profile('writer');
  const { projectId } = await world.project('other');
  await queue(projectId, 10);
  const submit = async (priority: number): Promise<string> => {
    const { turn, submission } = world.draft({ profile });
    await writeSubmission(world.pool, {
      ...emptySubmission(),
      ...submission,
      turns: submission.turns.map((row) => ({ ...row, priority })),
    });
    return turn.turnId;
  };
  const [low, normal, high] = [await submit(-5), await submit(0), await submit(100)];
  await world.worker({ concurrency: 1 });
  await promote(world.pool, '');
  const own = (await active()).filter(({ project_id }) => project_id === DEFAULT_PROJECT).map(({ id }) => id);
  expect(own.sort()).toEqual([normal, high].sort());
  expect(await world.statusOf({ turnId: low as TestTurn['turnId'] })).toBe('queued');
});

describe('a project that has no running or waiting turn', () => {
  const submitTo = async (profile: TestProfile) => {
    const { turn, submission } = world.draft({ profile });
    const result = await writeSubmission(world.pool, submission);
    if (result.outcome !== 'accepted') throw new Error('refused');
    return { ...turn, ring: ringsOf(result.turns)[0] };
  };

  test('enters a window that another project has filled, with one turn, which is rung before all others', async () => {
    const busy = await world.profile('writer');
    const { projectId } = await world.project('late');
    const late = await world.profile('writer', { projectId });
    const holder = await world.worker({ concurrency: 2 });
    const first = await submitTo(busy);
    await world.claim(first, holder);
    const filled = [];
    for (let count = 0; count < 10; count++) filled.push(await submitTo(busy));
    // The priority is the number of running turns while no turn of the project waits, and the last priority while one of
    // its turns waits.
    expect(filled.map(({ ring }) => ring?.priority)).toEqual([
      1,
      ...[8, 8, 8, 8, 8, 8, 8],
      undefined,
      undefined,
    ]);
    const newcomer = await submitTo(late);
    expect(newcomer.ring).toMatchObject({ turnId: newcomer.turnId, priority: 0 });
    expect((await submitTo(late)).ring).toBeUndefined();
    expect(await promote(world.pool, '')).toEqual([]);
  });

  test('is rung after the waiting turns of its project, however many turns have ended since their rings', async () => {
    const busy = await world.profile('writer');
    const holder = await world.worker({ concurrency: 2 });
    const turns = [];
    for (let count = 0; count < 6; count++) turns.push(await submitTo(busy));
    const rings = turns.map(({ ring }) => ring);
    for (const turn of turns.slice(0, 4)) await world.claim(turn, holder);
    await world.pool.query(
      "update boxcar.turns set status = 'success', ended_at = now(), deliverable_card_id = id, holder_id = null where status = 'running'",
    );
    await queue(DEFAULT_PROJECT, 3);
    rings.push(...(await promote(world.pool, '')));
    expect(rings.map((ring) => ring?.priority)).toEqual([0, 8, 8, 8, 8, 8, 8, 8, 8]);
  });

  test('is promoted and rung in the order of the priorities of its turns', async () => {
    const low = await world.profile('writer');
    await world.worker({ concurrency: 5 });
    await queue(DEFAULT_PROJECT, 12);
    await world.pool.query(
      "update boxcar.turns set priority = ('x' || right(id::text, 2))::bit(8)::int where status = 'queued'",
    );
    expect(low.projectId).toBe(DEFAULT_PROJECT);
    const rings = await promote(world.pool, '');
    const orders = await world.rows<{ id: string; priority: number }>(
      'select id, priority from boxcar.turns where project_id = $1 order by priority desc',
      [DEFAULT_PROJECT],
    );
    expect(rings.map(({ turnId }) => turnId)).toEqual(orders.map(({ id }) => id));
    expect(rings.map(({ priority }) => priority)).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8]);
  });

  test('also enters the window by promotion, and in the order of the rows while the queue is away', async () => {
    const busy = await world.profile('writer');
    const { projectId } = await world.project('late');
    await world.worker({ concurrency: 2 });
    for (let count = 0; count < 8; count++) await submitTo(busy);
    await queue(projectId, 3);
    const [ring, ...rest] = await promote(world.pool, '');
    expect(ring).toMatchObject({ priority: 0 });
    expect(rest).toEqual([]);
    const [first] = await findReady(world.pool, [''], 1);
    expect(first?.turnId).toBe(ring?.turnId);
    const [oldest] = await active();
    const [other, second] = await findReady(world.pool, [''], 2, { isOldestFirst: true });
    expect([other?.turnId, second?.turnId]).toEqual([oldest?.id, ring?.turnId]);
  });
});
