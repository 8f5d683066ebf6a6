/** A process's cached facts about a caller decide the caller's next submissions while none of these facts has changed. */
import type { TurnId } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { createPool } from '@boxcar/store';
import { statementProxy } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { SubmitOptions } from '../core/index.js';
import { InProcessDoorbell } from '../queue/doorbell-in-process.js';
import { Runtime } from '../runtime.js';
import { statementsOf } from '../testing/count-statements.js';
import { type Harness, harness } from '../testing/harness.js';

let h: Harness;
/** Another process on the same database. */
let other: Runtime;
let count = 0;

beforeAll(async () => {
  h = await harness();
  other = new Runtime({
    pool: h.database.pool,
    directUrl: h.database.url,
    doorbell: new InProcessDoorbell(),
    model: createModelRouter({}),
  });
});
afterAll(async () => {
  await other.close();
  await h[Symbol.asyncDispose]();
});

const apply = (name: string, projectId: string, more: object = {}): Promise<unknown> =>
  other.applyProfile(
    { name, instructions: 'You answer.', model: 'scripted', script: [{ say: 'done' }], ...more },
    { projectId },
  );

/** A project with the profile `writer`, in which the runtime has already started a turn. */
async function scene(): Promise<{
  project: string;
  launch(options?: SubmitOptions, args?: object): Promise<TurnId>;
}> {
  count += 1;
  const project = `kept-${count}`;
  await other.createProject({ name: project });
  await apply('writer', project);
  const launch = async (options: SubmitOptions = {}, args: object = {}): Promise<TurnId> => {
    const { turn_id } = (await h.runtime.submit(
      'launch_principal',
      { profile_name: 'writer', instruction: 'go', ...args },
      { projectId: project, ...options },
    )) as { turn_id: TurnId };
    return turn_id;
  };
  await launch();
  return { project, launch };
}

/** How often callers are looked up. */
async function lookUpsOf(work: () => Promise<unknown>): Promise<number> {
  const seen = await statementsOf(h.database, work);
  return seen.filter((text) => text.includes('callers.openings')).length;
}

const profileOf = async (turnId: TurnId): Promise<number> => {
  const [row] = await h.rows<{ version: number }>(
    'select f.version from boxcar.turns t join boxcar.profiles f on f.id = t.profile_id where t.id = $1',
    [turnId],
  );
  return row?.version ?? 0;
};
const codeOf = (work: Promise<unknown>): Promise<unknown> =>
  work.then(
    () => 'accepted',
    (error: { code?: unknown }) => error.code,
  );

describe('a caller that was looked up before', () => {
  test('is not looked up again, and its submission is one statement', async () => {
    const { launch } = await scene();
    const seen = await statementsOf(h.database, () => launch());
    // No worker runs, so the queue is also checked.
    expect(seen.filter((text) => !text.includes('promote.') && text.includes('/*'))).toEqual([
      expect.stringContaining('submission-sql.build'),
    ]);
    expect(await lookUpsOf(() => Promise.all([launch(), launch(), launch()]))).toBe(0);
  });

  test('is looked up again with a key of its own, in a transaction of its own, and for other profiles', async () => {
    const { project, launch } = await scene();
    await apply('reader', project);
    expect(await lookUpsOf(() => launch({ idempotencyKey: 'mine' }))).toBe(1);
    expect(await lookUpsOf(() => launch({ idempotencyKey: 'mine' }))).toBe(1);
    expect(await lookUpsOf(() => launch({}, { profile_name: 'reader' }))).toBe(1);
    expect(await lookUpsOf(() => launch({}, { profile_name: 'reader' }))).toBe(0);
    const client = await h.database.pool.connect();
    await client.query('begin');
    expect(await lookUpsOf(() => launch({ tx: client }))).toBe(1);
    await client.query('rollback');
    client.release();
    expect(await lookUpsOf(() => launch())).toBe(0);
  });

  test('is looked up again when it is given by a name, which another agent may get', async () => {
    const { project, launch } = await scene();
    await other.submit(
      'provision_agent',
      { action: 'ensure', agent_id: 'ada', profile_name: 'writer' },
      { projectId: project },
    );
    await apply('writer', project, { delegation_policy: { target_profiles: ['writer'] } });
    for (let time = 0; time < 2; time += 1)
      expect(await lookUpsOf(() => codeOf(launch({ sourceAgentId: 'ada' })))).toBeGreaterThan(0);
  });
});

describe('a change by another process meanwhile is used:', () => {
  test('a new version of the profile', async () => {
    const { project, launch } = await scene();
    expect(await profileOf(await launch())).toBe(1);
    await apply('writer', project, { instructions: 'You answer in verse.' });
    let turn: TurnId | undefined;
    expect(await lookUpsOf(async () => (turn = await launch()))).toBe(1);
    expect(await profileOf(turn as TurnId)).toBe(2);
    expect(await lookUpsOf(() => launch())).toBe(0);
  });

  test('an archived or restored project', async () => {
    const { project, launch } = await scene();
    await other.archiveProject(project, { isArchived: true });
    expect(await codeOf(launch())).toBe('project_archived');
    await other.archiveProject(project, { isArchived: false });
    expect(await codeOf(launch())).toBe('accepted');
  });

  test('limits of the project, higher or lower', async () => {
    const { project, launch } = await scene();
    const limit = (turns: number | null) =>
      h.rows('update boxcar.projects set limits = $2 where name = $1', [
        project,
        turns === null ? {} : { run_budget: { turns } },
      ]);
    const budgetOf = async (turn: TurnId): Promise<unknown> =>
      (await h.rows('select allotted_steps, budget_id from boxcar.turns where id = $1', [turn]))[0]
        ?.budget_id;
    await limit(5);
    expect(await budgetOf(await launch())).not.toBeNull();
    await limit(null);
    expect(await budgetOf(await launch())).toBeNull();
  });

  test('the profile of an agent, which decides its rights', async () => {
    const { project, launch } = await scene();
    await apply('boss', project, { delegation_policy: { target_profiles: ['writer'] } });
    await apply('clerk', project, { delegation_policy: { target_profiles: [] } });
    const agent = (await other.submit(
      'provision_agent',
      { action: 'ensure', agent_id: 'ada', profile_name: 'boss' },
      { projectId: project },
    )) as { agent_id: string };
    const ask = (): Promise<TurnId> => launch({ sourceAgentId: agent.agent_id });
    await ask();
    expect(await lookUpsOf(ask)).toBe(0);
    const give = (profile: string) =>
      h.rows(
        'update boxcar.agents a set profile_id = (select f.id from boxcar.profiles f where f.project_id = a.project_id and f.name = $2 and f.is_current) where a.id = $1',
        [agent.agent_id, profile],
      );
    await give('clerk');
    expect(await codeOf(ask())).toBe('delegation_denied');
    await give('boss');
    expect(await codeOf(ask())).toBe('accepted');
  });

  test('a profile that did not exist before', async () => {
    const { project, launch } = await scene();
    const ask = (): Promise<TurnId> => launch({}, { profile_name: 'late' });
    expect(await codeOf(ask())).toBe('not_found');
    await apply('late', project);
    expect(await codeOf(ask())).toBe('accepted');
  });
});

test('the answer to a submission whose first answer was lost is not given to the next submission', async () => {
  const { project, launch } = await scene();
  await using proxy = await statementProxy(h.database.url);
  const pool = createPool({ connectionString: proxy.url, max: 2 });
  const runtime = new Runtime({
    pool,
    directUrl: h.database.url,
    doorbell: new InProcessDoorbell(),
    model: createModelRouter({}),
  });
  const submit = async (): Promise<TurnId> => {
    const args = { profile_name: 'writer', instruction: 'go' };
    const { turn_id } = (await runtime.submit('launch_principal', args, { projectId: project })) as {
      turn_id: TurnId;
    };
    return turn_id;
  };
  await submit();
  proxy.arm();
  await submit();
  const write = proxy.statements.find((text) => text.includes('insert into boxcar.operations')) ?? '';
  proxy.arm({ at: { text: write, nth: 1 }, when: 'after', scope: 'connection' });
  const lost = await submit();
  expect(proxy.struck).toBe(write);
  const next = [await submit(), await submit(), await launch()];
  expect(new Set([lost, ...next]).size).toBe(4);
  await runtime.close();
  await pool.end();
});

test('submissions that are written together are refused one by one', async () => {
  const { project, launch } = await scene();
  await apply('reader', project);
  await launch({}, { profile_name: 'reader' });
  await apply('writer', project, { instructions: 'You answer in verse.' });
  const names = ['writer', 'reader', 'writer', 'reader'];
  const turns = await Promise.all(names.map((profile_name) => launch({}, { profile_name })));
  expect(await Promise.all(turns.map(profileOf))).toEqual([2, 1, 2, 1]);
});
