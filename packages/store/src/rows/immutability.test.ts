import { KernelError } from '@boxcar/kernel';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { toDatabaseError } from '../db/errors.js';
import { run, statement } from '../db/statement.js';
import { type TestTurn, World } from '../testing/world.js';

let world: World;
let turn: TestTurn;

beforeAll(async () => {
  world = await World.open();
  turn = await world.submit({ profile: await world.profile('writer') });
});
afterAll(() => world[Symbol.asyncDispose]());

const dump = async (): Promise<string> => {
  const tables = await Promise.all(
    ['cards', 'tape_entries', 'boxes'].map((table) =>
      world.rows(`select md5(string_agg(t::text, '|' order by t::text)) as hash from boxcar.${table} t`),
    ),
  );
  return JSON.stringify(tables);
};

describe('the database itself refuses the statement', () => {
  test.each([
    "update boxcar.cards set metadata = '{}'",
    "update boxcar.cards set content = '{}' where false",
    'delete from boxcar.cards',
    'truncate boxcar.cards cascade',
    'update boxcar.tape_entries set position = position + 100',
    'delete from boxcar.tape_entries where position = 1',
    'truncate boxcar.tape_entries',
    "update boxcar.boxes set segments = '[]' where kind = 'context'",
    "update boxcar.boxes set card_count = card_count where kind = 'context'",
    "update boxcar.boxes set owner_agent_id = null where kind = 'context'",
    'delete from boxcar.boxes',
    'truncate boxcar.boxes cascade',
    "update boxcar.boxes set head_position = head_position - 1 where kind = 'tape'",
    "update boxcar.boxes set project_id = gen_random_uuid() where kind = 'tape'",
    "update boxcar.boxes set kind = 'context' where kind = 'tape'",
    "update boxcar.boxes set parent_box_id = id where kind = 'tape'",
    "update boxcar.boxes set fork_position = 1 where kind = 'tape'",
    "update boxcar.boxes set line_boxes = array[id] where kind = 'tape'",
    "update boxcar.boxes set line_ends = '{1}' where kind = 'tape'",
    "insert into boxcar.cards select * from boxcar.cards limit 1 on conflict (id) do update set author_id = 'me'",
    "merge into boxcar.cards c using (select 1) s on true when matched then update set author_id = 'me'",
  ])('%s', async (sql) => {
    const before = await dump();
    await expect(world.pool.query(sql)).rejects.toMatchObject({ code: 'BX001' });
    expect(await dump()).toBe(before);
  });

  test('and the store reports the refusal as `immutable`, with the cause', async () => {
    const error = await run(
      world.pool,
      statement('delete /* immutability.cards */ from boxcar.cards'),
      [],
    ).catch((thrown) => thrown);
    expect(error).toBeInstanceOf(KernelError);
    expect(error).toMatchObject({ code: 'immutable', cause: { code: 'BX001' } });
    expect(toDatabaseError(error)).toBe(error);
  });
});

describe('a tape', () => {
  test('begins with the anchor session/start of its project and the event of the anchor', async () => {
    const [anchor, event, ...rest] = await world.entries(turn);
    expect(rest).toEqual([]);
    expect(anchor).toMatchObject({
      position: 1,
      kind: 'anchor',
      anchor_name: 'session/start',
      payload: null,
      content: { kind: 'json', data: { owner: 'human' } },
    });
    expect(event).toMatchObject({
      position: 2,
      kind: 'event',
      card_id: null,
      payload: { name: 'handoff', data: { name: 'session/start', state: { owner: 'human' } } },
    });
    const [box] = await world.rows('select * from boxcar.boxes where id = $1', [turn.tapeId]);
    expect(box).toMatchObject({ head_position: 2, last_anchor_position: 1, view_position: 1 });
  });

  test('accepts new entries', async () => {
    await expect(
      world.pool.query('update boxcar.boxes set head_position = head_position + 1 where id = $1', [
        turn.tapeId,
      ]),
    ).resolves.toBeDefined();
  });

  test('has no gap that could be filled, and no position twice', async () => {
    const insert = (position: number) =>
      world.pool.query(
        `insert into boxcar.tape_entries (box_id, position, kind, payload, author_id) values ($1, $2, 'event', '{}', 'me')`,
        [turn.tapeId, position],
      );
    await expect(insert(1)).rejects.toMatchObject({ code: '23505' });
    await expect(insert(0)).rejects.toMatchObject({ code: '23514' });
  });
});
