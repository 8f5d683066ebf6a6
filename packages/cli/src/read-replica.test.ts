import { createModelRouter } from '@boxcar/llm';
import { createWorker, openRuntime } from '@boxcar/runtime';
import {
  hasPostgresPair,
  type PostgresPair,
  postgresPair,
  type StatementProxy,
  statementProxy,
} from '@boxcar/testkit';
import { beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { cliHere } from './testing/cli.js';

describe.runIf(hasPostgresPair())('with DATABASE_READ_URL', () => {
  let pair: PostgresPair;
  let primary: StatementProxy;
  let standby: StatementProxy;
  let env: Record<string, string>;
  let turn: { turn_id: string; run_id: string; output_box_id: string };
  beforeAll(async () => {
    pair = await postgresPair();
    primary = await statementProxy(pair.url);
    standby = await statementProxy(pair.standbyUrl);
    env = { DATABASE_URL: primary.url, DATABASE_READ_URL: standby.url };
    await cliHere(['migrate'], { DATABASE_URL: pair.url });
    await using opened = openRuntime({ databaseUrl: pair.url, model: createModelRouter({}) });
    const { runtime } = opened;
    await runtime.applyProfile({
      name: 'counter',
      instructions: 'Count.',
      model: 'scripted',
      script: [{ say: 'one cat' }],
    });
    const worker = await createWorker(runtime);
    turn = (await runtime.submit('launch_principal', {
      profile_name: 'counter',
      instruction: 'Count cats.',
    })) as unknown as typeof turn;
    await runtime.waitForTurn(turn.turn_id);
    await worker.close();
  });
  beforeEach(() => {
    primary.arm();
    standby.arm();
  });

  /** The labels of the statements that the proxy saw. */
  const labels = ({ statements }: StatementProxy): readonly string[] =>
    statements.flatMap((text) => /\/\* ([\w-]+\.[\w-]+) \*\//.exec(text)?.[1] ?? []);
  const PRIMARY = ['schema-version.applied', 'replica.mark'];

  const commands: readonly (readonly [string, () => readonly string[]])[] = [
    ...['runs', 'turns', 'agents', 'boxes', 'projects', 'tools', 'primitives'].map(
      (noun) => [`${noun} ls`, () => [noun, 'ls']] as const,
    ),
    ['show', () => ['show', turn.turn_id]],
    ['tree', () => ['tree', turn.run_id, '--no-watch']],
    ['box show', () => ['box', 'show', turn.output_box_id]],
    ['explain', () => ['explain', turn.turn_id]],
    ['why', () => ['why', turn.turn_id, 'cats']],
  ];
  test.each(commands)(
    '%s reads on the standby, and asks the primary only for its position',
    async (_what, args) => {
      const given = [...args(), '--json'];
      const alone = await cliHere(given, { DATABASE_URL: pair.url });
      const read = await cliHere(given, env);
      expect(read).toMatchObject({ code: alone.code, stderr: '' });
      expect(Object.keys(JSON.parse(read.stdout))).toEqual(Object.keys(JSON.parse(alone.stdout)));
      const asked = labels(primary);
      expect(asked.filter((label) => !PRIMARY.includes(label))).toEqual([]);
      expect(asked).toContain('replica.mark');
      const answered = labels(standby);
      expect(answered.filter((label) => label !== 'replica.look').length).toBeGreaterThan(0);
    },
  );

  test('lists of a search, which writes words first, and a watched tree are read on the primary', async () => {
    for (const args of [
      ['turns', 'ls', '--text', 'cats'],
      ['tree', turn.run_id, '--watch'],
    ]) {
      expect((await cliHere([...args, '--json'], env)).code).toBe(0);
      expect(labels(standby)).toEqual([]);
    }
  });

  test('rows that the standby lacks are read on the primary, the answer reports the lag, and doctor shows it', async () => {
    const doctor = async (): Promise<unknown> => {
      const { stdout } = await cliHere(['doctor', '--json'], env);
      const { findings } = JSON.parse(stdout) as { findings: { check: string }[] };
      return findings.find(({ check }) => check === 'read replica');
    };
    expect(await doctor()).toMatchObject({ level: 'ok', message: 'It has all that the primary has.' });
    await pair.pause();
    try {
      expect((await cliHere(['projects', 'create', 'late'], { DATABASE_URL: pair.url })).code).toBe(0);
      const { stdout, stderr } = await cliHere(['projects', 'ls', '--json'], env);
      expect(JSON.parse(stdout).projects.map(({ name }: { name: string }) => name)).toContain('late');
      expect(JSON.parse(stderr)).toMatchObject({
        level: 'warn',
        event: 'replica.not_read',
        state: 'behind',
        lagMs: expect.any(Number),
        behindBytes: expect.any(Number),
      });
      expect(await doctor()).toMatchObject({
        level: 'warn',
        message: expect.stringMatching(/^It is [\d,]+ bytes of the log behind, [\d,]+ ms\.$/),
      });
    } finally {
      await pair.resume();
    }
    expect(await doctor()).toMatchObject({ level: 'ok' });
  });

  test('a runtime lists and explains on the standby, and runs turns on the primary', async () => {
    await using opened = openRuntime({
      databaseUrl: primary.url,
      readUrl: standby.url,
      model: createModelRouter({}),
    });
    const { runtime } = opened;
    const worker = await createWorker(runtime);
    const made = (await runtime.submit('launch_principal', {
      profile_name: 'counter',
      instruction: 'Count dogs.',
    })) as unknown as typeof turn;
    await runtime.waitForTurn(made.turn_id);
    expect(labels(standby)).toEqual([]);
    primary.arm();
    const { turns } = await runtime.listTurns();
    expect(turns[0]).toMatchObject({ turn_id: made.turn_id, status: 'success' });
    await runtime.explainStep(made.turn_id);
    expect((await runtime.why(made.turn_id, 'dogs')).outcome).toBe('found');
    expect(labels(standby)).toContain('list-page.page');
    expect(labels(primary)).not.toContain('list-page.page');
    expect(labels(primary).filter((label) => label === 'replica.mark')).toHaveLength(3);
    expect((await runtime.listTurns({ text: 'dogs' })).turns).toHaveLength(1);
    expect(labels(primary)).toContain('list-page.page');
    expect(await runtime.inspectReplica()).toEqual({ state: 'ready', lagMs: 0, behindBytes: 0 });
    await worker.close();
  });

  // This test is the last, because it ends the standby.
  test('doctor reports a URL that is not a replica, and a replica that does not answer', async () => {
    const findings = async (url: string): Promise<unknown> => {
      const { stdout } = await cliHere(['doctor', '--json'], { ...env, DATABASE_READ_URL: url });
      return JSON.parse(stdout).findings.find(({ check }: { check: string }) => check === 'read replica');
    };
    expect(await findings(pair.url)).toMatchObject({
      level: 'fail',
      message: 'It accepts writes, so it is not a standby.',
      next: 'Point DATABASE_READ_URL to a standby of DATABASE_URL.',
    });
    expect(await findings('postgres://nobody@127.0.0.1:1/none')).toMatchObject({
      level: 'fail',
      message: expect.stringMatching(/^It does not answer: .*ECONNREFUSED/),
    });
    await pair.stopStandby();
    const { code, stdout } = await cliHere(['runs', 'ls', '--json'], env);
    expect(code).toBe(0);
    expect(JSON.parse(stdout).runs).toHaveLength(2);
  });
});
