import type { JsonObject, ProfileId, ProjectId, RunId, TurnId } from '@boxcar/kernel';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { reserveSpawn } from '../../submit/spawn-budget.js';
import { type Harness, harness } from '../../testing/harness.js';
import { checkInvariants } from '../../testing/invariants.js';

let h: Harness;

beforeAll(async () => {
  h = await harness();
  // Turns of a target without a worker stay open.
  await h.profile('absent', [{ say: 'never' }], {
    worker_target: 'nowhere',
    model_settings: { max_output_tokens: 10 },
  });
});
afterAll(() => h[Symbol.asyncDispose]());

const launch = async (rest: JsonObject, parentTurnId?: TurnId): Promise<TurnId> => {
  const receipt = await h.runtime.submit(
    parentTurnId === undefined ? 'launch_principal' : 'delegate_async',
    parentTurnId === undefined
      ? { profile_name: 'absent', instruction: 'go', ...rest }
      : { target_strategy: 'new', target_ref: 'absent', instruction: 'go', ...rest },
    parentTurnId === undefined ? {} : { parentTurnId },
  );
  return (receipt as { turn_id: TurnId }).turn_id;
};
/** As if the run had made this many turns. */
const setCount = (turnId: TurnId, count: number) =>
  h.rows('update boxcar.runs r set turn_count = $2 from boxcar.turns t where t.id = $1 and r.id = t.run_id', [
    turnId,
    count,
  ]);

it.each<[string, JsonObject, JsonObject]>([
  ['without a budget', {}, {}],
  ['with only a limit of cost', { budget: { cost_usd: 5 } }, {}],
  ['whose child has a budget of its own', {}, { budget: { depth: 50 } }],
  ['whose child may make any number', {}, { budget: { turns: 1_000_000 } }],
])('a run %s makes no more than 10,000 turns', async (_, ofRun, ofChild) => {
  const root = await launch(ofRun);
  const child = await launch(ofChild, root);
  await setCount(root, 9_999);
  await launch({}, child);
  for (const parent of [root, child])
    await expect(launch({}, parent)).rejects.toMatchObject({
      code: 'budget_exceeded',
      details: { limit: 'turns', limit_value: 10_000 },
    });
  await setCount(root, 3);
  await checkInvariants(h.database.pool, { isSettled: false });
});

it('a run whose budget limits its turns makes as many turns as the limit', async () => {
  const root = await launch({ budget: { turns: 20_000 } });
  await setCount(root, 10_000);
  await launch({}, await launch({ budget: { depth: 5 } }, root));
  await setCount(root, 3);
  await checkInvariants(h.database.pool, { isSettled: false });
});

it('a first submission of too many turns is refused, whatever else its budget limits', async () => {
  const root = await launch({});
  const [turn] = await h.rows<{ run_id: RunId; project_id: ProjectId; profile_id: ProfileId }>(
    'select run_id, project_id, profile_id from boxcar.turns where id = $1',
    [root],
  );
  if (turn === undefined) throw new Error('no turn');
  const request = {
    turnId: root,
    runId: turn.run_id,
    profileId: turn.profile_id,
    depth: 0,
    contextTokens: 1,
  };
  const scope = {
    projectId: turn.project_id,
    parent: undefined,
    runBudget: { own: { cost_usd: 100 }, defaults: undefined },
    prices: [],
    db: h.database.pool,
    tx: () => h.database.pool,
  };
  const reserve = (turns: number) =>
    reserveSpawn(
      scope,
      Array.from({ length: turns }, () => ({ ...request, budget: undefined, argument: 'budget' })),
    );
  await expect(reserve(10_001)).rejects.toMatchObject({
    code: 'budget_exceeded',
    details: { limit: 'turns' },
  });
  expect((await reserve(10_000)).shares).toHaveLength(10_000);
});
