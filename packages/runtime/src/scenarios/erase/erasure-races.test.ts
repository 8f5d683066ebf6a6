/** Texts that are read before an erasure, and answers with these texts that are committed after it. */
import {
  type BatchId,
  type CardId,
  type JsonValue,
  KernelError,
  type ProjectId,
  type TurnId,
} from '@boxcar/kernel';
import { eraseCards } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import type pg from 'pg';
import { beforeEach, describe, expect, test } from 'vitest';
import { type Harness, harness } from '../../testing/harness.js';
import { checkInvariants } from '../../testing/invariants.js';

const PROJECT = '00000000-0000-7000-8000-000000000001' as ProjectId;
const WORD = 'tergiversation';
let h: Harness;

beforeEach(async () => {
  h = await harness();
  await h.profile('writer', [{ say: `about ${WORD}` }]);
  return async () => {
    await checkInvariants(h.database.pool);
    await h[Symbol.asyncDispose]();
  };
});

const idsOf = async (): Promise<readonly CardId[]> =>
  (
    await h.rows<{ id: CardId }>(
      'select id from boxcar.cards where content::text like $1 and not exists (select from boxcar.profiles f where f.card_id = cards.id)',
      [`%${WORD}%`],
    )
  ).map(({ id }) => id);

const erase = async () =>
  eraseCards(h.database.pool, await idsOf(), { projectId: PROJECT, reason: 'asked for' });

/** An erasure that has written everything and is not committed. */
async function eraseSlowly(): Promise<pg.PoolClient> {
  const client = await h.database.pool.connect();
  await client.query('begin isolation level read committed');
  await client.query("select boxcar.erase_cards($1, 'asked for')", [await idsOf()]);
  return client;
}

/** The statements that wait for a lock. */
const waiting = (): Promise<unknown[]> =>
  h.rows(
    'select pid from pg_stat_activity where datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0',
  );
const waitUntilBlocked = (n = 1): Promise<unknown> =>
  waitFor(async () => (await waiting()).length >= n, { message: `${n} statement(s) wait for a lock` });

/** Transactions that write to the table wait before their commit until the returned function is called. */
async function holdCommits(table: string, event: 'insert' | 'update'): Promise<() => Promise<void>> {
  await h.database.pool.query(`
    create function public.wait_before_commit() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock_shared(14); return null; end $$;
    create constraint trigger wait_before_commit after ${event} on boxcar.${table} deferrable initially deferred
      for each row execute function public.wait_before_commit()`);
  const client = await h.database.pool.connect();
  await client.query('select pg_advisory_lock(14)');
  return async () => {
    await client.query('select pg_advisory_unlock(14)');
    client.release();
  };
}

async function run(instruction = 'go'): Promise<{ readonly turnId: TurnId; readonly agentId: string }> {
  const launched = (await h.runtime.submit('launch_principal', {
    profile_name: 'writer',
    instruction,
  })) as unknown as { turn_id: TurnId; agent_id: string };
  await h.runtime.waitForTurn(launched.turn_id, { timeoutMs: 60_000 });
  return { turnId: launched.turn_id, agentId: launched.agent_id };
}

describe.each([',tape.search tergiversation', ',anchors'])('the stored answer of %s', (instruction) => {
  let agentId: string;
  const key = { idempotencyKey: 'ask-once' };
  const ask = () =>
    h.runtime.submit(
      'delegate_async',
      { target_strategy: 'reuse', target_ref: agentId, instruction },
      key,
    ) as Promise<{ output: string; result: JsonValue }>;
  const stored = () =>
    h.rows("select response from boxcar.operations where response::text like '%' || $1 || '%' limit 1", [
      WORD,
    ]);

  beforeEach(async () => {
    await h.worker();
    ({ agentId } = await run());
    const tape = await h.runtime.tape({ agent: agentId });
    await tape.handoff('phase/1', { state: { summary: WORD } });
    if (instruction !== ',anchors') await tape.append([{ kind: 'message', content: WORD }]);
  });

  test('that was read before an erasure and is stored after the erasure is read again', async () => {
    const other = await h.database.pool.connect();
    await other.query('begin isolation level read committed');
    await other.query(
      `insert into boxcar.operations (project_id, idempotency_key, primitive, request_hash, response) values ($1, $2, 'x', '', 'null')`,
      [PROJECT, key.idempotencyKey],
    );
    const asked = ask();
    await waitUntilBlocked();
    expect((await erase()).every(({ outcome }) => outcome === 'erased')).toBe(true);
    await other.query('rollback');
    other.release();
    await asked;
    expect(await stored()).toEqual([]);
    expect(JSON.stringify((await ask()).result)).not.toContain(WORD);
  });

  test('that is read while an erasure is not committed waits for the erasure', async () => {
    const erasing = await eraseSlowly();
    const asked = ask();
    let isAnswered = false;
    asked.finally(() => {
      isAnswered = true;
    });
    await waitFor(async () => isAnswered || (await waiting()).length > 0, {
      message: 'the answer neither waits nor is given',
    });
    await erasing.query('commit');
    erasing.release();
    await asked;
    expect(await stored()).toEqual([]);
  });

  test('that is committed while an erasure waits for it is erased', async () => {
    const letGo = await holdCommits('operations', 'insert');
    const asked = ask();
    await waitUntilBlocked();
    let isErased = false;
    const erased = erase().finally(() => {
      isErased = true;
    });
    await waitFor(async () => isErased || (await waiting()).length > 1, {
      message: 'the erasure neither waits nor ends',
    });
    await letGo();
    await Promise.all([asked, erased]);
    expect(await stored()).toEqual([]);
    expect(await ask()).toMatchObject({ output: '(erased)', result: '(erased)' });
  });
});

test('commands that read during a stream of erasures are all answered', async () => {
  await h.worker();
  const { agentId } = await run();
  const ERASURES = 150;
  await h.runtime.submit('create_box', {
    cards: Array.from({ length: ERASURES }, (_, n) => ({
      type: 'note',
      content: { kind: 'text', text: `${WORD} ${n}` },
    })),
  });
  const ids = await h.rows<{ id: CardId }>("select id from boxcar.cards where type = 'note'");
  expect(ids).toHaveLength(ERASURES);
  let left = ERASURES;
  const erasing = (async () => {
    for (const { id } of ids) {
      await eraseCards(h.database.pool, [id], { projectId: PROJECT, reason: 'asked for' });
      left -= 1;
    }
  })();
  const answers: unknown[] = [];
  while (left > 0)
    answers.push(
      await h.runtime
        .submit('delegate_async', {
          target_strategy: 'reuse',
          target_ref: agentId,
          instruction: ',tape.search query=about',
        })
        .then(
          (answer) => (answer as { status: string }).status,
          (error: unknown) => (error instanceof KernelError ? error.code : error),
        ),
    );
  await erasing;
  expect(new Set(answers)).toEqual(new Set(['success']));
});

describe('the answer of a batch', () => {
  const answers = () =>
    h.rows("select id from boxcar.batches where answer::text like '%' || $1 || '%'", [WORD]);
  const quotes = () =>
    h.rows("select id from boxcar.cards where content::text like '%' || $1 || '%' and type = 'tool.result'", [
      WORD,
    ]);

  test('that ends while an erasure is not committed waits for the erasure', async () => {
    await h.worker();
    const { turnId } = await run();
    const erasing = await eraseSlowly();
    const collected = h.runtime.submit('collect', { turn_ids: [turnId] });
    let isEnded = false;
    collected.finally(() => {
      isEnded = true;
    });
    await waitFor(async () => isEnded || (await waiting()).length > 0, {
      message: 'the batch neither waits nor ends',
    });
    await erasing.query('commit');
    erasing.release();
    expect(await collected).toMatchObject({ results: [{ summary: '(erased)' }] });
    expect(await answers()).toEqual([]);
  });

  test('that is committed while an erasure waits for it is erased', async () => {
    await h.worker();
    const { turnId } = await run();
    const letGo = await holdCommits('batches', 'update');
    const collected = h.runtime.submit('collect', { turn_ids: [turnId] }, { idempotencyKey: 'collect-once' });
    await waitUntilBlocked();
    let isErased = false;
    const erased = erase().finally(() => {
      isErased = true;
    });
    await waitFor(async () => isErased || (await waiting()).length > 1, {
      message: 'the erasure neither waits nor ends',
    });
    await letGo();
    await Promise.all([collected, erased]);
    expect(await answers()).toEqual([]);
    expect(
      await h.runtime.submit('collect', { turn_ids: [turnId] }, { idempotencyKey: 'collect-once' }),
    ).toMatchObject({ results: [{ summary: '(erased)' }] });
  });

  test('is not written into the result of a call after the erasure', async () => {
    const task = { target_strategy: 'new', target_ref: 'writer', instruction: 'go' };
    await h.profile(
      'parent',
      [{ calls: [{ tool: 'fork_join', arguments: { tasks: [task] } }] }, { say: 'joined' }],
      {
        tools: ['fork_join'],
        delegation_policy: { target_profiles: null },
        worker_target: 'parents',
      },
    );
    const parents = await h.worker({ targets: ['parents'] });
    const { turn_id } = (await h.runtime.submit('launch_principal', {
      profile_name: 'parent',
      instruction: 'go',
    })) as unknown as { turn_id: TurnId };
    const [batch] = await waitForRows<{ id: BatchId }>('select id from boxcar.batches');
    // The child can end, but its batch cannot yet.
    const holding = await h.database.pool.connect();
    await holding.query('begin isolation level read committed');
    await holding.query('select from boxcar.turns where id = $1 for update', [turn_id]);
    await h.worker();
    await waitForRows('select 1 from boxcar.turns where parent_turn_id is not null and ended_at is not null');
    const erasing = await eraseSlowly();
    await holding.query('rollback');
    holding.release();
    const result = `select 1 from boxcar.tool_calls where batch_id = '${batch?.id}' and result_card_id is not null`;
    await waitFor(async () => (await waiting()).length > 0 || (await h.rows(result)).length > 0, {
      message: 'the batch neither waits nor ends',
    });
    await erasing.query('commit');
    erasing.release();
    await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
    expect(await quotes()).toEqual([]);
    await parents.close();
  });
});

const waitForRows = async <R extends Record<string, unknown>>(text: string): Promise<R[]> => {
  let rows: R[] = [];
  await waitFor(
    async () => {
      rows = await h.rows<R>(text);
      return rows.length > 0;
    },
    { message: text },
  );
  return rows;
};
