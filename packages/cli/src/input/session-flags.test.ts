import { mkdirSync, mkdtempSync, realpathSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, relative } from 'node:path';
import type { Stack } from '@boxcar/host/open';
import { tapeName } from '@boxcar/kernel';
import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { cliHere, type Env, prepare } from '../testing/cli.js';
import { sessionOf } from './session-flags.js';

let database: TestDatabase;
let env: Env;
let stack: Stack;
let folder: string;
let workspace: string;
let link: string;

beforeAll(async () => {
  database = await testDatabase();
  env = { DATABASE_URL: database.url };
  stack = await prepare(env);
  folder = mkdtempSync(join(realpathSync(tmpdir()), 'boxcar-session-'));
  workspace = join(folder, 'demo');
  link = join(folder, 'link');
  mkdirSync(workspace);
  symlinkSync(workspace, link);
});

afterAll(async () => {
  rmSync(folder, { recursive: true, force: true });
  await stack.close();
});

const submit = (...args: string[]) =>
  cliHere(['submit', 'delegate_async', '--arg', 'instruction=go', ...args], env);

describe('a session on the command line', () => {
  it('resolves relative folders, links, and paths that do not exist yet', () => {
    expect(sessionOf({ session: 'main' })).toEqual({ workspace: realpathSync('.'), session: 'main' });
    expect(sessionOf({ session: 'main', workspace: relative('.', link) })?.workspace).toBe(workspace);
    expect(sessionOf({ session: 'main', workspace: join(link, 'new/deep') })?.workspace).toBe(
      join(workspace, 'new/deep'),
    );
    expect(sessionOf({})).toBeUndefined();
  });

  it('is the target of submit, and its tape is the tape of the tape commands', async () => {
    const main = ['--workspace', link, '--session', 'main'];
    const first = JSON.parse((await submit(...main, '--profile', 'writer', '--json')).stdout);
    expect(JSON.parse((await submit(...main, '--json')).stdout).agent_id).toBe(first.agent_id);
    const json = async (...args: string[]) =>
      JSON.parse((await cliHere(['tape', ...args, '--json'], env)).stdout);
    expect(await json('info', '--workspace', workspace, '--session', 'main')).toMatchObject({
      name: tapeName(workspace, 'main'),
      box_id: first.output_box_id,
    });
    await cliHere(['tape', 'handoff', 'phase', '--summary', 'ready', ...main], env);
    expect(
      (await json('show', `--workspace=${link}`, '--session=main', '--messages')).messages?.[0],
    ).toMatchObject({
      content: '[Anchor created: phase]: {"summary": "ready"}',
    });
    expect(await submit(...main, '--arg', 'view:={"anchor":"phase"}', '--json')).toMatchObject({
      code: 0,
    });
  });

  it('reports missing and extra parts', async () => {
    const refused = async (args: readonly string[], message: string) => {
      const { code, stderr } = await cliHere([...args], env);
      const isRefusal = /^boxcar: (not_found|conflict)/.test(stderr);
      expect({ code, stderr }).toEqual({
        code: isRefusal ? 1 : 2,
        stderr: expect.stringContaining(message),
      });
    };
    await refused(
      ['submit', 'delegate_async', '--arg', 'instruction=go', '--session', 'none', '--workspace', folder],
      `not_found: --session: no session 'none' of workspace '${folder}'; give --profile to have its agent made`,
    );
    await submit('--session', 'taken', '--workspace', folder, '--profile', 'writer');
    await refused(
      [
        'submit',
        'delegate_async',
        '--arg',
        'instruction=go',
        '--session',
        'taken',
        '--workspace',
        folder,
        '--profile',
        'boss',
      ],
      "conflict: --profile: session 'taken' has an agent of profile 'writer', not 'boss'. Leave --profile out, or choose another session.",
    );
    await refused(['submit', 'delegate_async', '--workspace', folder], 'give --session too');
    await refused(['submit', 'delegate_async', '--profile', 'writer'], 'give --session too');
    await refused(
      ['submit', 'delegate_async', '--session', 'x', '--arg', 'target_ref=y'],
      'leave target_ref out',
    );
    await refused(['submit', 'cancel', '--session', 'x'], 'is for delegate_async and context_handoff');
    await refused(
      ['tape', 'info', '--session', 'none', '--workspace', folder],
      `No session 'none' of workspace '${folder}' in project 'default'.`,
    );
  });
});
