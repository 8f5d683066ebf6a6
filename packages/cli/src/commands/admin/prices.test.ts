import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { cliHere, prepare } from '../../testing/cli.js';

let database: TestDatabase;
let folder: string;
const run = (...args: string[]) => cliHere(args, { DATABASE_URL: database.url });
interface Line {
  readonly model: string;
  readonly price: object | null;
  readonly from: string | null;
  readonly source: string | null;
  readonly profiles: readonly string[];
}
const list = async (): Promise<ReadonlyMap<string, Line>> => {
  const { stdout } = await run('prices', 'ls', '--json');
  const { prices } = JSON.parse(stdout) as { prices: readonly Line[] };
  return new Map(prices.map((line) => [line.model, line]));
};

beforeAll(async () => {
  database = await testDatabase();
  folder = await mkdtemp(join(tmpdir(), 'boxcar-prices-'));
});
afterAll(async () => {
  await database.close();
  await rm(folder, { recursive: true });
});

it('prices are listed with their source, set by project, and removed', async () => {
  expect((await list()).get('openai:gpt-4.1')).toMatchObject({
    price: { input: 2_000_000, output: 8_000_000 },
    from: 'built-in',
    source: expect.stringMatching(/^https:/),
  });
  const set = await run(
    'prices',
    'set',
    'openai:gpt-4.1',
    '--input',
    '3.5',
    '--output',
    '9',
    '--reasoning',
    '12',
  );
  expect(set).toMatchObject({ code: 0, stderr: '' });
  expect(set.stdout).toMatch(/openai:gpt-4\.1 +3\.5 +9 +12 +project/);
  expect((await list()).get('openai:gpt-4.1')).toMatchObject({
    price: { input: 3_500_000, output: 9_000_000, reasoning: 12_000_000 },
    from: 'project',
  });
  expect((await run('prices', 'set', 'mine:llama', '--free')).stdout).toMatch(/mine:llama +free/);
  expect((await run('prices', 'set', 'openai:gpt-4.1', '--none')).stdout).toMatch(/built-in/);
  expect((await run('prices', 'set', 'mine:llama', '--none')).stdout).toBe('mine:llama has no price.\n');
});

it('a model of a profile without a price is listed, and is a finding of doctor until a price is set', async () => {
  await (await prepare({ DATABASE_URL: database.url })).close();
  const applied = await run(
    'profiles',
    'apply',
    '-f',
    new URL('../../fixtures/unpriced.yaml', import.meta.url).pathname,
  );
  expect(applied).toMatchObject({ code: 0 });
  expect((await list()).get('openai-compatible:llama')).toMatchObject({
    price: null,
    from: null,
    profiles: ['asker'],
  });
  const finding = async () =>
    (
      JSON.parse((await run('doctor', '--json')).stdout) as {
        findings: { check: string; level: string; message: string }[];
      }
    ).findings.filter(({ check }) => check === 'prices');
  expect(await finding()).toMatchObject([
    { level: 'warn', message: expect.stringContaining('openai-compatible:llama') },
  ]);
  await run('prices', 'set', 'openai-compatible:llama', '--free');
  expect(await finding()).toMatchObject([{ level: 'ok' }]);
});

it('the command from doctor sets the missing price: for a model with any name, in its own project', async () => {
  await database.pool.query(
    `insert into boxcar.projects (id, name, operator_agent_id, bootstrap_card_id)
     select gen_random_uuid(), 'other', operator_agent_id, bootstrap_card_id from boxcar.projects limit 1`,
  );
  const model = 'openai-compatible:Llama 3 (große)';
  const yaml = JSON.stringify({ name: 'speaker', instructions: 'You speak.', model });
  await writeFile(join(folder, 'speaker.yaml'), yaml);
  const applied = await run('profiles', 'apply', '-f', join(folder, 'speaker.yaml'), '--project', 'other');
  expect(applied).toMatchObject({ code: 0 });
  const finding = async () =>
    (
      JSON.parse((await run('doctor', '--json')).stdout) as {
        findings: { check: string; message: string; next?: string }[];
      }
    ).findings.filter(({ check, message }) => check === 'prices' && message.includes('Llama'));
  const [missing] = await finding();
  expect(missing?.next).toContain(`boxcar prices set '${model}'`);
  expect(missing?.next).toContain('--project other');
  expect(await run('prices', 'set', model, '--free', '--project', 'other')).toMatchObject({ code: 0 });
  expect(await finding()).toEqual([]);
});

it.each([
  [['openai:x', '--input', '1'], /--input and --output/],
  [['openai:x', '--free', '--none'], /--input and --output, or --free, or --none/],
  [['openai:x', '--input', '-1', '--output', '1'], /dollars for a million tokens/],
  [['openai', '--free'], /as profiles name it/],
])('%j is refused', async (args, message) => {
  const { code, stderr } = await run('prices', 'set', ...args);
  expect(code).toBeGreaterThan(0);
  expect(stderr).toMatch(message);
});
