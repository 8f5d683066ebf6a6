import { builtInHandlers, handoffForm } from '@boxcar/runtime';
import { testDatabase } from '@boxcar/testkit';
import { describe, expect, it } from 'vitest';
import { cliHere, PLUGIN, prepare } from '../../testing/cli.js';
import type { ArgumentHelp } from './primitive-help.js';

const NO_SERVER = { DATABASE_URL: 'postgres://127.0.0.1:1/none', BOXCAR_DATABASE_WAIT_SECONDS: '0' };

describe.each([...builtInHandlers, ['handoff', handoffForm] as const])(
  'boxcar submit %s --help',
  (name, handler) => {
    it('shows the arguments in lines of 80 columns, and as JSON, without a database', async () => {
      const { code, stdout, stderr } = await cliHere(['submit', name, '--help'], NO_SERVER);
      expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
      expect(stdout).toMatch(new RegExp(`^Usage: boxcar submit ${name} \\[options\\]\n`));
      expect(stdout).toMatch(/\nExamples:\n {2}boxcar submit .*\n/);
      expect(stdout).toMatch(/\nExit codes:\n {2}0 {2}success\n/);
      expect(stdout.split('\n').filter((line) => line.length > 80)).toEqual([]);
      const json = JSON.parse((await cliHere(['submit', '--json', name, '-h'], NO_SERVER)).stdout);
      expect(json).toMatchObject({ primitive: name, description: handler.description });
      const found: readonly ArgumentHelp[] = json.arguments;
      expect(found.length).toBeGreaterThan(0);
      for (const one of found) expect(stdout).toContain(one.required ? `  ${one.name} *` : `  ${one.name}`);
      // The schema itself reports which members an empty object lacks.
      const missing = handler.input.safeParse({}).error?.issues.map(({ path }) => path.join('.')) ?? [];
      const required = found
        .filter(({ required, name }) => required && !/[.[]/.test(name))
        .map(({ name }) => name);
      expect(missing).toEqual(expect.arrayContaining(required));
    });
  },
);

it('names, types and descriptions of arguments equal those of the schema, including members', async () => {
  const { stdout } = await cliHere(['submit', 'fork_join', '--help', '--json'], NO_SERVER);
  expect(JSON.parse(stdout).arguments).toEqual(
    expect.arrayContaining([
      { name: 'tasks', type: 'list of object', required: true, description: '' },
      { name: 'tasks[].instruction', type: 'string', required: true, description: '' },
      {
        name: 'fail_fast',
        type: 'boolean',
        required: false,
        description: 'Cancel the rest when one fails.',
      },
      {
        name: 'priority',
        type: 'integer -100 to 100',
        required: false,
        description: 'For tasks without one.',
      },
    ]),
  );
});

it('without a primitive the flags are shown, and an unknown primitive is answered with the known names', async () => {
  expect((await cliHere(['submit', '--help'])).stdout).toContain('--json-args <json>');
  expect(await cliHere(['submit', 'ask_exprt', '--help'], NO_SERVER)).toMatchObject({
    code: 2,
    stdout: '',
    stderr: expect.stringMatching(/^boxcar: bad_request: no primitive 'ask_exprt' .*ask_expert/),
  });
});

it('the help shows a primitive of a plugin, and lists the primitives of the plugin', async () => {
  const env = { DATABASE_URL: (await testDatabase()).url };
  await (await prepare(env)).close();
  const { code, stdout } = await cliHere(['submit', 'repeat', '--plugin', PLUGIN, '--help'], env);
  expect(code).toBe(0);
  expect(stdout).toMatch(
    /^Usage: boxcar submit repeat \[options\]\n(.*\n)+Arguments.*\n {2}result \* +any JSON\n/,
  );
  const { stderr } = await cliHere(['submit', 'nothing', '--help'], { ...env, BOXCAR_PLUGINS: PLUGIN });
  expect(stderr).toMatch(/nor in the plugins; there are .*tape\.handoff, .*repeat/);
});
