import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createModelRouter } from '@boxcar/llm';
import { createWorker, loadPlugins } from '@boxcar/runtime';
import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { type CliResult, cliHere, type Env, prepare } from '../../testing/cli.js';

let database: TestDatabase;
let env: Env;
let turn: string;
let selected: string;
let foreign: string;
let folder: string;
let plugin: string;
let unknown: string;
let modelPlugin: string;
let reversed: string;

/** Reverses the direction of the following text on a terminal. */
const REVERSE = '\u202e';

const MODEL_PLUGIN = `export default (runtime) =>
  runtime.registerModel('mine', {
    generate: async () => ({ text: 'One cat.', toolCalls: [], usage: { inputTokens: 1, outputTokens: 1 }, model: 'mine:small' }),
    describeWire: () => [{ kind: 'joined', message: 'as the plugin says' }],
  });`;

const PLUGIN = `export default (runtime) =>
  runtime.registerSelector('brief', {
    version: '1',
    select: (entries) => [{ role: 'user', content: 'In brief.' }, ...entries.slice(-1).flatMap(({ messages }) => messages)],
  });`;

beforeAll(async () => {
  database = await testDatabase();
  env = { DATABASE_URL: database.url };
  await using stack = await prepare(env);
  const { runtime } = stack;
  runtime.registerTool({
    name: 'look',
    description: 'Looks.',
    input: z.strictObject({}),
    isReadOnly: true,
    run: () => ({ text: `red \u001b[31m and ${'long '.repeat(60)}`, lines: 'a\nb' }),
  });
  await runtime.applyProfile({
    name: 'counter',
    instructions: Array.from({ length: 12 }, (_none, index) => `Rule ${index + 1}: count.`).join('\n'),
    model: 'scripted',
    script: [{ say: 'I look.', calls: [{ tool: 'look' }] }, { say: 'One cat.' }],
    tools: ['look'],
  });
  const box = await runtime.submit('create_box', {
    cards: [
      { type: 'note', role: 'system', content: { kind: 'text', text: 'Mind the cat.' } },
      { type: 'note', metadata: { context: false }, content: { kind: 'text', text: 'Nobody reads this.' } },
    ],
  });
  folder = await mkdtemp(join(tmpdir(), 'boxcar-selectors-'));
  plugin = join(folder, 'plugin.mjs');
  await writeFile(plugin, PLUGIN);
  modelPlugin = join(folder, 'model.mjs');
  await writeFile(modelPlugin, MODEL_PLUGIN);
  await loadPlugins(runtime, [plugin, modelPlugin]);
  const worker = await createWorker(runtime);
  const answer = await runtime.submit('launch_principal', {
    profile_name: 'counter',
    instruction: 'Count the cats.',
    context_box_id: (box as { box_id: string }).box_id,
    wait: true,
  });
  const other = await runtime.submit('delegate_async', {
    target_strategy: 'new',
    target_ref: 'counter',
    instruction: 'Count.',
    view: { selector: 'brief' },
    wait: true,
  });
  selected = (other as { turn_id: string }).turn_id;
  // Another model answers instead of the provider; the provider's adapter still reports what it would send.
  const scripted = createModelRouter();
  const script = [{ calls: [{ tool: 'look' }] }, { say: 'One cat.' }];
  runtime.registerModel('mistral', {
    generate: (request, options) => scripted.generate({ ...request, model: 'scripted', script }, options),
  });
  await runtime.applyProfile({
    name: 'foreign',
    instructions: 'Count.',
    model: 'mistral:small',
    model_settings: { max_output_tokens: 4_096 },
    limits: { max_steps: 2 },
    tools: ['look'],
  });
  const last = await runtime.submit('launch_principal', {
    profile_name: 'foreign',
    instruction: 'Count the cats.',
    wait: true,
  });
  foreign = (last as { turn_id: string }).turn_id;
  await runtime.applyProfile({ name: 'own', instructions: 'Count.', model: 'mine:small', tools: ['look'] });
  const own = await runtime.submit('launch_principal', {
    profile_name: 'own',
    instruction: 'Count the cats.',
    wait: true,
  });
  unknown = (own as { turn_id: string }).turn_id;
  const data = { [`key ${REVERSE}`]: [`value ${REVERSE}`] };
  await runtime.applyProfile({
    name: 'reverser',
    instructions: `Count ${REVERSE}.`,
    model: 'scripted',
    script: [
      { say: `I look ${REVERSE}.`, calls: [{ tool: 'look' }] },
      { calls: [{ tool: 'submit_result', arguments: { result: data } }] },
    ],
    tools: ['look', 'submit_result'],
  });
  const reversing = await runtime.submit('launch_principal', {
    profile_name: 'reverser',
    instruction: `Count ${REVERSE}.`,
    wait: true,
  });
  expect(reversing).toMatchObject({ status: 'success', result: data });
  reversed = (reversing as { turn_id: string }).turn_id;
  await worker.close();
  turn = (answer as { turn_id: string }).turn_id;
});

afterAll(async () => {
  await database.close();
  await rm(folder, { recursive: true });
});

const ask = (...args: readonly string[]): Promise<CliResult> => cliHere(args, env);
const widest = ({ stdout }: CliResult): number =>
  Math.max(...stdout.split('\n').map((line) => [...line].length));

describe('boxcar explain', () => {
  test('prints the last step in 80 columns: messages with their reasons, tools, and what was left out', async () => {
    const said = await ask('explain', turn.slice(0, 30));
    expect(said).toMatchObject({ code: 0, stderr: '' });
    expect(widest(said)).toBeLessThanOrEqual(80);
    for (const words of [
      /^verified {2}yes/m,
      /^step {6}2, attempt 1, scripted, committed /m,
      /^1 {2}system, \d+ tokens\n {3}profile counter@1; sys\.profile$/m,
      /^ {4}Rule 6: count\.\n {4}… 6 more lines; --full shows all$/m,
      /^ {3}context \d: inherit of 'input_box_ids' from box …[0-9a-f]{12}; note$/m,
      /^ {4}\[system note from .*\] Mind the cat\.$/m,
      /^ {3}context 1: pack_arguments of 'instruction'; task\.instruction by\n {5}launch_principal$/m,
      /^ {3}tape \d+: tool_call, step 1; tool\.call by counter-/m,
      /^ {4}→ look \{\}$/m,
      /^\d {2}tool, \d+ tokens, result of look$/m,
      /^ {2}look +tool +\d+ +the profile lists it$/m,
      /^ {2}hidden +…[0-9a-f]{12} +note +context \d: inherit/m,
    ])
      expect(said.stdout).toMatch(words);
    expect(said.stdout).not.toContain('\u001b');
  });

  test('--full prints whole messages, --step another step, and --json everything', async () => {
    const full = await ask('explain', turn, '--full');
    expect(full.stdout).toContain('    Rule 12: count.');
    expect(full.stdout).toContain('long '.repeat(60).trim());
    const first = await ask('explain', turn, '--step', '1', '--json');
    const explained = JSON.parse(first.stdout);
    expect(explained).toMatchObject({ step: 1, verified: true, messages: { length: 4 } });
    expect(explained.messages[0].cards[0].place).toMatchObject({ kind: 'profile', name: 'counter' });
  });

  test('shows what the model’s adapter adds, such as the tools of the history in a last step', async () => {
    const said = await ask('explain', foreign);
    expect(widest(said)).toBeLessThanOrEqual(80);
    expect(said.stdout).toMatch(/\ntools\n {2}none\n/);
    const wire = said.stdout.slice(said.stdout.indexOf('\non the wire\n'));
    expect(wire).toMatch(/\n {2}placeholder_tool: the tool look is declared, and no tool may be called/);
    expect(wire).toMatch(/\n {2}joined: sent as one message \(messages 2–4\)\n/);
    expect(wire).toMatch(/\n {2}call_id: ids of calls as the provider gave or takes them \(message 5\)\n/);
    expect(wire).toMatch(
      /\n {2}filler: "\[noted\]" is said by the assistant before the message \(message 7\)\n/,
    );
    const first = JSON.parse((await ask('explain', foreign, '--step', '1', '--json')).stdout);
    expect(first.wire).toEqual([{ kind: 'joined', message: 'sent as one message', messages: [2, 3, 4] }]);
    expect((await ask('explain', turn)).stdout).not.toContain('on the wire');
  });

  test('says that it does not know the additions of a model from a plugin, and shows them with the plugin', async () => {
    expect(JSON.parse((await ask('explain', unknown, '--json')).stdout)).toMatchObject({
      verified: true,
      wire: null,
    });
    const said = await ask('explain', unknown);
    expect(widest(said)).toBeLessThanOrEqual(80);
    expect(said.stdout).toContain(
      '\non the wire\n  not known: no adapter for this model here; --plugin <file> names a module\n    that registers it\n',
    );
    const flags = ['--plugin', modelPlugin];
    expect(JSON.parse((await ask('explain', unknown, '--json', ...flags)).stdout).wire).toEqual([
      { kind: 'joined', message: 'as the plugin says' },
    ]);
    expect((await ask('explain', unknown, ...flags)).stdout).toMatch(
      /\non the wire\n {2}joined: as the plugin says\n/,
    );
    const configured = await cliHere(['explain', unknown, '--json'], { ...env, BOXCAR_PLUGINS: modelPlugin });
    expect(JSON.parse(configured.stdout).wire).toHaveLength(1);
  });

  test.each([
    ['a step that does not exist', ['--step', '7'], 1, /not_found.*no step 7; it has steps 1–2/],
    [
      'an attempt that does not exist',
      ['--step', '1', '--attempt', '2'],
      1,
      /not_found.*no attempt 2; it has 1/,
    ],
    ['a text in place of a number', ['--step', 'one'], 2, /must be a number from 1/],
    ['another project', ['--project', 'nowhere'], 1, /not_found.*No project/],
  ])('refuses %s', async (_what, args, code, words) => {
    const said = await ask('explain', turn, ...args);
    expect(said).toMatchObject({ code, stdout: '' });
    expect(said.stderr).toMatch(words);
  });
});

test('boxcar tape show names the tool of each call and of each result', async () => {
  const { agent } = JSON.parse((await ask('explain', turn, '--json')).stdout);
  const shown = await ask('tape', 'show', agent.agent_id, '--all');
  expect(shown.stdout).toMatch(/^ *\d+ {2}tool_call +\S+ \S+ +look \{\}$/m);
  expect(shown.stdout).toMatch(/^ *\d+ {2}tool_result +\S+ \S+ +look \{"text":"red/m);
  const { entries } = JSON.parse((await ask('tape', 'show', agent.agent_id, '--all', '--json')).stdout);
  const results = entries.filter(({ kind }: { kind: string }) => kind === 'tool_result');
  expect(results).toMatchObject([{ tools: ['look'] }]);
});

describe('boxcar why', () => {
  test('prints card, box, packing, author and tokens of a text, in 80 columns', async () => {
    const said = await ask('why', turn, 'Count the cats');
    expect(said).toMatchObject({ code: 0, stderr: '' });
    expect(widest(said)).toBeLessThanOrEqual(80);
    for (const words of [
      /^found {3}as it is, in step 1 and 1 more step \(2\)$/m,
      /^message \d, user$/m,
      /^rule +the card’s own text$/m,
      /^card +[0-9a-f-]{36}\n +task\.instruction, role user, \d+ tokens$/m,
      /^hash +[0-9a-f]{64}$/m,
      /^author +launch_principal, /m,
      /^packing +pack_arguments of 'instruction'$/m,
    ])
      expect(said.stdout).toMatch(words);
  });

  test('splits a text with several sources, and names the way of an inherited card and the schema of a tool', async () => {
    const said = await ask('why', turn, '] Mind');
    expect(said.stdout).toMatch(/^rule +note: a role that is not allowed/m);
    expect(said.stdout).toMatch(/^inherited +from box [0-9a-f-]{36} by inherit of/m);
    expect(said.stdout).toMatch(/^card +the same$/m);
    expect(said.stdout).toMatch(/read by\s+operator\s+as\s+the\s+operator/);
    expect(said.stdout).toMatch(/^first put +box [0-9a-f-]{36}, position 1: create_box$/m);
    expect(widest(said)).toBeLessThanOrEqual(80);
    const schema = await ask('why', turn, 'Looks.');
    expect(schema.stdout).toMatch(/^schema of the tool look\n/m);
    expect(schema.stdout).toMatch(/^offered +the profile lists it$/m);
  });

  test('finds JSON text as a terminal showed it, and control characters', async () => {
    expect((await ask('why', turn, 'a\nb')).stdout).toMatch(
      /but for white space and JSON escapes, in step 2/,
    );
    expect((await ask('why', turn, 'a\nb', '--json')).stdout).toContain('"match":"unescaped"');
  });

  test('ends at once at a signal, without an answer, with the exit code of shells', async () => {
    const stop = new AbortController();
    let listeners = 0;
    // The command listens before it reads, so the command, and not the process, handles a signal.
    const add = stop.signal.addEventListener.bind(stop.signal);
    stop.signal.addEventListener = (...args: Parameters<typeof add>) => {
      listeners += 1;
      add(...args);
      setImmediate(() => stop.abort());
    };
    const said = await cliHere(['why', turn, 'cats'], env, { stop: stop.signal });
    expect([said, listeners]).toEqual([{ code: 130, stdout: '', stderr: '' }, 1]);
  });

  test.each([
    ['in the deliverable of the turn', 'One cat.', /in the deliverable of the turn/],
    ['in a card that was left out', 'Nobody reads this', /step 1 left out holds it \(hidden\): note/],
    [
      'another text with the same beginning',
      'Count the cats and dogs',
      /Only its beginning is in the prompt of step 1: "Count the cats"/,
    ],
    ['not found', 'zebra', /^No message and no tool of the 2 prompts looked at holds this text\.\n$/],
  ])('exits with 3 for a text that no prompt shows, and says that it is %s', async (_where, text, words) => {
    const said = await ask('why', turn, text);
    expect(said).toMatchObject({ code: 3, stderr: '' });
    expect(said.stdout).toMatch(words);
  });

  test('with --step searches only that prompt', async () => {
    expect(await ask('why', turn, 'I look.', '--step', '1')).toMatchObject({
      code: 3,
      stdout: expect.stringContaining('It is in the prompt of step 2.'),
    });
    expect(await ask('why', turn, 'I look.', '--step', '2')).toMatchObject({ code: 0 });
  });

  test.each([
    ['a blank text', [' '], 2, /bad_request.*must not be blank/],
    ['no text', [], 2, /text/],
  ])('refuses %s', async (_what, args, code, words) => {
    const said = await ask('why', turn, ...args);
    expect(said).toMatchObject({ code, stdout: '' });
    expect(said.stderr).toMatch(words);
  });
});

test('no text of a turn reverses the direction of later text on the terminal', async () => {
  for (const args of [
    ['show', reversed],
    ['explain', reversed],
    ['explain', reversed, '--full'],
    ['explain', reversed, '--step', '1'],
    ['why', reversed, `I look ${REVERSE}.`],
    ['why', reversed, `value ${REVERSE}`],
    ['why', reversed, `value ${REVERSE} and more`],
    ['why', reversed, `"key`],
    ['submit', 'collect', '--json-args', JSON.stringify({ turn_ids: [reversed] }), '--wait'],
  ]) {
    const { stdout, stderr } = await ask(...args);
    expect({ args, text: stdout + stderr }).toEqual({
      args,
      text: expect.stringMatching(/^[^\u202a-\u202e\u2066-\u2069]+$/),
    });
  }
});

describe('a prompt that a selector made', () => {
  test('is shown with the plugin that has the selector, and cannot be shown without the plugin', async () => {
    const without = await ask('explain', selected, '--step', '1');
    expect(without.code).toBe(0);
    expect(without.stdout).toMatch(/^verified {2}no$/m);
    expect(without.stdout.replace(/\s+/g, ' ')).toContain(
      "Selector 'brief' version '1' made this prompt, which cannot be rebuilt",
    );
    expect(without.stdout).not.toContain('Count.');
    expect(await ask('why', selected, 'In brief.')).toMatchObject({
      stdout: '',
      stderr: expect.stringContaining('selector_unknown'),
    });

    const shown = await ask('explain', selected, '--step', '1', '--plugin', plugin);
    expect(shown.stdout).toMatch(/^verified {2}yes/m);
    expect(shown.stdout).toMatch(
      /^2 {2}user, \d+ tokens\n {3}made by the selector of the turn\n {4}In brief\.$/m,
    );
    expect(shown.stdout).toContain('not_selected');
    const found = await ask('why', selected, 'In brief.', '--plugin', plugin);
    expect(found.stdout).toContain('made by the selector of the turn');
  });
});
