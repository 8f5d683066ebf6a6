import type { RunId, TurnId, WorkerId } from '@boxcar/kernel';
import { beforeEach, describe, expect, test } from 'vitest';
import { findTreeRoot } from '../submit/tree-ref.js';
import { newId, type TestProfile, World } from '../testing/world.js';
import { commitSteps } from '../turn/commits.js';
import { loadTree } from './tree.js';

let world: World;
let profile: TestProfile;
let holder: WorkerId;

beforeEach(async () => {
  world = await World.open();
  profile = await world.profile('writer');
  holder = await world.worker();
  return () => world[Symbol.asyncDispose]();
});

const project = 'default';

describe('the tree below a turn', () => {
  test('gives for each turn its status and the reason for its wait', async () => {
    const root = await world.running({ profile, holder });
    const [call] = await world.call(root, 1);
    const asked = await world.submit({ profile, parent: root, answers: call as never });
    const nowhere = await world.profile('scout', { workerTarget: 'nowhere' });
    const lost = await world.submit({ profile: nowhere, parent: root });
    const tree = await loadTree(world.pool, root.turnId);
    expect(tree).toMatchObject({
      run_id: root.runId,
      root_turn_id: root.turnId,
      totals: { turns: 3, open: 3, steps: 1, by_status: { running: 1, dispatched: 1, queued: 1 } },
    });
    expect(tree.nodes.map((node) => node.turn_id)).toEqual([root.turnId, asked.turnId, lost.turnId]);
    expect(tree.nodes[0]).toMatchObject({
      status: 'running',
      agent: `writer-${root.agentId}`,
      profile: 'writer',
      profile_version: 1,
      primitive: 'delegate_async',
      steps: 1,
      usage: { input_tokens: 1, output_tokens: 0 },
      pending_calls: 1,
      open_calls: [{ tool_call_id: call, name: 'tool', awaited_turn_id: asked.turnId }],
      has_worker: true,
      ended_at: null,
      hidden: {},
    });
    expect(tree.nodes[2]).toMatchObject({ status: 'queued', has_worker: false, behind_turn_id: null });
    const below = await loadTree(world.pool, asked.turnId);
    expect(below.nodes.map((node) => node.turn_id)).toEqual([asked.turnId]);
    expect(below.totals.turns).toBe(1);
  });

  test('names for a queued turn the turn of its agent that is first', async () => {
    const first = await world.running({ profile, holder });
    const second = await world.submit({ profile, reuse: first });
    const tree = await loadTree(world.pool, second.turnId);
    expect(tree.nodes[0]).toMatchObject({ status: 'queued', behind_turn_id: first.turnId });
  });

  test('of 10,000 turns lists the turns under way and counts the others, in one statement', async () => {
    const root = await world.running({ profile, holder });
    const child = await world.submit({ profile, parent: root });
    await world.claim(child, holder);
    await commitSteps(world.pool, [await world.commit(child, { end: 'success' })]);
    await world.pool.query('alter table boxcar.turns disable trigger all');
    await world.pool.query(
      `insert into boxcar.turns select (jsonb_populate_record(t, jsonb_build_object('id', gen_random_uuid(), 'agent_id', t.agent_id))).*
       from boxcar.turns t, generate_series(1, 9998) where t.id = $1`,
      [child.turnId],
    );
    const last = await world.submit({ profile, parent: root });
    await world.pool.query('analyze boxcar.turns');
    let statements = 0;
    const pool = new Proxy(world.pool, {
      get: (target, key) => {
        if (key === 'query') statements += 1;
        const value: unknown = Reflect.get(target, key, target);
        return typeof value === 'function' ? value.bind(target) : value;
      },
    });
    const tree = await loadTree(pool, root.turnId, { siblings: 5 });
    expect(statements).toBe(1);
    expect(tree.totals).toMatchObject({ turns: 10_001, open: 2, by_status: { success: 9_999 } });
    expect(tree.nodes).toHaveLength(6);
    expect(tree.nodes.map((node) => node.turn_id)).toContain(last.turnId);
    expect(tree.nodes[0]?.hidden).toEqual({ success: 9_995 });
  });

  test('is cut at the limit of nodes, and each listed turn is below a listed turn', async () => {
    const turns = [await world.submit({ profile })];
    for (let depth = 1; depth < 6; depth++)
      turns.push(await world.submit({ profile, parent: turns[depth - 1] as (typeof turns)[number] }));
    const tree = await loadTree(world.pool, turns[0]?.turnId as TurnId, { nodes: 3 });
    expect(tree.nodes.map((node) => node.turn_id)).toEqual(turns.slice(0, 3).map((turn) => turn.turnId));
    expect(tree.nodes[2]?.hidden).toEqual({ dispatched: 1 });
    expect(tree.totals.turns).toBe(6);
  });
});

describe('the root of a tree', () => {
  test('is found by the id of its run or by its own id, also by a prefix', async () => {
    const root = await world.submit({ profile });
    for (const ref of [root.runId, root.turnId, root.turnId.replaceAll('-', '').toUpperCase()])
      expect(await findTreeRoot(world.pool, ref, { project })).toBe(root.turnId);
    await world.pool.query(
      "update boxcar.turns set id = '11112222-3333-7444-8555-666677778888' where id = $1",
      [root.turnId],
    );
    expect(await findTreeRoot(world.pool, '11112222', { project })).toBe(
      '11112222-3333-7444-8555-666677778888',
    );
  });

  test.each([
    ['nonsense', 'bad_request'],
    ['1234567', 'bad_request'],
    [`${newId<'turn'>()}00`, 'bad_request'],
    ['ffffffff', 'not_found'],
  ])('is not found by the text %s: the error is %s', async (ref, code) => {
    await expect(findTreeRoot(world.pool, ref, { project })).rejects.toMatchObject({ code });
  });

  test('is not found from another project, and needs a prefix that matches only one root', async () => {
    const root = await world.submit({ profile });
    await world.project('other');
    await expect(findTreeRoot(world.pool, root.turnId, { project: 'other' })).rejects.toMatchObject({
      code: 'not_found',
    });
    await expect(findTreeRoot(world.pool, root.turnId, { project: 'none' })).rejects.toThrow(
      "No project 'none'",
    );
    await world.submit({ profile });
    await expect(findTreeRoot(world.pool, root.turnId.slice(0, 18), { project })).rejects.toThrow(
      /several ids/,
    );
    await expect(loadTree(world.pool, newId<'run'>() as unknown as TurnId)).rejects.toMatchObject({
      code: 'not_found',
    });
    const runId: RunId = root.runId;
    expect(await findTreeRoot(world.pool, runId, { project })).toBe(root.turnId);
  });
});
