import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Stack } from '@boxcar/host/open';
import { createWorker } from '@boxcar/runtime';
import { testDatabase } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { cliHere, type Env, prepare } from '../../testing/cli.js';

let folder: string;
let env: Env;
let stack: Stack;
let box: string;
let many: string;

const text = (words: string, type = 'task.context') => ({ type, content: { kind: 'text', text: words } });
const fileOf = (name: string, content: string): string => {
  const path = join(folder, name);
  writeFileSync(path, content);
  return path;
};

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'boxcar-cli-'));
  const database = await testDatabase({ empty: true });
  env = { DATABASE_URL: database.url };
  stack = await prepare(env);
  const made = (cards: readonly object[]) =>
    stack.runtime.packer.createBox({ projectId: 'default', sourceAgentId: 'operator', cards });
  box = await made([
    text('The first of the cards, and a long one. '.repeat(20)),
    text('short \u001b[31mred'),
    text('done', 'task.deliverable'),
  ]);
  many = await made(Array.from({ length: 500 }, (_item, n) => text(`card ${n}`)));
});

afterAll(async () => {
  await stack.close();
  rmSync(folder, { recursive: true, force: true });
});

const pack = (...args: readonly string[]) => cliHere(['pack', ...args], env);
const DRY = ['--dry-run', '--profile', 'writer', '--arg', 'instruction=Write it'];
const boxes = async (): Promise<number> => {
  const { rows } = await stack.runtime.pool.query<{ n: number }>(
    'select count(*)::int as n from boxcar.boxes',
  );
  return rows[0]?.n ?? Number.NaN;
};

describe('pack --dry-run', () => {
  it('lists the cards with the cost of each and the totals, and writes nothing', async () => {
    const before = await boxes();
    const { code, stdout, stderr } = await pack(...DRY, '--box', box);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    const [titles, ...lines] = stdout.split('\n');
    expect(titles).toMatch(/^rule +from +type +tokens +est\.$/);
    expect(lines[0]).toMatch(/^argument +instruction +task\.instruction +2 +9 +kept$/);
    expect(lines[1]).toMatch(new RegExp(`^inherit +…${box.slice(-6)}:1 +task\\.context +\\d+ +207 +kept$`));
    expect(lines[3]).toMatch(/^inherit +….*:3 +task\.deliverable +1 +8 +kept$/);
    expect(lines[4]).toMatch(/^parent +meta\.parent_pointer +\d+ +\d+ +kept$/);
    expect(stdout).toMatch(/^profile +writer@1, scripted$/m);
    expect(stdout).toMatch(/^kept +5 cards, \d+ tokens, estimate \d+, [\d,]+ bytes$/m);
    expect(stdout).toMatch(/^prompt +6 messages, \d+ tokens, estimate \d+, without tools$/m);
    expect(stdout).toMatch(/^counted +by o200k_base, an estimate for this model$/m);
    expect(stdout).not.toMatch(/^(cut|budget) /m);
    expect(await boxes()).toBe(before);
  });

  it('says which cards a budget cuts, and why', async () => {
    const { code, stdout } = await pack(
      ...DRY,
      '--box',
      box,
      '--budget',
      '80',
      '--strategy',
      'deliverables_only',
    );
    expect(code).toBe(0);
    expect(stdout).toMatch(/task\.context +\d+ +207 +cut no_deliverable$/m);
    expect(stdout).toMatch(/task\.deliverable +1 +8 +kept$/m);
    expect(stdout).toMatch(/^cut +2 cards, /m);
    expect(stdout).toMatch(
      /^budget +80 tokens by estimate, deliverables_only; all cards are \d+: exceeded$/m,
    );
    const roomy = await pack(...DRY, '--box', box, '--budget', '8000');
    expect(roomy.stdout).toMatch(
      /^budget +8,000 tokens by estimate, error; all cards are \d+: nothing to cut$/m,
    );
  });

  it('prints a notice for each skipped rule and ignored key of a handover', async () => {
    const handover = fileOf(
      'own.yaml',
      [
        'target_profile_config: { profile_name: writer }',
        'retries: 3',
        'context_packing_config:',
        '  pack_arguments: [{ as_card_type: task.input }, { arg_key: ticket }]',
        '  budget_token: 8000',
      ].join('\n'),
    );
    const args = ['--handover', handover, '--arg', 'ticket=Look'];
    const { code, stdout, stderr } = await pack('--dry-run', ...args);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    expect(stdout.split('\n').filter((line) => line.startsWith('notice'))).toEqual([
      'notice: handover.retries is not a key of a handover; it is ignored',
      'notice: handover.context_packing_config.budget_token is not a key of a handover; it is ignored',
      'notice: handover.context_packing_config.pack_arguments.0 is a rule without arg_key; it is skipped',
    ]);
    const json = JSON.parse((await pack('--dry-run', ...args, '--json')).stdout);
    expect(json.notices).toHaveLength(3);
    expect((await pack('--dry-run', ...args, '--budget', '800', '--json')).stdout).toContain('"notices":[{');
    expect((await pack(...args, '--json')).code).toBe(0);
  });

  it('shows many similar neighbors in one line, and fits into 80 columns', async () => {
    const { stdout } = await pack(
      ...DRY,
      '--box',
      many,
      '--box',
      box,
      '--budget',
      '500',
      '--strategy',
      'newest',
    );
    expect(stdout).toMatch(/^inherit +….{6}:1–\d+ +\d+ task\.context +[\d,]+ +[\d,]+ +cut older$/m);
    expect(stdout.split('\n').length).toBeLessThan(20);
    for (const line of stdout.split('\n')) expect([...line].length).toBeLessThanOrEqual(80);
  });

  it('with --messages prints the first prompt without terminal control characters', async () => {
    const { stdout } = await pack(...DRY, '--box', box, '--messages');
    expect(stdout).toMatch(/^--- system, \d+ tokens$\nYou write\./m);
    expect(stdout).toMatch(/^--- user, \d+ tokens, card [0-9a-f-]{36}$\nshort {2}\[31mred$/m);
    expect(stdout).toMatch(/^--- user, 2 tokens, card new$\nWrite it$/m);
    expect(stdout).not.toContain('\u001b');
  });

  it('shows the bytes of the first prompt where result fields are binding', async () => {
    const fields = [{ name: 'title', type: 'string' }];
    const { stdout } = await pack(
      ...DRY,
      '--arg',
      `result_fields:=${JSON.stringify(fields)}`,
      '--box',
      box,
      '--json',
    );
    const { prompt } = JSON.parse(stdout) as {
      prompt: { messages: { message: { role: string; content: string } }[] };
    };
    const worker = await createWorker(stack.runtime);
    try {
      const { turn_id } = (await stack.runtime.submit('launch_principal', {
        profile_name: 'writer',
        instruction: 'Write it',
        result_fields: fields,
        context_box_id: box,
      })) as { turn_id: string };
      await stack.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
      const { messages } = await stack.runtime.explainStep(turn_id, { step: 1 });
      expect(prompt.messages.map(({ message: { role, content } }) => ({ role, content }))).toEqual(
        messages.map(({ role, content }) => ({ role, content })),
      );
    } finally {
      await worker.close();
    }
  });

  it('with --json prints the whole preview', async () => {
    const { code, stdout } = await pack(...DRY, '--box', box, '--json');
    expect(code).toBe(0);
    expect(JSON.parse(stdout)).toMatchObject({
      profile: { name: 'writer', version: 1 },
      budget: null,
      cards: [{ card_id: 'new' }, { source: box, position: 1, is_kept: true }, {}, {}, { rule: 'parent' }],
      segments: [{}, { source: box, from: 1, to: 3 }, {}],
      prompt: { messages: [{ message: { role: 'system' } }, {}, {}, {}, {}, {}] },
      tokenizer: { encoding: 'o200k_base', is_exact: false },
    });
  });

  it('accepts a strategy of a plugin', async () => {
    const plugin = fileOf(
      'plugin.mjs',
      `export default (runtime) => runtime.registerPackingStrategy('bare', ({ candidates }) => ({
        keep: candidates.filter((card) => card.isProtected).map((card) => card.cardId) }));`,
    );
    const flags = ['--box', box, '--budget', '60', '--strategy', 'bare'];
    expect((await pack(...DRY, ...flags, '--plugin', plugin)).stdout).toMatch(/cut not_chosen$/m);
    const { code, stderr } = await pack(...DRY, ...flags);
    expect({ code, stderr }).toMatchObject({
      code: 1,
      stderr: expect.stringContaining("no packing strategy 'bare'"),
    });
  });
});

it('an error names the flags as they were written', async () => {
  const missing = '0198c1f2-0000-7000-8000-000000000001';
  const refused: readonly (readonly [string[], string])[] = [
    [['--box', missing], `not_found: --box: no box ${missing}`],
    [['--box', box, '--box', 'x'], "not_found: --box: no box 'x'"],
    [['--budget', '5', '--box', box], '; --budget is 5.'],
    [['--strategy', 'newest'], 'bad_request: --strategy: needs --budget as well'],
  ];
  for (const [flags, words] of refused)
    for (const dry of [['--dry-run'], []]) {
      const { stderr } = await pack('--profile', 'writer', '--arg', 'instruction=Write it', ...dry, ...flags);
      expect(stderr.replace('boxcar: ', '')).toContain(words);
    }
});

it('show reports from the manifest which cards a budget cut', async () => {
  const { turn_id } = (await stack.runtime.submit('launch_principal', {
    profile_name: 'writer',
    instruction: 'go',
    context_box_id: [many, box],
    budget_tokens: 200,
    budget_strategy: 'newest',
  })) as { turn_id: string };
  const { stdout } = await cliHere(['show', turn_id], env);
  expect(stdout).toMatch(/^ {2}cut to budget +reason +cards +tokens +positions$/m);
  expect(stdout).toMatch(
    new RegExp(`^  newest, 200 +older +\\d+ +[\\d,]+ +1–\\d+ of …${many.slice(-6)}$`, 'm'),
  );
  expect(stdout).toMatch(new RegExp(`^  newest, 200 +too_large +1 +207 +1 of …${box.slice(-6)}$`, 'm'));
});

describe('a handover from a file', () => {
  const YAML = `
target_profile_config: { profile_name: boss }
context_packing_config:
  pack_arguments:
    - { arg_key: ticket, as_card_type: task.input }
  inherit_context: { include_boxes_from_args: [background], include_parent: true }
`;

  it('packs its arguments; a flag for the profile has precedence', async () => {
    const file = fileOf('rules.yaml', YAML);
    const args = ['--handover', file, '--arg', 'ticket:={"id":42}', '--arg', `background=${box}`];
    const dry = await pack('--dry-run', '--json', ...args);
    expect(JSON.parse(dry.stdout)).toMatchObject({ profile: { name: 'boss' }, kept: { cards: 5 } });
    const other = await pack(
      '--dry-run',
      '--json',
      '--profile',
      'writer',
      '--budget',
      '80',
      '--strategy',
      'newest',
      ...args,
    );
    expect(JSON.parse(other.stdout)).toMatchObject({ profile: { name: 'writer' }, kept: { cards: 4 } });
  });

  it('without --dry-run is packed, and the ids are printed', async () => {
    const file = fileOf(
      'rules.json',
      JSON.stringify({
        target_profile_config: { profile_name: 'writer' },
        context_packing_config: { pack_arguments: [{ arg_key: 'a' }] },
      }),
    );
    const before = await boxes();
    const { code, stdout } = await pack('--handover', file, '--arg', 'a=1', '--author', 'me');
    expect(code).toBe(0);
    const [, boxId, , cardId] =
      /^context_box_id +(\S+)\ntarget_profile_box_id +(\S+)\ncards +1\n\n(\S+)\n$/.exec(stdout) ?? [];
    expect(await boxes()).toBe(before + 1);
    const { rows } = await stack.runtime.pool.query('select author_id from boxcar.cards where id = $1', [
      cardId,
    ]);
    expect(rows).toEqual([{ author_id: 'me' }]);
    const json = await pack('--handover', file, '--arg', 'a=1', '--json');
    expect(JSON.parse(json.stdout)).toMatchObject({ attached_card_ids: [expect.any(String)] });
    expect(JSON.parse(json.stdout).context_box_id).not.toBe(boxId);
  });
});

describe('a packing that is not possible is refused in one line:', () => {
  it.each<[args: string[], message: RegExp, exit?: number]>([
    [['--dry-run'], /give a handover by --handover, or a profile by --profile/, 2],
    [['--messages', '--profile', 'writer'], /--messages: is for --dry-run only/, 2],
    [
      ['--profile', 'writer', '--arg', 'x=1'],
      /--arg x: without --handover only instruction and result_fields/,
      2,
    ],
    [['--profile', 'nobody'], /not_found: No profile 'nobody'/],
    [['--profile', 'writer', '--box', 'x'], /not_found: .*no box 'x'/],
    [['--profile', 'writer', '--strategy', 'newest'], /bad_request: --strategy: needs --budget as well/],
    [['--profile', 'writer', '--budget', '1'], /context_budget_exceeded: .*never cut.*Raise --budget/],
    [['--profile', 'writer', '--source-agent', 'x'], /not_found: No agent 'x'/],
    [['--handover', '/nowhere.yaml'], /--handover \/nowhere\.yaml: ENOENT/],
    [['--handover', '-', '--file', '-'], /cannot both be stdin/, 2],
  ])('%j', async (args, message, exit = 1) => {
    const { code, stdout, stderr } = await pack(...args);
    expect({ code, stdout }).toEqual({ code: exit, stdout: '' });
    expect(stderr).toMatch(message);
    expect(stderr.trimEnd().split('\n')).toHaveLength(1);
  });

  it.each([
    ['- a\n- b\n', /must be an object, as YAML or JSON/],
    ['{a: [', /--handover .*rules: .* at line 1/],
    [
      'context_packing_config: { budget_tokens: 0 }',
      /bad_request: handover\.context_packing_config\.budget_tokens: /,
    ],
  ])('a file with %j', async (content, message) => {
    const { code, stderr } = await pack('--dry-run', '--handover', fileOf('rules', content));
    expect(code).toBe(1);
    expect(stderr).toMatch(message);
    expect(stderr.trimEnd().split('\n')).toHaveLength(1);
  });

  it('boxes together with a handover, and invalid budgets', async () => {
    const file = fileOf('empty.yaml', '{}');
    expect((await pack('--handover', file, '--box', box)).stderr).toMatch(/boxes are named by the arguments/);
    for (const budget of ['0', '-1', 'x', '1.5'])
      expect((await pack(...DRY, '--budget', budget)).code).toBe(2);
  });
});
