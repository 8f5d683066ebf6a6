/** Handlers may return any answer: the kernel does not learn from an answer which rows the submission made. */
import type { JsonValue, TurnId } from '@boxcar/kernel';
import { purgeRuns } from '@boxcar/store';
import { beforeEach, expect, test } from 'vitest';
import { z } from 'zod';
import type { TurnRef } from '../handler/handler.js';
import { newId } from '../lib/new-id.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { rowCounts } from '../testing/row-counts.js';

let h: Harness;
/** The turns that the last call of the handler below has made. */
let made: readonly TurnRef[];

beforeEach(async () => {
  h = await harness();
  await h.profile('writer', [{ say: 'written' }]);
  return () => h[Symbol.asyncDispose]();
});

/** Registers a handler that makes `turns` turns, joins them if `isJoined`, and returns `answer`. */
function answering(answer: JsonValue, { name = 'answering', turns = 1, isJoined = false } = {}): void {
  h.runtime.registerHandler(name, {
    description: 'Makes turns.',
    input: z.strictObject({}),
    handle: async (_input, tools) => {
      const profile = await tools.findProfile('writer');
      const requests = [];
      for (let n = 0; n < turns; n++) {
        const { contextBoxId } = await tools.packer.packContextWithInstruction({
          projectId: tools.ctx.projectId,
          toolSuffix: 'answering',
          sourceAgentId: tools.ctx.source.agentId,
          profileName: profile.name,
          instruction: 'go',
        });
        requests.push({ target: { kind: 'new', profile } as const, contextBoxId });
      }
      if (isJoined) {
        made = await tools.submitTurns(requests);
        await tools.joinTurns(
          made.map(({ turnId }) => turnId),
          { wait: false },
        );
      } else {
        const single: TurnRef[] = [];
        for (const request of requests) single.push(await tools.submitTurn(request));
        made = single;
      }
      return answer;
    },
  });
}

const WORDS: readonly JsonValue[] = [
  { turn_id: 'the third turn of the dance' },
  { turn_id: newId() },
  { turn_id: 7, turn_ids: ['red', 'green'], batch_id: 'none' },
  { batch_id: newId() },
  'done',
  null,
];

test.each(WORDS)(
  'checks ignore an answer of %j, but do not ignore the record of the turns that it made',
  async (answer) => {
    await using _worker = await h.worker();
    answering(answer);
    expect(await h.runtime.submit('answering', {})).toEqual(answer);
    const [{ turnId }] = made as readonly [TurnRef];
    await h.runtime.waitForTurn(turnId);
    await checkInvariants(h.database.pool);
    await h.rows("update boxcar.operations set made = array_append(made, $1) where primitive = 'answering'", [
      newId(),
    ]);
    await expect(checkInvariants(h.database.pool)).rejects.toThrow(/operation-names-turn: .* does not exist/);
    await h.rows("update boxcar.operations set made = '{}' where primitive = 'answering'");
    await expect(checkInvariants(h.database.pool)).rejects.toThrow(
      `operation-names-turn: the record of an accepted submission names only rows that exist, and each turn belongs to one request: ${turnId} was asked for by 0 requests`,
    );
  },
);

test('every turn of a submission is recorded, joined or alone, and is purged with its operation', async () => {
  await using _worker = await h.worker();
  const before = await rowCounts(h.database.pool);
  for (const isJoined of [true, false]) {
    const name = isJoined ? 'joining' : 'answering';
    answering('done', { name, turns: 3, isJoined });
    await h.runtime.submit(name, {});
    for (const { turnId } of made) await h.runtime.waitForTurn(turnId);
    const [row] = await h.rows<{ n: number; turns: readonly TurnId[] }>(
      `select cardinality(o.made) as n, array(select unnest(coalesce(b.turn_ids, array[m.id])) from unnest(o.made) as m(id) left join boxcar.batches b on b.id = m.id) as turns
       from boxcar.operations o order by o.created_at desc limit 1`,
    );
    expect(row?.n).toBe(isJoined ? 1 : 3);
    expect([...(row?.turns ?? [])].sort()).toEqual(made.map(({ turnId }) => turnId).sort());
  }
  await checkInvariants(h.database.pool);
  const at = new Date(Date.now() + 60_000);
  expect(await purgeRuns(h.database.pool, { before: at })).toMatchObject({ kept: [] });
  expect(await rowCounts(h.database.pool)).toEqual(before);
});

test('an operation keeps the record of its other turns when some of its turns are purged', async () => {
  await using _worker = await h.worker();
  answering('done', { turns: 2 });
  await h.runtime.submit('answering', {});
  const [first, second] = made as readonly [TurnRef, TurnRef];
  for (const { turnId } of made) await h.runtime.waitForTurn(turnId);
  await h.rows("update boxcar.runs set created_at = now() - interval '1 day' where root_turn_id = $1", [
    first.turnId,
  ]);
  await h.rows("update boxcar.turns set ended_at = now() - interval '1 day' where id = $1", [first.turnId]);
  // The entries are as old as their turn.
  await h.database.pool.query(
    `begin; set local session_replication_role = replica;
     update boxcar.cards set created_at = now() - interval '1 day';
     update boxcar.tape_entries set created_at = now() - interval '1 day' where box_id = (select output_box_id from boxcar.turns where id = '${first.turnId}'); commit`,
  );
  const report = await purgeRuns(h.database.pool, { before: new Date(Date.now() - 3_600_000) });
  expect(report).toMatchObject({ removed: { runs: 1, turns: 1 } });
  expect(await h.rows('select made from boxcar.operations')).toEqual([{ made: [second.turnId] }]);
  await checkInvariants(h.database.pool);
});

test('operations of older builds, which have no record, are checked by their time and purged by their answer', async () => {
  await using _worker = await h.worker();
  const before = await rowCounts(h.database.pool);
  const { turn_id: turnId } = (await h.runtime.submit('launch_principal', {
    profile_name: 'writer',
    instruction: 'go',
  })) as { turn_id: string };
  await h.runtime.waitForTurn(turnId);
  await h.rows('update boxcar.operations set made = null');
  await checkInvariants(h.database.pool);
  await purgeRuns(h.database.pool, { before: new Date(Date.now() + 60_000) });
  expect(await rowCounts(h.database.pool)).toEqual(before);
});
