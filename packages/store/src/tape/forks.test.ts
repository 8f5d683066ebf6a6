import type { BoxId } from '@boxcar/kernel';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { holdCommits, waitUntilBlocked } from '../testing/interleave.js';
import { DEFAULT_PROJECT, newId, OPERATOR, World } from '../testing/world.js';
import { mergeFork } from './fork-ends.js';
import { type ForkRow, findFork, makeFork } from './forks.js';
import { resetTape } from './reset.js';

let world: World;

beforeAll(async () => {
  world = await World.open();
});

afterAll(() => world[Symbol.asyncDispose]());

const projectId = DEFAULT_PROJECT;

async function resetFork(parentBoxId: BoxId): Promise<ForkRow> {
  const id = newId<'box'>();
  const rest = { openedBy: OPERATOR, turnId: null, key: 'fork', mergeBack: true, upto: null } as const;
  await makeFork(world.pool, { boxId: id, projectId, parentBoxId, onError: 'merge', ...rest });
  const newBoxId = newId<'box'>();
  await resetTape(world.pool, { projectId, boxId: id, newBoxId, authorId: OPERATOR, archive: null });
  const fork = await findFork(world.pool, projectId, id);
  if (fork === undefined) throw new Error('no fork');
  return fork;
}

test('a merge that waited while its parent became the tape of an agent checks again, and waits for that agent’s turns', async () => {
  const { tapeId, agentId } = await world.submit({ profile: await world.profile('writer') });
  await world.rows(
    "update boxcar.turns set status = 'canceled', ended_at = now(), deliverable_card_id = (select bootstrap_card_id from boxcar.projects limit 1) where agent_id = $1",
    [agentId],
  );
  const outer = await resetFork(tapeId);
  const inner = await resetFork(outer.boxId);
  const held = holdCommits(world.pool);
  const first = mergeFork(held.pool, outer, { parentBoxId: tapeId, authorId: OPERATOR });
  const by = await held.atCommit;
  const second = mergeFork(world.pool, inner, { parentBoxId: outer.boxId, authorId: OPERATOR });
  await waitUntilBlocked(world.pool, { by });
  held.release();
  expect((await first).outcome).toBe('merged');
  expect((await second).outcome).toBe('moved');
  expect(await mergeFork(world.pool, inner, { parentBoxId: outer.boxId, authorId: OPERATOR })).toMatchObject({
    outcome: 'merged',
    receipt: { replaced: true },
  });
});
