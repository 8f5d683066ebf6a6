import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Stack } from '@boxcar/host/open';
import { createWorker } from '@boxcar/runtime';
import { testDatabase } from '@boxcar/testkit';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { cliHere, type Env, prepare } from '../../testing/cli.js';

/** JavaScript's parsers do not keep these keys in this order. */
const DATA = '{"10":"ten","2":{"b":[{"z":1,"0":2}],"1":2},"a":0}';

let folder: string;
let env: Env;
let stack: Stack;

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'boxcar-order-'));
  const database = await testDatabase();
  env = { DATABASE_URL: database.url };
  stack = await prepare(env);
});

afterAll(async () => {
  await stack.close();
  rmSync(folder, { recursive: true, force: true });
});

function file(name: string, text: string): string {
  const path = join(folder, name);
  writeFileSync(path, text);
  return path;
}

async function run(...args: string[]): Promise<string> {
  const { code, stdout, stderr } = await cliHere(args, env);
  expect({ code, stderr: code === 0 ? '' : stderr }).toEqual({ code: 0, stderr: '' });
  return stdout;
}

async function contents(type: string): Promise<string[]> {
  const { rows } = await stack.runtime.pool.query<{ text: string }>(
    'select content::text as text from boxcar.cards where type = $1 order by id',
    [type],
  );
  return rows.map(({ text }) => text);
}

test('cards of a file and result fields of --json-args are stored and shown in the writer’s key order', async () => {
  const cards = file('cards.json', `[{"content":{"data":${DATA},"kind":"json"},"type":"test.order"}]`);
  const { box_id: box } = JSON.parse(await run('box', 'create', '--cards', cards, '--json'));
  expect(await contents('test.order')).toEqual([`{"data":${DATA},"kind":"json"}`]);
  expect(await run('box', 'show', box, '--cards', '--json')).toContain(`{"data":${DATA},"kind":"json"}`);

  const fields = '[{"required":true,"type":"string","name":"10"},{"type":"number","name":"2"}]';
  const args = `{"target_strategy":"new","target_ref":"writer","instruction":"x","result_fields":${fields},"context_box_id":"${box}"}`;
  await run('submit', 'delegate_async', '--json-args', args);
  expect(await contents('task.result_fields')).toEqual([`{"kind":"fields_schema","fields":${fields}}`]);

  const dry = [
    'pack',
    '--dry-run',
    '--messages',
    '--profile',
    'writer',
    '--arg',
    'instruction=x',
    '--box',
    box,
  ];
  expect(await run(...dry)).toContain(DATA);
});

test('objects that a handover’s rules pack keep their key order too, from a file and as a pair', async () => {
  const handover = file(
    'handover.yaml',
    'context_packing_config:\n  pack_arguments:\n    - {arg_key: order, as_card_type: test.packed}\n    - {arg_key: pair, as_card_type: test.packed}\n',
  );
  const args = file('args.json', `{"order":${DATA},"profile_name":"writer"}`);
  await run('pack', '--handover', handover, '--profile', 'writer', '--file', args, '--arg', `pair:=${DATA}`);
  expect(await contents('test.packed')).toEqual(Array(2).fill(`{"kind":"json","data":${DATA}}`));
});

test('the state of a handoff keeps its key order in the tape, its messages and its export', async () => {
  await run('tape', 'handoff', 'ordered', 'phase-1', '--create', '--state', DATA);
  expect(await run('tape', 'show', 'ordered', '--all', '--json')).toContain(`"state":${DATA}`);
  const spaced = DATA.replaceAll(':', ': ').replaceAll(',', ', ');
  expect(await run('tape', 'show', 'ordered', '--messages', '--json')).toContain(
    JSON.stringify(spaced).slice(1, -1),
  );
  const to = join(folder, 'ordered');
  await run('tape', 'export', 'ordered', '--to', to);
  expect(readFileSync(join(to, 'tape/main.jsonl'), 'utf8')).toContain(`"state": ${spaced}`);
});

test('imported lines are stored in their key order, and not only exported in it', async () => {
  const event = `{"id":2,"kind":"event","payload":{"name":"note","data":${DATA}},"meta":{}}`;
  const call = `{"id":3,"kind":"tool_call","payload":{"calls":[{"id":"c","function":{"name":"f","arguments":${JSON.stringify(DATA)}}}]},"meta":{}}`;
  const lines = `{"id":1,"kind":"anchor","payload":{"name":"imported","state":${DATA}},"meta":{}}\n${event}\n${call}\n`;
  await run('tape', 'import', file('lines.jsonl', lines), 'imported');
  expect(await contents('tape.anchor')).toContain(`{"kind":"json","data":${DATA}}`);
  expect((await contents('tool.call')).at(-1)).toContain(`"arguments":${DATA}`);
  const { rows } = await stack.runtime.pool.query<{ text: string }>(
    `select payload::text as text from boxcar.tape_entries where payload->>'name' = 'note'`,
  );
  expect(rows.map(({ text }) => text)).toEqual([`{"name":"note","data":${DATA}}`]);
  expect(await run('tape', 'show', 'imported', '--all', '--json')).toContain(`"data":${DATA}`);
});

test('a profile keeps the key order of its file, in JSON and YAML', async () => {
  const script = `[{"calls":[{"tool":"f","arguments":${DATA}}]}]`;
  const profile = `{"name":"by-json","model":"scripted","instructions":"x","script":${script}}`;
  const yaml =
    'name: by-yaml\nmodel: scripted\ninstructions: x\nscript:\n  - calls:\n    - tool: f\n      arguments: {10: ten, 2: {b: [{z: 1, 0: 2}], 1: 2}, a: 0}\n';
  await run('profiles', 'apply', '-f', file('profile.json', profile), file('profile.yaml', yaml));
  const stored = (await contents('sys.profile')).filter((text) => text.includes('"by-'));
  expect(stored).toHaveLength(2);
  for (const text of stored) expect(text).toContain(`"arguments":${DATA}`);
});

test('arguments from a model keep their key order, in the call and in its effects', async () => {
  const args = `{"state":${DATA},"name":"by-model"}`;
  const script = `[{"calls":[{"tool":"tape.handoff","raw":${JSON.stringify(args)}}]},{"say":"done"}]`;
  const profile = `{"name":"hander","model":"scripted","instructions":"x","tools":["tape.handoff"],"script":${script}}`;
  await run('profiles', 'apply', '-f', file('hander.json', profile));
  await using _worker = await createWorker(stack.runtime, { sweepMs: 200 });
  const to = ['--arg', 'target_strategy=new', '--arg', 'target_ref=hander', '--arg', 'instruction=x'];
  const { agent_id: agent } = JSON.parse(await run('submit', 'delegate_async', ...to, '--wait', '--json'));
  expect((await contents('tool.call')).filter((text) => text.includes(`"arguments":${args}`))).toHaveLength(
    1,
  );
  expect((await contents('tape.anchor')).at(-1)).toBe(`{"kind":"json","data":${DATA}}`);
  const shown = await run('tape', 'show', agent, '--messages', '--all', '--json');
  expect(shown).toContain(JSON.stringify(args).slice(1, -1));
});
