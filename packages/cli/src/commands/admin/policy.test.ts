import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parsePolicy } from '@boxcar/policy';
import { afterAll, expect, it } from 'vitest';
import { cliHere } from '../../testing/cli.js';

const folder = mkdtempSync(join(tmpdir(), 'boxcar-policy-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const GOOD = `tools: {handoff: {permission: REQUIRE_APPROVAL}}
rules:
  - {condition: {environment: development, tool_name: handoff}, permission: ALWAYS}
  - {condition: {context: {target_agent: external-*}}, permission: NEVER}
`;
const BAD = 'tools: {a: {}}\nrules:\n  - {condition: {}, permission: NEVR}\nmore: 1\n';
const write = (name: string, text: string): string => {
  const file = join(folder, name);
  writeFileSync(file, text);
  return file;
};
const good = write('good.yaml', GOOD);
const bad = write('bad.yaml', BAD);

/** No database is reachable at this address: neither command uses one. */
const NOWHERE = { DATABASE_URL: 'postgres://nobody@127.0.0.1:1/none', BOXCAR_DATABASE_WAIT_SECONDS: '0' };
const run = (args: readonly string[], env: Readonly<Record<string, string>> = {}) =>
  cliHere(['policy', ...args], { ...NOWHERE, ...env });

it('check prints the version of a valid policy', async () => {
  const { version } = parsePolicy(GOOD);
  expect(await run(['check', good])).toEqual({
    code: 0,
    stdout: `${good}: 1 tool, 2 rules; version ${version}\n`,
    stderr: '',
  });
  const { code, stdout } = await run(['check', good, '--json']);
  expect([code, JSON.parse(stdout)]).toEqual([0, { file: good, version, findings: [] }]);
});

it('check shows every finding with its place, and exits with 1', async () => {
  expect(await run(['check', bad])).toEqual({
    code: 1,
    stdout: [
      `${bad}:1:12 tools.a: has no permission; it must be ALWAYS, REQUIRE_APPROVAL, NEVER`,
      `${bad}:3:33 rules.0.permission: must be one of ALWAYS, REQUIRE_APPROVAL, NEVER, not "NEVR" (did you mean "NEVER"?)`,
      `${bad}:4:1 policy: unknown key "more"; known here are tools, rules`,
      '3 findings; the policy cannot be used.\n',
    ].join('\n'),
    stderr: '',
  });
  const { code, stdout } = await run(['check', bad, '--json']);
  expect([code, JSON.parse(stdout)]).toMatchObject([
    1,
    { file: bad, version: null, findings: [{ line: 1, column: 12, path: 'tools.a' }, {}, { line: 4 }] },
  ]);
});

it('check shows all of many findings', async () => {
  const many = write('many.yaml', `rules:\n${'  - {condition: {}, permission: NEVR}\n'.repeat(500)}`);
  const { code, stdout } = await run(['check', many, '--json']);
  expect([code, JSON.parse(stdout).findings.length]).toEqual([1, 500]);
});

it('a file that cannot be read or is not valid is an error', async () => {
  expect(await run(['check', join(folder, 'none.yaml')])).toMatchObject({
    code: 1,
    stdout: '',
    stderr: expect.stringMatching(/^boxcar: bad_request: .*none\.yaml: ENOENT/),
  });
  expect(await run(['explain', '--tool', 'handoff', '--file', bad])).toMatchObject({
    code: 1,
    stdout: '',
    stderr: expect.stringMatching(/^boxcar: policy_invalid: .*bad\.yaml:1:12 tools\.a: has no permission/),
  });
});

it('explain shows the level, the deciding rule and the answer of each rule', async () => {
  const { code, stdout } = await run(['explain', '--tool', 'agent.handoff', '--file', good]);
  expect(code).toBe(0);
  expect(stdout.split('\n').map((line) => line.trimEnd().replaceAll(/ {2,}/g, ' '))).toEqual([
    'level require_approval',
    'rule tools.handoff',
    'environment production',
    `version ${parsePolicy(GOOD).version}`,
    '',
    'rule level keys of this call',
    'rules.0 always 2 not by environment',
    'rules.1 never 1 not by context.target_agent',
    'tools.handoff require_approval 0 matches',
    '',
  ]);
});

it('explain answers like the library, with values from flags and from the environment', async () => {
  const external = ['--context', '{"target_agent": "external-a", "args": {"task": "x"}}'];
  const { stdout } = await run(['explain', '--tool', 'handoff', '--file', good, ...external, '--json']);
  expect(JSON.parse(stdout)).toEqual({
    level: 'never',
    rule_id: 'rules.1',
    policy_version: parsePolicy(GOOD).version,
    trace: [
      { rule_id: 'rules.0', level: 'always', keys: 2, matched: false, failed_key: 'environment' },
      { rule_id: 'rules.1', level: 'never', keys: 1, matched: true },
    ],
  });
  const levelOf = async (args: readonly string[], env: Readonly<Record<string, string>>): Promise<unknown> =>
    JSON.parse((await run(['explain', '--tool', 'handoff', '--json', ...args], env)).stdout).level;
  const env = { BOXCAR_POLICY_FILE: good, BOXCAR_ENVIRONMENT: 'development' };
  expect(await levelOf([], env)).toBe('always');
  expect(await levelOf(['--environment', 'staging'], env)).toBe('require_approval');
  expect(await levelOf(['--file', good], { BOXCAR_POLICY_FILE: bad })).toBe('require_approval');
});

it.each([
  [['--tool', 'a'], /give --file, or set BOXCAR_POLICY_FILE/],
  [['--file', good], /--tool <name>/],
  [['--tool', 'a', '--file', good, '--context', '{'], /--context is not JSON/],
  [['--tool', 'a', '--file', good, '--context', '[]'], /--context must be a JSON object/],
  [
    ['--tool', 'a', '--file', good, '--context', '{"target": "x"}'],
    /unknown key 'target'; known are platform/,
  ],
  [['--tool', 'a', '--file', good, '--context', '{"platform": "opnai"}'], /'opnai' is not a platform/],
  [['--tool', 'a', '--file', good, '--context', '{"source_agent": 1}'], /source_agent must be a string/],
])('explain %j is wrong usage', async (args, message) => {
  expect(await run(['explain', ...args])).toMatchObject({
    code: 2,
    stdout: '',
    stderr: expect.stringMatching(message),
  });
});
