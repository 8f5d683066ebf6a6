import { parseId } from '@boxcar/kernel';
import { newId } from '@boxcar/runtime';
import { keepEvidence } from '@boxcar/store';
import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import { beforeAll, expect, test } from 'vitest';
import { cliHere, type Env, prepare } from '../../testing/cli.js';

let database: TestDatabase;
let env: Env;

beforeAll(async () => {
  database = await testDatabase();
  env = { DATABASE_URL: database.url };
  await using _stack = await prepare(env);
});

/** A turn that no worker runs, and its run. */
async function launch(): Promise<{ turn_id: string; run_id: string }> {
  const args = [
    'submit',
    'launch_principal',
    '--arg',
    'profile_name=writer',
    '--arg',
    'instruction=x',
    '--json',
  ];
  const { turn_id }: { turn_id: string } = JSON.parse((await cliHere(args, env)).stdout);
  const { rows } = await database.pool.query<{ run_id: string }>(
    'select run_id from boxcar.turns where id = $1',
    [turn_id],
  );
  return { turn_id, run_id: rows[0]?.run_id ?? '' };
}

test('a turn is canceled by its id with the reason, and the second cancel is refused', async () => {
  const { turn_id, run_id } = await launch();
  const done = await cliHere(['cancel', turn_id, '--reason', 'wrong branch', '--json'], env);
  expect(done).toMatchObject({ code: 0, stderr: '' });
  expect(JSON.parse(done.stdout)).toEqual({ status: 'canceled', run_id, turn_count: 1, turn_ids: [turn_id] });
  const shown = await cliHere(['show', turn_id], env);
  expect(shown.stdout).toContain('canceled: Canceled: wrong branch');
  const again = await cliHere(['cancel', turn_id], env);
  expect(again).toMatchObject({ code: 1, stdout: '' });
  expect(again.stderr).toMatch(/^boxcar: turn_ended: Turn [0-9a-f-]{36} has ended already/);
});

test('a run is canceled by its id, with or without dashes', async () => {
  const { run_id } = await launch();
  expect(await cliHere(['cancel', run_id.replaceAll('-', '')], env)).toMatchObject({
    code: 0,
    stdout: `canceled run ${run_id}: 1 turn ended\n`,
  });
});

test('an id that matches nothing or several objects is refused by name', async () => {
  const [one, two] = [await launch(), await launch()];
  const errorOf = async (ref: string): Promise<object> =>
    JSON.parse((await cliHere(['cancel', ref, '--json'], env)).stderr).error;
  expect(await errorOf('ffffffff')).toMatchObject({ code: 'not_found' });
  expect(await errorOf('the last')).toMatchObject({ code: 'bad_request' });
  expect(await errorOf(one.turn_id.slice(0, 8))).toMatchObject({
    code: 'bad_request',
    details: { ids: expect.arrayContaining([one.turn_id]) },
  });
  const { rows } = await database.pool.query(
    'select from boxcar.turns where id = any ($1) and ended_at is not null',
    [[one.turn_id, two.turn_id]],
  );
  expect(rows).toEqual([]);
});

/** A turn whose answer arrived too late. */
async function launchLate(): Promise<string> {
  const { turn_id } = await launch();
  const { rows } = await database.pool.query<{ project_id: string }>(
    'select project_id from boxcar.turns where id = $1',
    [turn_id],
  );
  await keepEvidence(database.pool, [
    {
      id: newId(),
      projectId: parseId(rows[0]?.project_id ?? '', 'project'),
      turnId: parseId(turn_id, 'turn'),
      kind: 'reply',
      step: 1,
      attempt: 1,
      epoch: 1,
      holderId: newId(),
      toolCallId: null,
      body: { text: 'an answer\nnobody waited for' },
      usage: { input_tokens: 1234, output_tokens: 56 },
    },
  ]);
  return turn_id;
}

test('show lists late results with their cost', async () => {
  const turn_id = await launchLate();
  const { stdout } = await cliHere(['show', turn_id], env);
  expect(stdout).toMatch(
    /\ncame too late, kept and not applied\n.+\n +1\.1 +reply +1 +….{12} +1,234 +56 +an answer.?nobody waited for/,
  );
  expect(JSON.parse((await cliHere(['show', turn_id, '--json'], env)).stdout).evidence).toMatchObject([
    { kind: 'reply', step: 1, usage: { input_tokens: 1234 } },
  ]);
});

test('erase --evidence erases late results, by the ids that show lists', async () => {
  const turn_id = await launchLate();
  const { stdout } = await cliHere(['show', turn_id], env);
  const id = /--evidence\n.+\n +1\.1 +([0-9a-f-]{36})/.exec(stdout)?.[1] ?? '';
  const erase = (ref: string) =>
    cliHere(['erase', '--evidence', ref, '--reason', 'leak', '--yes', '--json'], env);
  expect(JSON.parse((await erase(id)).stdout)).toEqual({
    cards: [],
    evidence: [{ evidence_id: id, outcome: 'erased' }],
  });
  expect((await cliHere(['show', turn_id], env)).stdout).toMatch(/1,234 +56 +\(erased\)/);
  const again = await cliHere(['erase', '--evidence', id, '--reason', 'leak', '--yes'], env);
  expect(again).toMatchObject({ code: 0, stdout: expect.stringMatching(/evidence.*\n.*was erased before/) });
  expect((await erase(turn_id)).code).toBe(3);
});
