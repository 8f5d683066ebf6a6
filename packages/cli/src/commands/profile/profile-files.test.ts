import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { KernelError } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { beforeAll, describe, expect, it } from 'vitest';
import { type ProfileFinding, readProfiles, readTexts } from './profile-files.js';

const model = createModelRouter();
const read = (...texts: string[]) =>
  readProfiles(
    texts.map((text, index) => ({ name: `${index + 1}.yaml`, text })),
    (profile) => model.checkProfile?.(profile),
  );

function findingsOf(...texts: string[]): string[] {
  try {
    read(...texts);
    return [];
  } catch (error) {
    if (!(error instanceof KernelError)) throw error;
    expect(error.code).toBe('profile_invalid');
    const findings = error.details.findings as ProfileFinding[];
    expect(error.message).toContain(findings[0]?.place);
    return findings.map(({ place, message }) => `${place} ${message}`);
  }
}

const OK = 'name: a\ninstructions: x\nmodel: scripted\nscript: [{ say: x }]\n';

describe('profile files', () => {
  it('hold one or more documents, ignore empty documents, and read JSON alike', () => {
    const found = read(
      `---\n${OK}---\n---\n# only a comment\n---\n${OK.replace('name: a', 'name: b')}`,
      JSON.stringify({ name: 'c', instructions: 'x', model: 'scripted', script: [{ say: 'x' }] }, null, '\t'),
    );
    expect(found.map(({ profile, file, line }) => `${profile.name} ${file}:${line}`)).toEqual([
      'a 1.yaml:2',
      'b 1.yaml:10',
      'c 2.yaml:1',
    ]);
  });

  it('may merge the keys of an anchor with <<, which does not replace own keys', () => {
    const [one] = read(
      'name: a\ninstructions: x\nmodel: scripted\nscript:\n  - &base { say: x, expect: { contains: y } }\n  - { <<: *base, say: z }\n',
    );
    expect(one?.profile.script).toEqual([
      { say: 'x', expect: { contains: 'y' } },
      { say: 'z', expect: { contains: 'y' } },
    ]);
    expect(findingsOf(`${OK}<<: 3\n`)).toEqual(['1.yaml:5:1 Merge sources must be maps or map aliases']);
  });

  it('report every finding of every document with its file, line and field', () => {
    expect(
      findingsOf(
        `${OK}limits:\n  max_steps: 0\n---\nname: b\ninstructions: x\nmodel: nosuch:gpt\n`,
        `name: c\ninstructions: x\nmodel: scripted\ncolour: red\nscript:\n  - say: x\n`,
      ),
    ).toEqual([
      "1.yaml:6:3 profile 'a': limits.max_steps: must be at least 1",
      expect.stringMatching(
        /^1\.yaml:10:1 profile 'b': model: no adapter serves 'nosuch:gpt'; known prefixes are .*scripted/,
      ),
      expect.stringMatching(
        /^2\.yaml:4:1 unknown key 'colour'; known here are name, description, .*limits, view$/,
      ),
    ]);
  });

  it('report an invalid script with its place in the document', () => {
    const [finding] = findingsOf(
      `name: a\ninstructions: x\nmodel: scripted\nscript:\n  - say: x\n  - calls:\n      - tool: ""\n`,
    );
    expect(finding).toMatch(/^1\.yaml:7:9 script\.1\.calls\.0\.tool: /);
  });

  it('report broken YAML, duplicate keys and unknown tags with a line', () => {
    expect(findingsOf(`${OK}tools: [a\n`)[0]).toMatch(/^1\.yaml:6:1 Flow sequence/);
    expect(findingsOf(`${OK}name: b\n`)[0]).toMatch(/^1\.yaml:5:1 Map keys must be unique/);
    expect(findingsOf(`${OK}tags: !secret [x]\n`)[0]).toMatch(/^1\.yaml:5:\d+ Unresolved tag/);
  });

  it('report a document that is not a profile at all', () => {
    expect(findingsOf('')).toEqual(['1.yaml:1:1 holds no profile']);
    expect(findingsOf('# nothing\n')).toEqual(['1.yaml:1:1 holds no profile']);
    expect(findingsOf('just words')[0]).toMatch(/^1\.yaml:1:1 must be an object, not a string/);
    expect(findingsOf('- name: a\n')[0]).toMatch(/^1\.yaml:1:1 /);
  });

  it('report a name that occurs twice in one call', () => {
    expect(findingsOf(OK, `# again\n${OK}`)).toEqual(["2.yaml:2:1 name: 'a' is also in 1.yaml:1"]);
  });

  it('report an unknown key with a similar known key, at any depth, each key by itself', () => {
    expect(
      findingsOf(
        `${OK}instruction: x\nmodelSettings: {}\nlimits:\n  maxsteps: 3\n  zzz: 1\ndelegation_policy: { target_profiles: null, target_tag: [] }\n`,
      ),
    ).toEqual([
      "1.yaml:5:1 unknown key 'instruction'; did you mean 'instructions'?",
      "1.yaml:6:1 unknown key 'modelSettings'; did you mean 'model_settings'?",
      "1.yaml:8:3 limits: unknown key 'maxsteps'; did you mean 'max_steps'?",
      "1.yaml:9:3 limits: unknown key 'zzz'; known here are max_steps, tool_timeout_seconds, model_timeout_seconds, tokens, on_budget, context_tokens, context_reminder, model_retries, retry_base_seconds, retry_max_seconds",
      "1.yaml:10:45 delegation_policy: unknown key 'target_tag'; did you mean 'target_tags'?",
    ]);
  });

  it.each([
    ['a tab as indentation', 'limits:\n\tmax_steps: 1\n', /^1\.yaml:6:1 Tabs are not allowed/],
    ['a missing colon', 'tools\n', /^1\.yaml:5:1 Implicit map keys need to be followed by map values/],
    ['a key that is a list', '? [a]\n: 1\n', /^1\.yaml:5:3 .*keys must be strings/],
    ['an alias without an anchor', 'tags: [*nothing]\n', /^1\.yaml:5:8 Unresolved alias .*nothing/],
    [
      'aliases that grow without end',
      `description: x\na: &a [${'x,'.repeat(20)}]\nb: &b [${'*a,'.repeat(20)}]\nc: [${'*b,'.repeat(20)}]\n`,
      /^1\.yaml:7:8 Excessive alias count/,
    ],
    ['an alias inside itself', 'tags: &s [*s]\n', /^1\.yaml:5:\d+ profile\.tags.* nested deeper than 200/],
    [
      'nesting that is too deep for a stack',
      `tags: ${'['.repeat(20_000)}`,
      /^1\.yaml:5:\d+ Maximum call stack/,
    ],
    ['a number for a text', 'description: 7\n', /^1\.yaml:5:1 description: must be a string, not a number/],
    ['a text for a list', 'tags: code\n', /^1\.yaml:5:1 tags: must be a list, not a string/],
    ['nothing in place of a text', 'description:\n', /^1\.yaml:5:1 description: must be a string, not null/],
    [
      'a number that is not valid',
      'model_settings: { temperature: .nan }\n',
      /^1\.yaml:5:19 .*not a finite number/,
    ],
    ['bytes', 'description: !!binary aGk=\n', /^1\.yaml:5:1 .*not a plain object/],
    ['a NUL', 'description: "a\\0"\n', /^1\.yaml:5:1 .*NUL/],
  ])('%s is a finding at its place', (_what, text, expected) => {
    expect(findingsOf(OK + text)[0]).toMatch(expected);
  });

  it('name a missing field with its type', () => {
    expect(findingsOf('name: a\nmodel: scripted\n')).toEqual([
      '1.yaml:1:1 instructions: is missing; it must be a string',
    ]);
  });

  it('give short messages for any content of the file', () => {
    for (const text of [`${'k'.repeat(5_000)}: 1\n`, 'description: &s { a: *s }\n'])
      expect(findingsOf(OK + text)[0]?.length).toBeLessThan(400);
  });
});

describe('a file of profiles', () => {
  let folder: string;
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'boxcar-profiles-'));
    return () => rm(folder, { recursive: true, force: true });
  });
  const errorOf = async (name: string): Promise<KernelError> => {
    const thrown: unknown = await readTexts([name]).catch((error: unknown) => error);
    expect(thrown).toBeInstanceOf(KernelError);
    return thrown as KernelError;
  };

  it('is UTF-8, with or without a byte order mark', async () => {
    const name = join(folder, 'bom.yaml');
    await writeFile(name, `\ufeff${OK.replace('x\n', 'é 漢 🚃\n')}`);
    const [file] = await readTexts([name]);
    expect(readProfiles([file ?? { name, text: '' }], () => undefined)[0]?.profile.instructions).toBe(
      'é 漢 🚃',
    );
  });

  it.each([
    ['Latin-1', Buffer.concat([Buffer.from(OK), Buffer.from([0x23, 0xe9, 0x0a])]), 5],
    ['Latin-1 without a line break at the end', Buffer.concat([Buffer.from(OK), Buffer.from([0xe9])]), 5],
    ['UTF-16', Buffer.from(`\ufeff${OK}`, 'utf16le'), 1],
  ])('in %s is a finding with the line where it stops being UTF-8', async (what, bytes, line) => {
    const name = join(folder, `${what.length}.yaml`);
    await writeFile(name, bytes);
    const error = await errorOf(name);
    expect(error.code).toBe('profile_invalid');
    expect(error.message).toContain(`${name}:${line}:1: is not UTF-8 text`);
  });

  it('that is a folder, or does not exist, is named', async () => {
    expect(await errorOf(folder)).toMatchObject({
      code: 'bad_request',
      message: expect.stringContaining('is a folder; name the files in it'),
      details: { file: folder },
    });
    expect((await errorOf(join(folder, 'nothing.yaml'))).message).toContain('the file does not exist');
  });
});
