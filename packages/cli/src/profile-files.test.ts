import { KernelError } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { describe, expect, it } from 'vitest';
import { type ProfileFinding, readProfiles } from './profile-files.js';

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
  it('hold one or more documents, empty ones ignored; JSON is read alike', () => {
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

  it('every finding of every document has its file, line and field', () => {
    expect(
      findingsOf(
        `${OK}limits:\n  max_steps: 0\n---\nname: b\ninstructions: x\nmodel: openai:gpt\n`,
        `name: c\ninstructions: x\nmodel: scripted\ncolour: red\nscript:\n  - say: x\n`,
      ),
    ).toEqual([
      '1.yaml:6:3 limits.max_steps: Too small: expected number to be >=1',
      "1.yaml:10:1 model: no adapter serves 'openai:gpt'; known prefixes are scripted",
      '2.yaml:4:1 Unrecognized key: "colour"',
    ]);
  });

  it('a wrong script is pointed to inside the document', () => {
    const [finding] = findingsOf(
      `name: a\ninstructions: x\nmodel: scripted\nscript:\n  - say: x\n  - calls:\n      - tool: ""\n`,
    );
    expect(finding).toMatch(/^1\.yaml:7:9 script\.1\.calls\.0\.tool: /);
  });

  it('broken YAML, keys that stand twice and unknown tags are findings with a line', () => {
    expect(findingsOf(`${OK}tools: [a\n`)[0]).toMatch(/^1\.yaml:6:1 Flow sequence/);
    expect(findingsOf(`${OK}name: b\n`)[0]).toMatch(/^1\.yaml:5:1 Map keys must be unique/);
    expect(findingsOf(`${OK}tags: !secret [x]\n`)[0]).toMatch(/^1\.yaml:5:\d+ Unresolved tag/);
  });

  it('what is no profile at all is a finding too', () => {
    expect(findingsOf('')).toEqual(['1.yaml:1:1 holds no profile']);
    expect(findingsOf('# nothing\n')).toEqual(['1.yaml:1:1 holds no profile']);
    expect(findingsOf('just words')[0]).toMatch(/^1\.yaml:1:1 Invalid input: expected object/);
    expect(findingsOf('- name: a\n')[0]).toMatch(/^1\.yaml:1:1 /);
  });

  it('a name that stands twice in one call is a mistake', () => {
    expect(findingsOf(OK, `# again\n${OK}`)).toEqual(["2.yaml:2:1 name: 'a' stands in 1.yaml:1 too"]);
  });
});
