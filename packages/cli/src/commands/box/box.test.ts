import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Stack } from '@boxcar/host/open';
import type { AgentId, BoxId, CardId, TurnId } from '@boxcar/kernel';
import { createWorker } from '@boxcar/runtime';
import { type BoxReport, inspectBox } from '@boxcar/store/report';
import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { cliHere, type Env, prepare } from '../../testing/cli.js';

interface Receipt {
  readonly turn_id: TurnId;
  readonly agent_id: AgentId;
  readonly context_box_id: BoxId;
  readonly output_box_id: BoxId;
}

let database: TestDatabase;
let env: Env;
let folder: string;
let stack: Stack;
let done: Receipt;

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'boxcar-box-'));
  database = await testDatabase();
  env = { DATABASE_URL: database.url };
  stack = await prepare(env);
  const worker = await createWorker(stack.runtime);
  const { box_id } = (await stack.runtime.submit('create_box', {
    cards: [{ type: 'task.input', content: { kind: 'text', text: 'first \u001b[31mred\u0007' } }],
  })) as { box_id: string };
  done = (await stack.runtime.submit('launch_principal', {
    profile_name: 'writer',
    instruction: 'there',
    context_box_id: box_id,
    wait: true,
  })) as unknown as Receipt;
  await worker.close();
});

afterAll(async () => {
  await stack.close();
  rmSync(folder, { recursive: true, force: true });
});

const boxcar = (...args: string[]) => cliHere(args, env);
const report = async (...args: string[]): Promise<BoxReport> =>
  JSON.parse((await boxcar('box', 'show', ...args, '--json')).stdout);
async function create(...args: string[]): Promise<string> {
  const { code, stdout, stderr } = await boxcar('box', 'create', ...args);
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  expect(stdout).toMatch(/^[0-9a-f-]{36}\n$/);
  return stdout.trim();
}
const file = (name: string, text: string | Buffer): string => {
  const path = join(folder, name);
  writeFileSync(path, text);
  return path;
};
const expectNarrow = (text: string): void => {
  for (const line of text.split('\n')) expect([...line].length, line).toBeLessThanOrEqual(80);
};

describe('box create', () => {
  it('makes a box from texts, files, JSON cards and existing cards, in this order, and prints its id', async () => {
    const [old] = await stack.runtime.packer.createCards({
      projectId: 'default',
      authorId: 'operator',
      cards: [{ type: 'note', content: { kind: 'text', text: 'old' } }],
    });
    const list = file('cards.json', '[{"type":"a","content":{"kind":"json","data":{"b":1,"a":[]}}}]');
    const one = file('card.json', '{"type":"b","role":"assistant","content":{"kind":"text","text":"one"}}');
    const id = await create(
      ...['--card', String(old), '--cards', list, '--cards', one, '--file', file('x.md', '# é 🚃\n')],
      ...['--text', '- dash', '--text', 'two', '--type', 'task.input', '--role', 'system'],
    );
    const { entries, count } = await report(id, '--cards');
    expect(count).toBe(6);
    expect(entries.map(({ card }) => [card?.type, card?.role, card?.content])).toEqual([
      ['task.input', 'system', { kind: 'text', text: '- dash' }],
      ['task.input', 'system', { kind: 'text', text: 'two' }],
      ['task.input', 'system', { kind: 'text', text: '# é 🚃\n' }],
      ['a', null, { kind: 'json', data: { b: 1, a: [] } }],
      ['b', 'assistant', { kind: 'text', text: 'one' }],
      ['note', null, { kind: 'text', text: 'old' }],
    ]);
    expect(entries[5]?.card?.card_id).toBe(old);
    const { rows } = await database.pool.query('select metadata from boxcar.cards where id = $1', [
      entries[2]?.card?.card_id,
    ]);
    expect(rows[0].metadata).toEqual({ file: 'x.md', role: 'system' });
  });

  it('reads stdin, once', async () => {
    const { status, stdout, stderr } = spawnSync(
      process.execPath,
      [
        ...['--conditions=@boxcar/source', '--import=tsx', join(import.meta.dirname, '../../main.ts')],
        ...['box', 'create', '--file', '-', '--json'],
      ],
      { input: 'from stdin', encoding: 'utf8', env: { PATH: process.env.PATH, ...env } },
    );
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    const { entries } = await report(JSON.parse(stdout).box_id, '--cards');
    expect(entries[0]?.card?.content).toEqual({ kind: 'text', text: 'from stdin' });
    expect(await boxcar('box', 'create', '--file', '-', '--cards', '-')).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('stdin can be read once only'),
    });
  });

  it('twice with one key makes one box', async () => {
    const id = await create('--text', 'x', '--key', 'box-1');
    const again = await boxcar('box', 'create', '--text', 'x', '--key', 'box-1');
    expect(again).toMatchObject({
      code: 0,
      stdout: `${id}\n`,
      stderr: expect.stringMatching(/accepted before/),
    });
  });

  it.each([
    ['no card', [], /give --text, --file, --cards or --card/],
    [
      'a file that does not exist',
      ['--file', 'nothing.txt'],
      /--file: nothing\.txt: the file does not exist\./,
    ],
    ['a folder', ['--file', tmpdir()], /is a folder/],
    ['bytes', ['--file', 'BYTES'], /is not UTF-8 text/],
    ['broken JSON', ['--cards', 'BROKEN'], /--cards: .* is not valid JSON/],
    ['a card that is not valid', ['--cards', 'WRONG'], /cards\.0/],
    ['an unknown role', ['--text', 'x', '--role', 'robot'], /cards\.0\.role/],
    ['a card id that does not exist', ['--card', 'x'], /card_ids\.0: 'x' is not a valid id/],
    ['an agent that does not exist', ['--text', 'x', '--source-agent', 'nobody'], /No agent 'nobody'/],
    ['a project that does not exist', ['--text', 'x', '--project', 'nowhere'], /No project 'nowhere'/],
  ])('of %s is refused with the reason', async (_what, args, message) => {
    const files: Readonly<Record<string, string>> = {
      BYTES: file('bytes', Buffer.from([0xff, 0xfe])),
      BROKEN: file('broken.json', '[{'),
      WRONG: file('wrong.json', '[1]'),
    };
    const result = await boxcar('box', 'create', ...args.map((arg) => files[arg] ?? arg));
    const code = args.length === 0 ? 2 : 1;
    expect(result).toMatchObject({ code, stdout: '', stderr: expect.stringMatching(message) });
  });
});

describe('box show', () => {
  it('shows the cards of a context box, the rule of each and its source, in 80 columns', async () => {
    const { code, stdout, stderr } = await boxcar('box', 'show', done.context_box_id);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    expectNarrow(stdout);
    for (const part of [
      new RegExp(`^box +${done.context_box_id}\nkind +context, sealed\nowner +writer-`),
      /^made by +operator \(/m,
      /^holds +3 cards, \d+ tokens$/m,
      /^ +seg +rule +argument +cards +tokens +positions$/m,
      /^ +1 +pack_arguments +instruction +1 +\d+ +own 1–1$/m,
      /^ +2 +inherit +input_box_ids +1 +\d+ +1–1\n {7}from [0-9a-f-]{36}$/m,
      /^ +3 +parent +1 +\d+ +own 2–2$/m,
      /^cards 1–3 of 3$/m,
      /^ +1 +1 +task\.instruction +launch_prin… +\d+ +there$/m,
      /^ +2 +2 +task\.input +operator +\d+ +first \[31mred/m,
    ])
      expect(stdout).toMatch(part);
    expect(stdout).not.toContain('\u001b');
    expect(stdout).not.toContain('\u0007');
  });

  it('--cards prints contents without terminal control characters', async () => {
    const { stdout } = await boxcar('box', 'show', done.context_box_id, '--cards', '--after', '1');
    expect(stdout).toMatch(
      /^2 {2}segment 2: inherit input_box_ids, …[0-9a-f]{12} 1\n {3}card +[0-9a-f-]{36}\n/m,
    );
    expect(stdout).toMatch(
      /^ {3}type +task\.input, role user\n {3}author +operator\n {3}size +\d+ bytes, \d+ tokens\n\nfirst {2}\[31mred/m,
    );
    expect(stdout).toContain('"parent_agent_id": "');
    expect(stdout).not.toContain('\u001b');
    const long = await create('--text', 'x'.repeat(5_000));
    expect((await boxcar('box', 'show', long, '--cards')).stdout).toMatch(
      /x\n… 1,000 more characters; --json shows all\n$/,
    );
  });

  it('shows a tape by positions, with anchors and events', async () => {
    const { code, stdout } = await boxcar('box', 'show', done.output_box_id);
    expect(code).toBe(0);
    expectNarrow(stdout);
    expect(stdout).toMatch(/^kind +tape, grows at its end$/m);
    expect(stdout).toMatch(/^holds +\d+ entries, last anchor at 1$/m);
    expect(stdout).toMatch(/^ +1 +anchor +tape\.anchor +operator +\d+ +session\/start: /m);
    expect(stdout).toMatch(/^ +3 +event +turn\.started$/m);
    expect(stdout).toMatch(/^ +4 +message +task\.deliverable +writer-/m);
    const { stdout: full } = await boxcar('box', 'show', done.output_box_id, '--cards');
    expect(full).toContain('Hello there');
    expect(full).toContain(`"context_box_id":"${done.context_box_id}"`);
  });

  it('shows every entry once on its pages, in order, and says where the next page begins', async () => {
    const cards = Array.from({ length: 130 }, (_, n) => ({
      type: 't',
      content: { kind: 'text', text: `card ${n + 1}` },
    }));
    const id = await create('--cards', file('many.json', JSON.stringify(cards)));
    const first = await boxcar('box', 'show', id);
    expect(first.stdout).toMatch(/^cards 1–50 of 130$/m);
    expect(first.stdout).toMatch(/^ {2}… 80 more: --after 50$/m);
    const seen: string[] = [];
    let after = 0;
    for (let page: BoxReport; ; ) {
      page = await report(id, '--after', String(after), '--limit', '60');
      seen.push(...page.entries.map(({ card }) => card?.preview ?? ''));
      if (page.next === null) break;
      after = page.next;
    }
    expect(seen).toEqual(cards.map(({ content }) => content.text));
    expect((await boxcar('box', 'show', id, '--after', '130')).stdout).toMatch(/^no cards$/m);
    const tape = await report(done.output_box_id, '--limit', '2');
    expect(tape).toMatchObject({ next: 2, entries: [{ position: 1 }, { position: 2 }] });
    expect((await report(done.output_box_id, '--after', '2')).entries[0]?.position).toBe(3);
  });

  it('takes three statements for any content of the box', async () => {
    let statements = 0;
    const db: Parameters<typeof inspectBox>[0] = {
      query: (config) => {
        statements++;
        return database.pool.query(config);
      },
    };
    for (const id of [done.context_box_id, done.output_box_id]) {
      statements = 0;
      await inspectBox(db, id, { project: 'default', limit: 1_000, withContents: true });
      expect(statements).toBe(3);
    }
  });

  it('keeps the lines of erased cards', async () => {
    const id = await create('--text', 'secret');
    const cardId = (await report(id)).entries[0]?.card?.card_id as CardId;
    await database.pool.query('alter table boxcar.cards disable trigger cards_immutable');
    await database.pool.query('update boxcar.cards set content = null, erased_at = now() where id = $1', [
      cardId,
    ]);
    await database.pool.query('alter table boxcar.cards enable trigger cards_immutable');
    expect((await report(id, '--cards')).entries[0]?.card).toMatchObject({
      preview: '(erased)',
      content: null,
    });
    expect((await boxcar('box', 'show', id, '--cards')).stdout).toMatch(/\n\n\(erased\)\n$/);
  });

  it.each([
    ['an id that is not valid', ['x'], 2, /'x' is invalid for argument 'box'\. It must be an id/],
    ['a box that does not exist', ['0198c1f2-5d1e-7000-8000-9f1b2c3d4e5f'], 1, /not_found: No box 0198c1f2/],
    ['a project that does not exist', ['BOX', '--project', 'nowhere'], 1, /not_found: No project 'nowhere'/],
    ['a box of another project', ['BOX', '--project', 'elsewhere'], 1, /not_found: No box/],
    ['a limit of zero', ['BOX', '--limit', '0'], 2, /whole number from 1 to 1000/],
    ['a page before the first', ['BOX', '--after', '-1'], 2, /whole number/],
  ])('of %s is refused', async (_what, args, code, message) => {
    await database.pool.query(`
      insert into boxcar.projects (id, name, operator_agent_id, bootstrap_card_id)
      select gen_random_uuid(), 'elsewhere', gen_random_uuid(), bootstrap_card_id from boxcar.projects limit 1
      on conflict do nothing`);
    const words = args.map((arg) => (arg === 'BOX' ? done.context_box_id : arg));
    expect(await boxcar('box', 'show', ...words)).toMatchObject({
      code,
      stdout: '',
      stderr: expect.stringMatching(message),
    });
  });
});

describe('box grant', () => {
  it('lets an agent read a box until a given time, and show lists the reader and the giver', async () => {
    const id = await create('--text', 'one', '--text', 'two');
    await stack.runtime.submit('provision_agent', {
      action: 'ensure',
      agent_id: 'reader',
      profile_name: 'writer',
    });
    const [first, second] = (await report(id)).entries.map(({ card }) => card?.card_id ?? '');
    const read = (cardId = '') =>
      stack.runtime.submit('create_box', { card_ids: [cardId] }, { sourceAgentId: 'reader' });
    await expect(read(first)).rejects.toMatchObject({ code: 'box_not_authorized' });

    const granted = await boxcar('box', 'grant', id, 'reader', '--until', '2099-12-31T18:00+02:00');
    expect(granted).toEqual({
      code: 0,
      stdout: `reader may read box ${id} until 2099-12-31T16:00:00.000Z.\n`,
      stderr: '',
    });
    expect(await read(first)).toMatchObject({ box_id: expect.any(String) });
    const { stdout } = await boxcar('box', 'show', id);
    expectNarrow(stdout);
    expect(stdout).toMatch(
      /^1 grant\n +agent +may +until +given by\n +reader +read +2099-12-31T16:00Z +operator$/m,
    );
    expect(await report(id)).toMatchObject({
      grant_count: 1,
      grants: [{ agent: 'reader', mode: 'read', is_expired: false, source_agent: 'operator' }],
    });

    // An end in the past revokes the grant.
    expect(await boxcar('box', 'grant', id, 'reader', '--until', '2020-01-01', '--json')).toMatchObject({
      code: 0,
      stdout: '{"granted":true}\n',
    });
    await expect(read(second)).rejects.toMatchObject({ code: 'box_not_authorized' });
    expect((await boxcar('box', 'show', id)).stdout).toMatch(/2020-01-01T00:00Z \(over\)/);
  });

  it('without an end lasts, and --mode append is only for tapes', async () => {
    const { code, stdout } = await boxcar('box', 'grant', done.output_box_id, 'reader', '--mode', 'append');
    expect({ code, stdout }).toEqual({ code: 0, stdout: `reader may append box ${done.output_box_id}.\n` });
    expect((await boxcar('box', 'show', done.output_box_id)).stdout).toMatch(
      /^ +reader +append +always +operator$/m,
    );
  });

  it.each([
    ['a sealed box to append to', ['BOX', 'reader', '--mode', 'append'], /bad_request: .*sealed/],
    ['an unknown mode', ['BOX', 'reader', '--mode', 'write'], /arguments\.mode/],
    ['an agent that does not exist', ['BOX', 'nobody'], /not_found: No agent 'nobody'/],
    ['a box that does not exist', ['0198c1f2-5d1e-7000-8000-9f1b2c3d4e5f', 'reader'], /not_found: No box/],
    ['a time without its zone', ['BOX', 'reader', '--until', '2030-01-01T10:00'], /a time with its zone/],
    ['an empty time', ['BOX', 'reader', '--until', 'tomorrow'], /a day \(2030-12-31\)/],
    ['an invalid day', ['BOX', 'reader', '--until', '2030-13-45'], /a day \(2030-12-31\)/],
    ['an id that is not valid', ['x', 'reader'], /'x' is invalid for argument 'box'\. It must be an id/],
    ['a giver that may not read it', ['BOX', 'operator', '--source-agent', 'reader'], /box_not_authorized/],
  ])('of %s is refused', async (_what, args, message) => {
    const words = args.map((arg) => (arg === 'BOX' ? done.context_box_id : arg));
    expect(await boxcar('box', 'grant', ...words)).toMatchObject({
      // Exit code 2 for a flag that cannot be read, 1 for a refusal by the database.
      code: args.includes('--until') || args[0] === 'x' ? 2 : 1,
      stdout: '',
      stderr: expect.stringMatching(message),
    });
  });
});
