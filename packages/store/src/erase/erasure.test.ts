import {
  type BoxId,
  buildCard,
  type CardContent,
  type CardId,
  type NewCard,
  type ProjectId,
  type ToolCallId,
} from '@boxcar/kernel';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { expandContexts } from '../box/boxes.js';
import { loadCardFacts, loadCards } from '../box/card-facts.js';
import { createPool } from '../db/pool.js';
import { inspectTurn } from '../report/inspect.js';
import { writeSubmission } from '../submit/submission.js';
import { emptySubmission } from '../submit/submission-rows.js';
import { begin } from '../testing/interleave.js';
import { card, DEFAULT_PROJECT, newId, type TestProfile, text, World } from '../testing/world.js';
import { commitSteps } from '../turn/commits.js';
import { keepEvidence } from '../turn/evidence.js';
import { recordResults } from '../turn/tool-calls.js';
import { loadTurnStates } from '../turn/turns.js';
import { eraseCards, eraseEvidence, findOwnCards } from './erasure.js';

let world: World;
let profile: TestProfile;

beforeAll(async () => {
  world = await World.open();
  profile = await world.profile('writer');
});
afterAll(() => world[Symbol.asyncDispose]());

const REASON = { projectId: DEFAULT_PROJECT, reason: 'asked for' };
const erase = async (...ids: CardId[]): Promise<string[]> =>
  (await eraseCards(world.pool, ids, REASON)).map(({ outcome }) => outcome);

async function write(...contents: CardContent[]): Promise<NewCard[]> {
  const cards = contents.map((content) => card(content));
  await writeSubmission(world.pool, { ...emptySubmission(), cards });
  return cards;
}

const rowOf = async (id: CardId) => {
  const [row] = await world.rows('select * from boxcar.cards where id = $1', [id]);
  return row;
};

describe('erasure', () => {
  test('removes the content and keeps id, hash, size and everything else', async () => {
    const [secret] = (await write(text('the secret'))) as [NewCard];
    const before = await rowOf(secret.id);
    expect(await erase(secret.id)).toEqual(['erased']);
    const after = await rowOf(secret.id);
    expect(after).toEqual({
      ...before,
      content: null,
      placeholder: text('(erased)'),
      erased_at: expect.any(Date),
      erased_reason: 'asked for',
    });
    expect(JSON.stringify(after)).not.toContain('secret');
  });

  test('changes nothing the second time, and keeps the first reason', async () => {
    const [secret] = (await write(text('again'))) as [NewCard];
    await erase(secret.id);
    const before = await rowOf(secret.id);
    const [again] = await eraseCards(world.pool, [secret.id], { ...REASON, reason: 'another' });
    expect(again?.outcome).toBe('already_erased');
    expect(await rowOf(secret.id)).toEqual(before);
  });

  test('of a card by two processes at once happens once, and the other process finds the card erased', async () => {
    const [secret] = (await write(text('twice'))) as [NewCard];
    const outcomes = await Promise.all([erase(secret.id), erase(secret.id)]);
    expect(outcomes.flat().sort()).toEqual(['already_erased', 'erased']);
  });

  test('keeps the kind of a content and the ids that connect a prompt, and none of the words', async () => {
    const call = { tool_call_id: 'k1', name: 'look' };
    const cards = await write(
      { kind: 'json', data: { a: 'words' } },
      { kind: 'fields_schema', fields: [{ name: 'words' }] },
      { kind: 'file', uri: 'words', checksum: 'words', preview: 'words' },
      { kind: 'tool_call', ...call, provider_call_id: 'p1', arguments: { of: 'words' } },
      { kind: 'tool_result', ...call, status: 'success', result: 'words' },
      { kind: 'tool_result', ...call, status: 'failed', error: { code: 'words', message: 'words' } },
    );
    const ids = cards.map(({ id }) => id);
    expect(new Set(await erase(...ids))).toEqual(new Set(['erased']));
    const loaded = await loadCards(world.pool, ids, DEFAULT_PROJECT);
    const contents = ids.map((id) => loaded.get(id)?.content);
    expect(contents).toEqual([
      { kind: 'json', data: '(erased)' },
      { kind: 'fields_schema', fields: [] },
      { kind: 'file', uri: '(erased)', checksum: '(erased)' },
      { kind: 'tool_call', ...call, provider_call_id: 'p1', arguments: {} },
      { kind: 'tool_result', ...call, status: 'success', result: '(erased)' },
      { kind: 'tool_result', ...call, status: 'failed', error: { code: 'erased', message: '(erased)' } },
    ]);
    expect(JSON.stringify(await Promise.all(ids.map(rowOf)))).not.toContain('words');
    for (const facts of (await loadCardFacts(world.pool, ids, DEFAULT_PROJECT)).values())
      expect(facts.preview).toBe('(erased)');
  });

  test('includes the arguments in the row of a call, once the call has its result', async () => {
    const holder = await world.worker();
    const turn = await world.running({ profile, holder });
    const [callId] = (await world.call(turn, 1)) as [ToolCallId];
    const call = buildCard(
      {
        type: 'tool.call',
        content: {
          kind: 'tool_call',
          tool_call_id: callId,
          provider_call_id: 'p1',
          name: 'look',
          arguments: {},
        },
        authorId: turn.agentId,
        toolCallId: callId,
      },
      { id: newId<'card'>(), projectId: DEFAULT_PROJECT },
    );
    await writeSubmission(world.pool, { ...emptySubmission(), cards: [call] });
    await world.pool.query(`update boxcar.tool_calls set arguments = '{"of": "words"}' where id = $1`, [
      callId,
    ]);
    expect(await erase(call.id)).toEqual(['open_call']);
    await recordResults(world.pool, [world.result(turn, callId)]);
    expect(await erase(call.id)).toEqual(['erased']);
    expect(await world.rows('select arguments from boxcar.tool_calls where id = $1', [callId])).toEqual([
      { arguments: {} },
    ]);
  });

  test('does not affect the first card of tapes, profiles in use, and cards of other projects', async () => {
    const { projectId } = await world.project('other');
    const [own] = (await write(text('mine'))) as [NewCard];
    const [profileCard] = await findOwnCards(world.pool, profile.boxId, DEFAULT_PROJECT);
    await world.submit({ profile });
    expect(await erase('00000000-0000-7000-8000-000000000003' as CardId, profileCard as CardId)).toEqual([
      'bootstrap',
      'profile_in_use',
    ]);
    const [foreign] = await eraseCards(world.pool, [own.id], { ...REASON, projectId });
    expect(foreign?.outcome).toBe('not_found');
    expect(await rowOf(own.id)).toMatchObject({ content: text('mine') });
    expect(await erase(newId<'card'>())).toEqual(['not_found']);
  });

  test('is refused without a reason', async () => {
    for (const reason of ['', ' \n', 'x'.repeat(1001)])
      await expect(eraseCards(world.pool, [], { ...REASON, reason })).rejects.toMatchObject({
        code: 'bad_request',
      });
    await expect(world.pool.query("select boxcar.erase_cards('{}', ' ')")).rejects.toMatchObject({
      code: '22023',
    });
  });

  test('shows a placeholder to readers of the box, the turn and its deliverable', async () => {
    const holder = await world.worker();
    const turn = await world.running({ profile, holder });
    await commitSteps(world.pool, [await world.commit(turn, { says: 'the result', end: 'success' })]);
    const [state] = await loadTurnStates(world.pool, [turn.turnId]);
    expect(state?.content).toEqual(text('the result'));
    const ids = [
      ...(await findOwnCards(world.pool, turn.tapeId, DEFAULT_PROJECT)),
      ...(await findOwnCards(world.pool, turn.contextBoxId, DEFAULT_PROJECT)),
    ];
    expect((await erase(...ids)).sort()).toEqual(['bootstrap', 'erased', 'erased']);
    expect((await loadTurnStates(world.pool, [turn.turnId]))[0]?.content).toEqual(text('(erased)'));
    const [shown] = (await expandContexts(world.pool, [turn.contextBoxId])).get(turn.contextBoxId) ?? [];
    expect(shown?.card.content).toEqual(text('(erased)'));
  });
});

describe('the errors', () => {
  const ERROR = { code: 'model_refused', message: 'refused: the secret', details: { said: 'the secret' } };
  const GONE = { code: 'model_refused', message: '(erased)' };

  /** A turn that failed with a text, which is also in an answered batch and in a wait. */
  async function failed(): Promise<{
    turnId: string;
    tapeId: BoxId;
    contextBoxId: BoxId;
    callId: ToolCallId;
  }> {
    const holder = await world.worker();
    const turn = await world.running({ profile, holder });
    const [callId] = (await world.call(turn, 1)) as [ToolCallId];
    await recordResults(world.pool, [world.result(turn, callId)]);
    await commitSteps(world.pool, [
      await world.commit(turn, { says: 'partial', end: 'failed', step: 'none', holder: null }),
    ]);
    await world.pool.query('update boxcar.turns set error = $2 where id = $1', [turn.turnId, ERROR]);
    await world.pool.query('update boxcar.steps set error = $2 where turn_id = $1', [turn.turnId, ERROR]);
    await world.pool.query(
      `insert into boxcar.waits (turn_id, project_id, kind, detail) values ($1, $2, 'retry', '{"attempt": 1, "message": "the secret"}')`,
      [turn.turnId, DEFAULT_PROJECT],
    );
    await world.pool.query(
      `insert into boxcar.batches (id, project_id, primitive, kind, turn_ids, remaining, succeeded, failed, fail_fast, status, is_due, ended_at, answer)
       values ($1, $2, 'collect', 'collect', array[$3]::uuid[], 0, 0, 1, false, 'failed', false, now(),
         json_build_object('results', json_build_array(json_build_object('turn_id', $3::text, 'summary', 'partial', 'error', json_build_object('code', 'model_refused', 'message', 'the secret')))))`,
      [newId(), DEFAULT_PROJECT, turn.turnId],
    );
    return { ...turn, callId };
  }

  const errorsOf = async (turnId: string) => ({
    turn: (await world.rows('select error from boxcar.turns where id = $1', [turnId]))[0]?.error,
    steps: (
      await world.rows('select error from boxcar.steps where turn_id = $1 and error is not null', [turnId])
    ).map(({ error }) => error),
    wait: (await world.rows('select detail from boxcar.waits where turn_id = $1', [turnId]))[0]?.detail,
    result: (
      await world.rows<{ answer: { results: unknown[] } }>(
        'select answer from boxcar.batches where turn_ids = array[$1]::uuid[]',
        [turnId],
      )
    )[0]?.answer.results[0],
  });

  test.each(['a card of its tape', 'a card of its context', 'the result of a call, on a tape or not'])(
    'of a turn, of its steps and of their copies lose their words with %s',
    async (which) => {
      const turn = await failed();
      const [onTape] = await world.rows<{ id: CardId }>(
        "select c.id from boxcar.tape_entries e join boxcar.cards c on c.id = e.card_id where e.turn_id = $1 and c.type = 'agent.thought'",
        [turn.turnId],
      );
      const [packed] = await findOwnCards(world.pool, turn.contextBoxId, DEFAULT_PROJECT);
      const [result] = await world.rows<{ id: CardId }>(
        "select id from boxcar.cards where tool_call_id = $1 and type = 'tool.result'",
        [turn.callId],
      );
      const ids = { tape: onTape?.id, context: packed, result: result?.id };
      const id = which.includes('tape or') ? ids.result : which.includes('tape') ? ids.tape : ids.context;
      expect(await erase(id as CardId)).toEqual(['erased']);
      const { steps, ...rest } = await errorsOf(turn.turnId);
      expect(rest).toEqual({
        turn: GONE,
        wait: { attempt: 1, message: '(erased)' },
        result: { turn_id: turn.turnId, summary: 'partial', error: GONE },
      });
      expect(steps.length).toBeGreaterThan(0);
      for (const error of steps) expect(error).toEqual(GONE);
    },
  );

  test('of other turns stay, and a second erasure removes words that were written after the first', async () => {
    const [turn, other] = [await failed(), await failed()];
    const [packed] = await findOwnCards(world.pool, turn.contextBoxId, DEFAULT_PROJECT);
    await erase(packed as CardId);
    expect((await errorsOf(other.turnId)).turn).toEqual(ERROR);
    await world.pool.query('update boxcar.turns set error = $2 where id = $1', [turn.turnId, ERROR]);
    expect(await erase(packed as CardId)).toEqual(['already_erased']);
    expect((await errorsOf(turn.turnId)).turn).toEqual(GONE);
  });
});

describe('evidence', () => {
  test('is erased by its id, and keeps its cost', async () => {
    const holder = await world.worker();
    const turn = await world.running({ profile, holder });
    const item = {
      id: newId<'evidence'>(),
      projectId: DEFAULT_PROJECT,
      turnId: turn.turnId,
      kind: 'reply' as const,
      step: 1,
      attempt: 1,
      epoch: 1,
      holderId: holder,
      toolCallId: null,
      body: { text: 'the secret' },
      usage: { input_tokens: 7, output_tokens: 8 },
    };
    await keepEvidence(world.pool, [item]);
    const listed = await inspectTurn(world.pool, turn.turnId, { project: 'default' });
    expect(listed.evidence).toMatchObject([{ evidence_id: item.id, preview: 'the secret' }]);
    const outcome = async (of: { readonly projectId: ProjectId }) =>
      (await eraseEvidence(world.pool, [item.id], { ...REASON, ...of }))[0]?.outcome;
    expect(await outcome({ projectId: (await world.project('strangers')).projectId })).toBe('not_found');
    expect(await outcome({ projectId: DEFAULT_PROJECT })).toBe('erased');
    // The same evidence again, as a worker may repeat it.
    await keepEvidence(world.pool, [item]);
    expect(await outcome({ projectId: DEFAULT_PROJECT })).toBe('already_erased');
    const shown = await inspectTurn(world.pool, turn.turnId, { project: 'default' });
    expect(shown.evidence).toMatchObject([{ preview: '(erased)', usage: item.usage }]);
    const rows = await world.rows('select v::text from boxcar.evidence v where id = $1', [item.id]);
    expect(JSON.stringify(rows)).not.toContain('secret');
    expect(JSON.stringify(rows)).toContain('asked for');
    await expect(eraseEvidence(world.pool, [], { ...REASON, reason: ' ' })).rejects.toMatchObject({
      code: 'bad_request',
    });
  });
});

describe('an erasure changes', () => {
  const ANSWERS = 5_000;

  interface Work {
    readonly updated: number;
    readonly blocks: number;
    /** Index searches on the table. */
    readonly searches: number;
  }

  /** The work of an erasure in one transaction: changed rows of a table, blocks read of the table and its indexes, and index searches. */
  async function workOf(ids: readonly CardId[], table: string): Promise<Work> {
    await using tx = await begin(world.pool);
    // Reads the counters of this connection, which include transactions whose counts have not been reported yet.
    const count = async (): Promise<Work> => {
      const { rows } = await tx.query<Work>(
        `select pg_stat_get_xact_tuples_updated($1::regclass)::int as updated,
           (select sum(pg_stat_get_xact_blocks_fetched(x.id))::int from (select $1::regclass::oid as id union all select i.indexrelid from pg_index i where i.indrelid = $1::regclass) x) as blocks,
           (select sum(pg_stat_get_xact_numscans(i.indexrelid))::int from pg_index i where i.indrelid = $1::regclass) as searches`,
        [`boxcar.${table}`],
      );
      return rows[0] ?? { updated: NaN, blocks: NaN, searches: NaN };
    };
    const before = await count();
    await tx.query("select boxcar.erase_cards($1::uuid[], 'asked for')", [ids]);
    const after = await count();
    await tx.query('commit');
    return {
      updated: after.updated - before.updated,
      blocks: after.blocks - before.blocks,
      searches: after.searches - before.searches,
    };
  }

  test('of the answers of reading commands, only answers that still have words, each once', async () => {
    const { projectId } = await world.project('asks-a-lot');
    await world.pool.query(
      `insert into boxcar.operations (project_id, idempotency_key, primitive, request_hash, response)
       select $1, 'ask-' || n, 'delegate_async', '', json_build_object('status', 'success', 'command', 'search', 'output', 'words', 'result', 'words')
       from generate_series(1, $2) n`,
      [projectId, ANSWERS],
    );
    await world.pool.query('analyze boxcar.operations');
    const cards = await Promise.all(
      ['one', 'two'].map(async (words) => {
        const made = buildCard(
          { type: 'note', content: text(words), authorId: 'me' },
          { id: newId(), projectId },
        );
        await writeSubmission(world.pool, { ...emptySubmission(), cards: [made] });
        return made.id;
      }),
    );
    expect(await workOf([cards[0] as CardId], 'operations')).toMatchObject({ updated: ANSWERS });
    // Outside of the transaction that a pool may put around a statement.
    const client = await world.pool.connect();
    await client.query('vacuum analyze boxcar.operations');
    client.release();
    const again = await workOf([cards[1] as CardId], 'operations');
    expect(again.updated).toBe(0);
    expect(again.blocks).toBeLessThan(10);
  });

  test('the erasure count of a project when a card loses its words', async () => {
    const [secret] = (await write(text('counted'))) as [NewCard];
    const count = async () =>
      (await world.rows('select erasures from boxcar.projects where id = $1', [DEFAULT_PROJECT]))[0];
    const before = await count();
    await erase('00000000-0000-7000-8000-000000000003' as CardId);
    expect(await count()).toEqual(before);
    await erase(secret.id);
    const after = await count();
    expect(after).not.toEqual(before);
    await erase(secret.id);
    expect(await count()).toEqual(after);
  });

  test('of the turns, only turns that have its cards, by two searches per pass for any number of turns', async () => {
    const turn = await world.running({ profile, holder: await world.worker() });
    const [packed] = await findOwnCards(world.pool, turn.contextBoxId, DEFAULT_PROJECT);
    await commitSteps(world.pool, [await world.commit(turn, { end: 'failed', step: 'none' })]);
    await world.pool.query('update boxcar.turns set error = $2 where id = $1', [
      turn.turnId,
      { code: 'x', message: 'words' },
    ]);
    const CARDS = 200;
    const [note] = (await write(text('noted'))) as [NewCard];
    const cards = await world.rows<{ id: CardId }>(
      `insert into boxcar.cards (id, project_id, type, content, content_hash, size_bytes, token_estimate, author_id, created_at)
       select gen_random_uuid(), c.project_id, c.type, c.content, c.content_hash, c.size_bytes, c.token_estimate, c.author_id, now() - n * interval '1 s'
       from boxcar.cards c cross join generate_series(1, $2) n where c.id = $1 returning id`,
      [note.id, CARDS],
    );
    // Run without statistics.
    await world.pool.query(
      `insert into boxcar.turns (id, project_id, run_id, agent_id, profile_id, depth, primitive, status, epoch, max_steps, context_box_id, output_box_id, deliverable_card_id, created_at, ended_at)
       select gen_random_uuid(), t.project_id, t.run_id, t.agent_id, t.profile_id, 0, 'x', 'failed', 1, 1, t.context_box_id, t.output_box_id, t.deliverable_card_id, t.created_at - n * interval '1 s', now()
       from boxcar.turns t cross join generate_series(20000, 1, -1) n where t.id = $1`,
      [turn.turnId],
    );
    const half = CARDS / 2;
    const ids = cards.map(({ id }) => id);
    const works = [await workOf([packed as CardId, ...ids.slice(1, half)], 'turns')];
    // Outside of the transaction that a pool may put around a statement.
    const client = await world.pool.connect();
    await client.query('vacuum analyze boxcar.turns');
    client.release();
    works.push(await workOf(ids.slice(half), 'turns'));
    expect(works.map(({ updated }) => updated)).toEqual([1, 0]);
    for (const { blocks, searches } of works) {
      expect(blocks).toBeLessThan(half * 12);
      // Searches for the errors and the parts of the turns; and a few for the turns that were found.
      expect(searches).toBeLessThan(half * 2 + 10);
    }
    await world.pool.query("delete from boxcar.turns where primitive = 'x'");
  });

  test('at most a thousand cards per transaction', async () => {
    const cards = await write(...Array.from({ length: 1_001 }, (_, n) => text(`many ${n}`)));
    const count = async () =>
      (
        await world.rows<{ n: number }>('select erasures as n from boxcar.projects where id = $1', [
          DEFAULT_PROJECT,
        ])
      )[0]?.n ?? NaN;
    const before = await count();
    expect(new Set(await erase(...cards.map(({ id }) => id)))).toEqual(new Set(['erased']));
    expect((await count()) - before).toBe(2);
  });
});

describe('the seal', () => {
  test('opens only for the erasing function, and is closed after it', async () => {
    const [one, two] = (await write(text('one'), text('two'))) as [NewCard, NewCard];
    await using tx = await begin(world.pool);
    await tx.query(`select boxcar.erase_cards(array['${one.id}']::uuid[], 'asked for')`);
    const attempt = tx.query(
      `update boxcar.cards set content = null, erased_at = now() where id = '${two.id}'`,
    );
    await expect(attempt).rejects.toMatchObject({ code: 'BX001' });
  });

  test.each([
    "set local boxcar.unsealed = 'erase'; update boxcar.cards set content = null, erased_at = now()",
    "insert into boxcar.unsealed values (pg_current_xact_id(), 'purge'); update boxcar.cards set author_id = 'me'",
    "insert into boxcar.unsealed values (pg_current_xact_id(), 'erase'); delete from boxcar.cards",
    "insert into boxcar.unsealed values (pg_current_xact_id(), 'purge'); truncate boxcar.cards cascade",
    "insert into boxcar.unsealed values (pg_current_xact_id(), 'erase'); update boxcar.boxes set segments = '[]' where kind = 'context'",
    'select boxcar.purge_boxes(array(select id from boxcar.boxes), array(select id from boxcar.cards))',
  ])('is not opened by: %s', async (sql) => {
    const before = await world.rows(
      'select md5(string_agg(c::text, c.id::text order by c.id)) from boxcar.cards c',
    );
    await expect(world.pool.query(`begin; ${sql}; commit`)).rejects.toMatchObject({ code: 'BX001' });
    expect(
      await world.rows('select md5(string_agg(c::text, c.id::text order by c.id)) from boxcar.cards c'),
    ).toEqual(before);
  });

  test('does not open for a role with all rights on all tables until the role may execute the function', async () => {
    const role = `clerk_${process.pid}_${Math.random().toString(36).slice(2)}`;
    await world.pool.query(`create role ${role} login password 'clerk'; grant usage on schema boxcar to ${role};
      grant all on all tables in schema boxcar to ${role}`);
    const url = new URL(world.database.url);
    url.username = role;
    url.password = 'clerk';
    const pool = createPool({ connectionString: url.href, max: 1 });
    try {
      const [secret] = (await write(text('role'))) as [NewCard];
      await expect(eraseCards(pool, [secret.id], REASON)).rejects.toMatchObject({
        code: 'database_forbidden',
      });
      const opening = pool.query("insert into boxcar.unsealed values (pg_current_xact_id(), 'erase')");
      await expect(opening).rejects.toMatchObject({ code: 'BX001' });
      await expect(
        pool.query('select boxcar.purge_boxes(array[]::uuid[], array[]::uuid[])'),
      ).rejects.toBeInstanceOf(pg.DatabaseError);
      await world.pool.query(`grant execute on function boxcar.erase_cards(uuid[], text) to ${role}`);
      expect((await eraseCards(pool, [secret.id], REASON))[0]?.outcome).toBe('erased');
    } finally {
      await pool.end();
      await world.pool.query(`drop owned by ${role}; drop role ${role}`);
    }
  });
});
