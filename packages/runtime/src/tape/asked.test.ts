/** Readers of a tape show the instructions of its agent to actors that may read them. */
import type { CardId, ProjectId } from '@boxcar/kernel';
import { eraseCards } from '@boxcar/store';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { z } from 'zod';
import { statementsOf } from '../testing/count-statements.js';
import { type Harness, harness } from '../testing/harness.js';
import type { Tape } from './tape.js';

const PROJECT = '00000000-0000-7000-8000-000000000001' as ProjectId;
const QUESTION = 'Use metric units in all answers.';
const FIELDS = [{ name: 'height', type: 'number' }];
const ASKED = `${QUESTION}\n\nResult fields:\n- height (number, required)`;

let h: Harness;

beforeAll(async () => {
  h = await harness();
  await h.profile('writer', [{ calls: [{ tool: 'submit_result', arguments: { result: { height: 2 } } }] }]);
  await h.profile('talker', [{ say: 'Well.' }]);
  await h.worker();
});

afterAll(() => h[Symbol.asyncDispose]());

const receipt = z.object({ agent_id: z.string(), turn_id: z.string(), context_box_id: z.string() });

async function ask(primitive: string, args: Record<string, unknown>): Promise<z.infer<typeof receipt>> {
  const made = receipt.parse(await h.runtime.submit(primitive, args as never));
  await h.runtime.waitForTurn(made.turn_id, { timeoutMs: 30_000 });
  return made;
}

const launch = (rest: Record<string, unknown> = {}): ReturnType<typeof ask> =>
  ask('launch_principal', {
    profile_name: 'writer',
    instruction: QUESTION,
    result_fields: FIELDS,
    ...rest,
  });

async function linesOf(tape: Tape): Promise<string[]> {
  const lines: string[] = [];
  for await (const line of tape.export()) lines.push(line);
  return lines;
}

const found = async (tape: Tape, text: string): Promise<unknown[]> =>
  (await tape.search(text)).map(({ record, match }) => [
    record.position,
    record.kind,
    record.payload.content,
    match,
  ]);

const fresh = async (): Promise<string> => {
  const made = await h.runtime.submit('provision_agent', { action: 'create', profile_name: 'talker' });
  return z.object({ agent_id: z.string() }).parse(made).agent_id;
};

test('messages, entries, search and export show a turn’s instruction at its start; positions and counts stay the same', async () => {
  const { agent_id: agent, turn_id: turnId, context_box_id: boxId } = await launch();
  const tape = await h.runtime.tape({ agent });
  const messages = await tape.messages();
  expect(messages[0]).toEqual({ role: 'user', content: ASKED });
  expect(messages.slice(1).map(({ role }) => role)).toEqual(['assistant', 'tool', 'assistant']);
  expect((await tape.messages({ strictBub: true }))[0]).toEqual({ role: 'user', content: ASKED });

  const entries = await tape.query().all();
  const { entries: count } = await tape.info();
  expect(entries.map(({ position }) => position)).toEqual(Array.from({ length: count }, (_, at) => at + 1));
  expect(entries[2]).toMatchObject({
    position: 3,
    kind: 'event',
    payload: { name: 'turn.started', data: { turn_id: turnId, context_box_id: boxId, asked: ASKED } },
  });
  const withText = await tape.select({ ...plain, kinds: [], text: 'metric units' });
  expect(withText.map(({ position }) => position)).toEqual([3]);
  expect((await tape.selectPage({ ...plain, kinds: ['event'] })).records.at(-1)).toEqual(entries[2]);

  expect(await found(tape, 'metric units')).toEqual([[3, 'message', ASKED, 'exact']]);
  expect(await found(tape, 'metrc units')).toEqual([[3, 'message', ASKED, 'near']]);
  expect(await tape.search('metric units', { kinds: ['tool_result'] })).toEqual([]);

  const lines = await linesOf(tape);
  expect(lines.map((line) => JSON.parse(line).id)).toEqual(lines.map((_, at) => at + 1));
  expect(JSON.parse(lines[2] ?? '')).toMatchObject({
    kind: 'message',
    payload: { role: 'user', content: ASKED },
    meta: { run_id: turnId },
  });
  await h.runtime.importTape('elsewhere', { main: { lines: () => lines } });
  expect(await (await h.runtime.tape('elsewhere')).messages()).toEqual(messages);
});

const plain = { slice: { kind: 'all' }, from: null, until: null, text: null, limit: null } as const;

test('inherited cards are not shown again, and neither are they by an imported line', async () => {
  const box = await h.runtime.submit('create_box', {
    cards: [{ type: 'note', role: 'user', content: { kind: 'text', text: 'An inherited secret.' } }],
  });
  const { box_id: inherited } = z.object({ box_id: z.string() }).parse(box);
  const { agent_id: agent, context_box_id: boxId } = await launch({ context_box_id: inherited });
  const tape = await h.runtime.tape({ agent });
  const all = JSON.stringify([await tape.messages(), await tape.query().all(), await linesOf(tape)]);
  expect(all).toContain(QUESTION);
  expect(all).not.toContain('An inherited secret.');
  expect(await found(tape, 'inherited secret')).toEqual([]);

  const line = JSON.stringify({
    id: 1,
    kind: 'event',
    payload: { name: 'turn.started', data: { turn_id: boxId, context_box_id: boxId } },
    meta: {},
  });
  await h.runtime.importTape('forged', { main: { lines: () => [line] } });
  const forged = await h.runtime.tape('forged');
  expect(await forged.messages()).toEqual([]);
  expect(await linesOf(forged)).toEqual([line]);
  expect(await found(forged, 'metric units')).toEqual([]);
});

test('a grant for a tape gives no access to the instructions of its agent', async () => {
  const { agent_id: agent, context_box_id: boxId } = await launch();
  const owned = await h.runtime.tape({ agent });
  const guest = await fresh();
  const grant = (box_id: string): Promise<unknown> =>
    h.runtime.submit('grant_box', { box_id, grantee: guest, mode: 'read' });
  await grant(owned.boxId);
  const tape = await h.runtime.tape({ box: owned.boxId }, { as: guest });
  const all = async (): Promise<string> =>
    JSON.stringify([await tape.messages(), await tape.query().all(), await linesOf(tape)]);
  expect(await all()).not.toContain('metric');
  expect(await all()).toContain('turn.started');
  // A guest does not find words that the owner's search has written.
  expect(await found(owned, 'metric units')).toHaveLength(1);
  expect(await found(tape, 'metric units')).toEqual([]);
  await grant(boxId);
  expect(await all()).toContain(QUESTION);
  expect(await found(tape, 'metric units')).toHaveLength(1);
});

test('erased instructions are shown as erased, and are no longer found', async () => {
  const { agent_id: agent } = await launch();
  const tape = await h.runtime.tape({ agent });
  expect(await found(tape, 'metric units')).toHaveLength(1);
  const [card] = await h.rows<{ id: CardId }>(
    `select c.id from boxcar.cards c join boxcar.boxes b on c.id = any (b.card_ids) join boxcar.turns t on t.context_box_id = b.id
     where t.agent_id = $1 and c.type = 'task.instruction'`,
    [agent],
  );
  await eraseCards(h.database.pool, [card?.id as CardId], { projectId: PROJECT, reason: 'asked for' });
  const erased = ASKED.replace(QUESTION, '(erased)');
  expect((await tape.messages())[0]).toEqual({ role: 'user', content: erased });
  expect((await tape.query().all())[2]).toMatchObject({ payload: { data: { asked: erased } } });
  expect((await linesOf(tape)).join()).not.toContain('metric');
  expect(await found(tape, 'metric units')).toEqual([]);
});

test('a search returns instructions and answers newest first, and of equal texts only one', async () => {
  const agent = await fresh();
  const again = (instruction: string) =>
    ask('delegate_async', { target_strategy: 'reuse', target_ref: agent, instruction });
  await again('a lighthouse');
  const tape = await h.runtime.tape({ agent });
  await tape.append([{ kind: 'message', content: 'no lighthouse' }]);
  await again('a lighthouse');
  const starts = (await tape.query().all()).filter(({ payload }) => payload.name === 'turn.started');
  const own = (starts[1]?.position ?? 0) - 1;
  expect((await found(tape, 'lighthouse')).map((one) => (one as unknown[])[0])).toEqual([
    starts[1]?.position,
    own,
  ]);
  expect(await tape.search('lighthouse', { limit: 1 })).toMatchObject([
    { record: { position: starts[1]?.position } },
  ]);
});

test('the instructions take one additional statement for a page of turn starts, for any number of starts', async () => {
  const agent = await fresh();
  const again = (n: number) =>
    ask('delegate_async', { target_strategy: 'reuse', target_ref: agent, instruction: `question ${n}` });
  await again(0);
  const tape = await h.runtime.tape({ agent });
  // The worker may sweep in the meantime; a sweep reads no tape.
  const cost = async (): Promise<number> =>
    (await statementsOf(h.database, async () => void (await tape.messages()))).filter((text) =>
      /tape_entries|pack_arguments/.test(text),
    ).length;
  const one = await cost();
  expect(one).toBeGreaterThan(1);
  for (let n = 1; n < 8; n += 1) await again(n);
  expect(await cost()).toBe(one);
  expect((await tape.messages()).filter(({ role }) => role === 'user')).toHaveLength(8);
});

test('instructions that are longer than a page arrive in parts, and none is lost', async () => {
  const agent = await fresh();
  const long = (n: number): string => `${n}`.repeat(120_000);
  for (let n = 0; n < 4; n += 1)
    await ask('delegate_async', { target_strategy: 'reuse', target_ref: agent, instruction: long(n) });
  const tape = await h.runtime.tape({ agent });
  const users = (await tape.messages()).filter(({ role }) => role === 'user');
  expect(
    users.map(({ content }) => content === long(users.findIndex((one) => one.content === content))),
  ).toEqual([true, true, true, true]);
});

test('the boxes, rights and cards of a turn start are read by key, in tables of any size', async () => {
  const { agent_id: agent, context_box_id: boxId } = await launch();
  const tape = await h.runtime.tape({ agent });
  const [sql] = (await statementsOf(h.database, () => tape.messages())).filter((text) =>
    text.includes('pack_arguments'),
  );
  const copies = (table: string, where: string): Promise<unknown> =>
    h.rows(
      `insert into boxcar.${table} select p.* from (select y from boxcar.${table} y where ${where}) x cross join generate_series(1, 5000) n
       cross join lateral jsonb_populate_record(x.y, jsonb_build_object('id', md5(n::text)::uuid)) p`,
    );
  await copies('boxes', `id = '${boxId}'`);
  await copies('cards', `id = (select card_ids[1] from boxcar.boxes where id = '${boxId}')`);
  await h.rows(
    `insert into boxcar.grants (box_id, agent_id, mode, source, project_id) select b.id, '${agent}', 'read', 'owner', b.project_id
     from boxcar.boxes b where b.kind = 'context' on conflict do nothing`,
  );
  await h.rows('analyze');
  const client = await h.database.pool.connect();
  try {
    await client.query(`prepare asked as ${sql}`);
    await client.query("set plan_cache_mode = 'force_generic_plan'");
    const { rows } = await client.query<Record<string, string>>(
      `explain execute asked ('{${boxId}}', '${PROJECT}', '${agent}', '262144')`,
    );
    const plan = rows.map((row) => row['QUERY PLAN']).join('\n');
    expect(plan).toContain('boxes_pkey');
    expect(plan).toContain('cards_pkey');
    expect(plan).not.toMatch(/Seq Scan on (boxes|cards|grants)/);
  } finally {
    await client.query('deallocate asked');
    await client.query('reset plan_cache_mode');
    client.release();
  }
});
