import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { KernelError } from '@boxcar/kernel';
import { expect, test } from 'vitest';
import { checkTargets, parseTargets, readTargetsFile } from './parse-targets.js';
import { resolveTarget } from './resolve-target.js';

const YAML = `
writer: { platform: openai, model: gpt-large, max_output_tokens: 500 }
judge:
  platform: Claude
  model: claude-large
  api_key_env: JUDGE_KEY
planner: { platform: anthropic-adk, app: planner, base_url: "http://127.0.0.1:8000/" }
remote: { platform: adk, card_url: "https://agents.example/card.json" }
`;

function failureOf(work: () => unknown): KernelError {
  try {
    work();
  } catch (error) {
    if (error instanceof KernelError) return error;
    throw error;
  }
  throw new Error('it did not fail');
}

test('entries are read from YAML and from JSON, and platforms get their first names', () => {
  const targets = parseTargets(YAML, 'targets.yaml');
  expect([...targets]).toEqual([
    ['writer', { platform: 'openai', model: 'gpt-large', max_output_tokens: 500 }],
    ['judge', { platform: 'anthropic', model: 'claude-large', api_key_env: 'JUDGE_KEY' }],
    ['planner', { platform: 'adk', app: 'planner', base_url: 'http://127.0.0.1:8000' }],
    ['remote', { platform: 'adk', card_url: 'https://agents.example/card.json' }],
  ]);
  const json = JSON.stringify(Object.fromEntries(targets));
  expect(parseTargets(json, 'targets.json')).toEqual(targets);
  expect(checkTargets(JSON.parse(json))).toEqual(targets);
  expect(parseTargets('# none yet\n', 'targets.yaml').size).toBe(0);
});

test('all findings about a file are reported at once, with their places and without the values', () => {
  const text = `writer: { platform: openai }
judge: { platform: anthropic, model: m, api_key: sk-secret-value-1234567890 }
planner: { platform: adk, app: a }
both: { platform: adk, app: a, base_url: "http://h", card_url: "http://h/c" }
remote:
  platform: adk
  card_url: "ftp://host-that-is-secret/card"
user: { platform: adk, card_url: "https://name:word-that-is-secret@host/card" }
native: { platform: boxcar }
unknown: { platform: opena }
key: { platform: openai, model: m, api_key_env: sk-secret-value-1234567890 }
words: text
`;
  const { code, message } = failureOf(() => parseTargets(text, 'targets.yaml'));
  expect(code).toBe('bad_config');
  for (const finding of [
    'targets.yaml:1:9 writer.model: is missing',
    'targets.yaml:2:8 judge: unknown key "api_key"',
    'targets.yaml:3:10 planner: must have base_url',
    'targets.yaml:4:7 both: must have app or card_url, one of the two',
    'targets.yaml:7:13 remote.card_url: must be an http:// or https:// URL',
    'targets.yaml:8:34 user.card_url: must hold no user and no password',
    'targets.yaml:9:21 native.platform: an agent of this installation needs no entry; remove it',
    'targets.yaml:10:22 unknown.platform: must be one of adk, openai, anthropic',
    'targets.yaml:11:49 key.api_key_env: must be the name of an environment variable, not a key',
    'targets.yaml:12:8 words: must be an object',
  ])
    expect(message).toContain(finding);
  expect(message).not.toContain('secret');
});

test('the address of an API has no query, since paths are added to it', () => {
  for (const base_url of ['http://h/v1?key=word-that-is-secret', 'http://h/v1#part']) {
    const { message } = failureOf(() => checkTargets({ a: { platform: 'openai', model: 'm', base_url } }));
    expect(message).toContain('a.base_url: must have no ? and no #');
    expect(message).not.toContain('secret');
  }
});

test('names that are given twice, aliases and broken YAML are refused', () => {
  for (const [text, place] of [
    ['a: { platform: openai, model: m }\na: { platform: openai, model: n }\n', 't:2:1'],
    ['a: { platform: openai, model: sk-secret\nb: 1\n', 't:2:1'],
  ] as const) {
    const { code, message } = failureOf(() => parseTargets(text, 't'));
    expect([code, message.includes(place), message.includes('secret')]).toEqual(['bad_config', true, false]);
  }
  expect(failureOf(() => parseTargets('[]', 't')).message).toContain('t:1:1 targets: must be an object');
  expect(
    failureOf(() => parseTargets('a: &x { platform: openai, model: m }\nb: *x\n', 't')).message,
  ).toContain('t:2:4 targets: has an alias');
});

test('a missing file is a finding of the configuration', () => {
  const folder = mkdtempSync(join(tmpdir(), 'boxcar-targets-'));
  const { code, message } = failureOf(() => readTargetsFile(join(folder, 'none.yaml')));
  expect([code, message.includes('ENOENT'), message.includes('BOXCAR_TARGETS_FILE')]).toEqual([
    'bad_config',
    true,
    true,
  ]);
  writeFileSync(join(folder, 'targets.yaml'), YAML);
  expect(readTargetsFile(join(folder, 'targets.yaml')).size).toBe(4);
});

test('an unknown member of an entry is refused on each platform', () => {
  for (const entry of [
    { platform: 'openai', model: 'm' },
    { platform: 'anthropic', model: 'm' },
    { platform: 'adk', card_url: 'https://agents.example/' },
  ])
    expect(failureOf(() => checkTargets({ a: { ...entry, api_key: 'x' } })).message).toContain('unknown key');
});

test('a platform that a program has registered has entries with its own members', () => {
  const input = { robot: { platform: 'Acme', max_output_tokens: 5, arm: { left: true } } };
  expect(checkTargets(input, { customPlatforms: ['acme'] }).get('robot')).toEqual({
    platform: 'acme',
    max_output_tokens: 5,
    arm: { left: true },
  });
  expect(failureOf(() => checkTargets(input)).message).toContain('robot.platform: must be one of');
  expect(
    failureOf(() =>
      checkTargets({ robot: { platform: 'acme', max_output_tokens: 0 } }, { customPlatforms: ['acme'] }),
    ).message,
  ).toContain('robot.max_output_tokens');
});

test('a name is a target of its platform, and on openai and anthropic a model needs no entry', () => {
  const targets = parseTargets(YAML, 'targets.yaml');
  expect(resolveTarget(targets, 'openai', 'writer')).toBe(targets.get('writer'));
  expect(resolveTarget(targets, 'openai', 'model:gpt-small')).toEqual({
    platform: 'openai',
    model: 'gpt-small',
  });
  expect(resolveTarget(targets, 'anthropic', 'model: claude-small')).toEqual({
    platform: 'anthropic',
    model: 'claude-small',
  });
});

test('an unknown name is refused with the line to add', () => {
  const targets = parseTargets(YAML, 'targets.yaml');
  for (const [platform, name, line] of [
    ['openai', 'editor', 'editor: { platform: openai, model: <model> }'],
    ['adk', 'model:gpt-small', '"model:gpt-small": { platform: adk, card_url: <address of its card> }'],
    ['anthropic', 'model: ', '"model: ": { platform: anthropic, model: <model> }'],
    ['openai', 'constructor', 'constructor: { platform: openai, model: <model> }'],
    ['openai', '__proto__', '__proto__: { platform: openai, model: <model> }'],
  ] as const) {
    const { code, message, field } = failureOf(() => resolveTarget(targets, platform, name));
    expect([code, field]).toEqual(['bad_request', 'target_agent']);
    expect(message.endsWith(line)).toBe(true);
  }
  const elsewhere = failureOf(() => resolveTarget(targets, 'openai', 'judge')).message;
  expect(elsewhere).toContain("'judge' is not a target on openai, but on anthropic");
  expect(elsewhere).not.toContain('claude-large');
});
