import {
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  truncateSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { KernelError } from '@boxcar/kernel';
import { afterAll, beforeEach, expect, it, onTestFinished, vi } from 'vitest';
import { PermissionEvaluator, type PermissionEvaluatorOptions } from './permission-evaluator.js';
import { SEED_POLICY } from './testing/seed-policy.js';

const folder = mkdtempSync(join(tmpdir(), 'boxcar-policy-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const saying = (permission: string): string => `tools: {deploy: {permission: ${permission}}}\n`;
const ALWAYS = saying('ALWAYS');
const NEVER = saying('NEVER');

let file: string;
let count = 0;
beforeEach(() => {
  file = join(folder, `policy-${count++}.yaml`);
  writeFileSync(file, ALWAYS);
  vi.stubEnv('BOXCAR_POLICY_FILE', undefined);
  vi.stubEnv('BOXCAR_ENVIRONMENT', undefined);
  onTestFinished(() => void vi.unstubAllEnvs());
});

/** An evaluator of the file whose clock moves only when the test moves it. The file system has its own clock. */
function watch(options: PermissionEvaluatorOptions = {}) {
  const problems: KernelError[] = [];
  const startMs = Date.now();
  let passedMs = 0;
  const evaluator = new PermissionEvaluator({
    file,
    onProblem: (problem) => problems.push(problem),
    clock: { monotonicMs: () => passedMs, wallMs: () => startMs + passedMs },
    ...options,
  });
  const level = (): string => evaluator.evaluate({ tool: 'deploy' }).level;
  const pass = (ms: number): void => {
    passedMs += ms;
  };
  const after = (ms: number): string => {
    pass(ms);
    return level();
  };
  return { evaluator, problems, level, pass, after };
}

/** Sets the file's own modification time. */
const setAge = (seconds: number): void => {
  const at = Date.now() / 1000 - seconds;
  utimesSync(file, at, at);
};

const codeOf = (options: PermissionEvaluatorOptions): string | undefined => {
  try {
    new PermissionEvaluator(options);
  } catch (error) {
    return (error as KernelError).code;
  }
  return undefined;
};

it('a broken, missing or duplicate policy prevents the start of a program', () => {
  expect(codeOf({ file: join(folder, 'none.yaml') })).toBe('bad_config');
  expect(codeOf({ file: folder })).toBe('bad_config');
  expect(codeOf({})).toBe('bad_config');
  expect(codeOf({ text: '' })).toBe('policy_invalid');
  expect(codeOf({ file, text: ALWAYS })).toBe('bad_request');
  expect(codeOf({ file: ' ' })).toBe('bad_request');
  expect(codeOf({ text: ALWAYS, environment: '' })).toBe('bad_request');
  writeFileSync(file, 'tools: [');
  expect(codeOf({ file })).toBe('policy_invalid');
  expect(codeOf({ text: ALWAYS })).toBeUndefined();
});

it('file and environment default to those of the process, and without any the environment is production', () => {
  const text = 'rules: [{condition: {environment: production}, permission: NEVER}]';
  const answer = (options: PermissionEvaluatorOptions): string =>
    new PermissionEvaluator(options).evaluate({ tool: 'handoff' }).level;
  expect(answer({ text })).toBe('never');
  expect(answer({ text, environment: 'development' })).toBe('require_approval');
  vi.stubEnv('BOXCAR_ENVIRONMENT', 'staging');
  expect(answer({ text })).toBe('require_approval');
  vi.stubEnv('BOXCAR_ENVIRONMENT', '');
  expect(answer({ text })).toBe('never');
  writeFileSync(file, text);
  vi.stubEnv('BOXCAR_POLICY_FILE', file);
  expect(answer({})).toBe('never');
  // A text replaces the file's policy; it is not added to it.
  expect(answer({ text: 'rules: [{condition: {}, permission: ALWAYS}]' })).toBe('always');
});

it('the evaluator answers by the file of the description, and returns the values to record', () => {
  const evaluator = new PermissionEvaluator({ text: SEED_POLICY, environment: 'development' });
  const answer = evaluator.evaluate({ tool: 'handoff', context: { target_agent: 'external-a' } });
  expect(answer).toMatchObject({
    level: 'never',
    rule_id: 'rules.2',
    policy_version: evaluator.policy.version,
  });
  expect(evaluator.policy.text).toBe(SEED_POLICY);
  expect(evaluator.problem).toBeUndefined();
});

it('a file that is written in place is used after at most 5 s', () => {
  const { level, after } = watch();
  expect(level()).toBe('always');
  writeFileSync(file, NEVER);
  expect(after(5_000)).toBe('never');
  writeFileSync(file, ALWAYS);
  expect(after(5_000)).toBe('always');
});

it('a file that is replaced by a rename is used, also with the size and time of the old file', () => {
  const { after } = watch();
  const [a, b] = [saying('ALWAYS'), saying('never ')];
  expect(a.length).toBe(b.length);
  const next = `${file}.next`;
  writeFileSync(next, b);
  const at = new Date(Date.now() - 60_000);
  utimesSync(file, at, at);
  utimesSync(next, at, at);
  expect(after(5_000)).toBe('always');
  renameSync(next, file);
  expect(after(5_000)).toBe('never');
});

it('a change within the same clock tick and with the same size is noticed', () => {
  writeFileSync(file, saying('ALWAYS'));
  const { after } = watch();
  writeFileSync(file, saying('never '));
  expect(after(5_000)).toBe('never');
});

it('the file is checked at most once a second', () => {
  setAge(60);
  const { after } = watch();
  expect(after(500)).toBe('always');
  writeFileSync(file, NEVER);
  setAge(60);
  expect(after(499)).toBe('always');
  expect(after(1)).toBe('never');
});

it('a file that is being written is not used until the writing has stopped', () => {
  writeFileSync(file, 'rules:\n  - {condition: {tool_name: deploy}, permission: NEVER}\n');
  const { after, problems } = watch();
  expect(after(3_000)).toBe('never');
  truncateSync(file, 0);
  setAge(-3.5);
  expect(after(1_000)).toBe('never');
  // The first half of a file can be a valid policy, too.
  writeFileSync(file, ALWAYS);
  setAge(-4.5);
  expect(after(999)).toBe('never');
  writeFileSync(file, `${ALWAYS}rules:\n  - {condition: {tool_name: deploy}, permission: NEVER}\n`);
  setAge(-5.5);
  expect(after(1)).toBe('never');
  expect(after(5_000)).toBe('never');
  expect(problems).toEqual([]);
});

it('a file with a time in the future is used after two checks, or at the first check after a pause', () => {
  const { after } = watch();
  expect(after(3_000)).toBe('always');
  writeFileSync(file, NEVER);
  setAge(-3_600);
  expect(after(1_000)).toBe('always');
  expect(after(1_000)).toBe('never');
  writeFileSync(file, ALWAYS);
  setAge(-7_200);
  expect(after(4_000)).toBe('always');
});

it('a broken file keeps the last good policy, and each broken version is reported once', () => {
  const { evaluator, problems, after } = watch();
  writeFileSync(file, 'tools: {deploy: {permission: NEVR}}\n');
  expect(after(5_000)).toBe('always');
  expect(after(5_000)).toBe('always');
  expect(problems.map(({ code, message }) => [code, message])).toEqual([
    ['policy_invalid', expect.stringContaining(`${file}:1:30 tools.deploy.permission: must be one of`)],
  ]);
  expect(evaluator.problem).toBe(problems[0]);
  // The file is saved again, unchanged.
  writeFileSync(file, readFileSync(file));
  expect(after(5_000)).toBe('always');
  expect(problems).toHaveLength(1);
  writeFileSync(file, 'tools: {deploy: {permission: 1}}\n');
  expect(after(5_000)).toBe('always');
  expect(problems).toHaveLength(2);
  writeFileSync(file, NEVER);
  expect(after(5_000)).toBe('never');
  expect(evaluator.problem).toBeUndefined();
  writeFileSync(file, 'tools: {deploy: {permission: NEVR}}\n');
  expect(after(5_000)).toBe('never');
  expect(problems).toHaveLength(3);
});

it('a removed file keeps the last good policy, is reported once, and is used when it is back', () => {
  const { evaluator, problems, after } = watch();
  rmSync(file);
  expect(after(1_000)).toBe('always');
  expect(after(5_000)).toBe('always');
  expect(problems.map(({ code }) => code)).toEqual(['bad_config']);
  expect(evaluator.problem?.message).toContain('ENOENT');
  mkdirSync(file);
  expect(after(5_000)).toBe('always');
  expect(problems).toHaveLength(2);
  rmSync(file, { recursive: true });
  writeFileSync(file, NEVER);
  expect(after(5_000)).toBe('never');
  expect(evaluator.problem).toBeUndefined();
});

it('a problem can be read without a decision', () => {
  const { evaluator, problems, pass } = watch();
  expect(evaluator.problem).toBeUndefined();
  rmSync(file);
  pass(1_000);
  expect(evaluator.problem?.code).toBe('bad_config');
  expect(problems).toEqual([evaluator.problem]);
});

it('a changed comment changes the recorded text and keeps the version', () => {
  const { evaluator, after } = watch();
  const { version } = evaluator.policy;
  writeFileSync(file, `# Reviewed.\n${ALWAYS}`);
  after(5_000);
  expect(evaluator.policy).toMatchObject({ version, text: `# Reviewed.\n${ALWAYS}` });
});

it('the real clock follows a real file', () => {
  setAge(60);
  const evaluator = new PermissionEvaluator({ file });
  expect(evaluator.evaluate({ tool: 'deploy' })).toMatchObject({ level: 'always', rule_id: 'tools.deploy' });
});
