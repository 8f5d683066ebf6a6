import type { Stack } from '@boxcar/host/open';
import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { cliHere, type Env, prepare } from '../../testing/cli.js';

let database: TestDatabase;
let env: Env;
let stack: Stack;

beforeAll(async () => {
  database = await testDatabase();
  env = { DATABASE_URL: database.url };
  stack = await prepare(env);
  await stack.runtime.submit('provision_agent', {
    action: 'create',
    profile_name: 'writer',
    agent_id: 'writer-1',
  });
  const notes = await stack.runtime.tape('notes');
  await notes.append([{ kind: 'message', content: 'A pantograph.' }]);
});

afterAll(() => stack.close());

const boxcar = (...args: string[]) => cliHere(['tape', ...args], env);
const json = async (...args: string[]) => JSON.parse((await boxcar(...args, '--json')).stdout);

describe('boxcar tape fork', () => {
  it('makes a fork that is merged once, or is discarded', async () => {
    const { fork_id, box_id } = await json('fork', 'notes');
    const fork = await stack.runtime.tape({ box: box_id });
    await fork.append([{ kind: 'message', content: 'A draft.' }]);
    expect((await json('forks', 'notes')).forks).toMatchObject([{ fork_id, status: 'open' }]);
    expect((await boxcar('ls')).stdout).toMatch(new RegExp(`${box_id} +fork +\\d.*\nnotes +name`));
    const receipt = await json('merge', 'notes', fork_id);
    expect(receipt).toMatchObject({ status: 'merged', fork: fork_id, merged: 1 });
    expect(await json('merge', 'notes', fork_id)).toEqual(receipt);
    expect(await boxcar('merge', 'notes', fork_id, '--discard')).toMatchObject({ code: 1 });
    const other = await json('fork', 'notes');
    expect((await boxcar('merge', 'notes', other.fork_id, '--discard')).stdout).toContain('Discarded');
    expect((await json('forks', 'notes', '--status', 'open')).forks).toEqual([]);
  });

  it('makes a session with an agent of its own', async () => {
    await boxcar('handoff', 'writer-1', 'phase-1');
    const made = await json(
      ...['fork', 'writer-1', '--session', 'scout', '--from-anchor', 'phase-1'],
      ...['--next-steps', 'Look around', '--notify-parent'],
    );
    expect(made).toMatchObject({ session: 'scout' });
    const { entries } = await json('show', 'scout', '--from', 'phase-1');
    expect(entries.map((entry: { kind: string }) => entry.kind)).toEqual(['event', 'anchor', 'event']);
    expect(await stack.runtime.sessions.get('scout')).toMatchObject({ from_anchor: 'phase-1' });
  });

  it('reports errors, and makes nothing', async () => {
    const before = (await json('forks', 'notes')).forks.length;
    for (const args of [
      ['fork', 'notes', '--next-steps', 'Go'],
      ['fork', 'nothing-of-this-name'],
      ['fork', 'writer-1', '--session', 'lost', '--from-anchor', 'nowhere'],
      ['fork', 'notes', '--session', 'lost'],
      ['forks', 'notes', '--status', 'half'],
      ['merge', 'notes', '0199c6a0-0000-7000-8000-000000000000'],
    ]) {
      const { code, stdout, stderr } = await boxcar(...args);
      const isUsage = args.some((word) => word === '--status' || word === '--next-steps');
      expect([code, stdout], args.join(' ')).toEqual([isUsage ? 2 : 1, '']);
      expect(stderr).toMatch(/^boxcar: (bad_request|not_found): /m);
    }
    expect((await json('forks', 'notes')).forks).toHaveLength(before);
    expect(await stack.runtime.sessions.list()).toHaveLength(1);
  });
});
