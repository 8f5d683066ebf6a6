import { isDeepStrictEqual } from 'node:util';
import {
  type AgentId,
  type BoxId,
  buildCard,
  buildView,
  type CardId,
  type ProjectId,
  type TurnId,
} from '@boxcar/kernel';
import {
  appendEntries,
  findOwnCards,
  type KeptByPurge,
  loadViews,
  type PurgeReport,
  purgeRuns,
} from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import { beforeEach, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { newId } from '../../lib/new-id.js';
import { toRows } from '../../pack/context-rows.js';
import type { Tape } from '../../tape/tape.js';
import { type Harness, harness } from '../../testing/harness.js';
import { checkInvariants } from '../../testing/invariants.js';
import { rowCounts } from '../../testing/row-counts.js';

let h: Harness;

beforeEach(async () => {
  h = await harness();
  h.runtime.registerTool({
    name: 'look',
    description: 'Looks.',
    input: z.looseObject({}),
    isReadOnly: true,
    run: async () => 'seen',
  });
  await h.profile('child', [{ say: 'done' }]);
  await h.profile(
    'parent',
    [
      { calls: [{ tool: 'look', arguments: {} }] },
      {
        calls: [
          {
            tool: 'delegate_async',
            arguments: { target_strategy: 'new', target_ref: 'child', instruction: 'help', wait: true },
          },
          {
            tool: 'create_box',
            arguments: { cards: [{ type: 'note', content: { kind: 'text', text: 'n' } }] },
          },
        ],
      },
      { say: 'all done' },
    ],
    { tools: ['look', 'delegate_async', 'create_box'], delegation_policy: { target_profiles: null } },
  );
  await h.worker();
  return async () => {
    const open = () => h.rows('select from boxcar.turns where ended_at is null');
    await waitFor(async () => (await open()).length === 0, { message: 'all turns have ended' });
    await checkInvariants(h.database.pool);
    await h[Symbol.asyncDispose]();
  };
});

interface Receipt {
  readonly turn_id: TurnId;
  readonly agent_id: string;
  readonly context_box_id: BoxId;
  readonly output_box_id: BoxId;
}

async function launch(profile = 'parent', rest: Record<string, unknown> = {}): Promise<Receipt> {
  const receipt = await h.runtime.submit('launch_principal', {
    profile_name: profile,
    instruction: 'go',
    ...rest,
  });
  return receipt as unknown as Receipt;
}
async function finish(receipt: Receipt): Promise<Receipt> {
  expect(await h.runtime.waitForTurn(receipt.turn_id, { timeoutMs: 60_000 })).toMatchObject({
    status: 'success',
  });
  return receipt;
}
const play = async (profile?: string, rest?: Record<string, unknown>): Promise<Receipt> =>
  finish(await launch(profile, rest));
const reuse = async (agent: string): Promise<Receipt> =>
  (await h.runtime.submit('delegate_async', {
    target_strategy: 'reuse',
    target_ref: agent,
    instruction: 'again',
  })) as unknown as Receipt;

/** A moment after everything that was written before it, and before everything that is written later. */
const now = async (): Promise<Date> => {
  const [row] = await h.rows<{ at: Date }>("select clock_timestamp() + interval '1 millisecond' as at");
  const at = row?.at ?? new Date(0);
  await h.rows('select pg_sleep(greatest(0, extract(epoch from $1::timestamptz - clock_timestamp())))', [at]);
  return at;
};
const purge = async (options: Partial<Parameters<typeof purgeRuns>[1]> = {}): Promise<PurgeReport> =>
  purgeRuns(h.database.pool, { before: await now(), ...options });
const runOf = async (turnId: string): Promise<string> => {
  const [row] = await h.rows<{ run_id: string }>('select run_id from boxcar.turns where id = $1', [turnId]);
  return row?.run_id ?? 'none';
};
async function linesOf(tape: Tape): Promise<string[]> {
  const lines: string[] = [];
  for await (const line of tape.export()) lines.push(line);
  return lines;
}
const causes = (kept: readonly KeptByPurge[]): string[] => kept.map(({ cause }) => cause).sort();

/**
 * A fork of the first three entries of the tape, owned by the agent of another run, and a fork of that fork at a position before its own
 * first entry.
 */
async function forksOf(boxId: BoxId, by: Receipt): Promise<readonly [string, string]> {
  const fork = async (parent: string, at: number): Promise<string> => {
    const [row] = await h.rows<{ id: string }>(
      `insert into boxcar.boxes (id, project_id, kind, owner_agent_id, maker_agent_id, incarnation, head_position, last_anchor_position, view_position, parent_box_id, fork_position, line_boxes, line_ends)
       select gen_random_uuid(), b.project_id, 'tape', $3, $3, 1, $4, 1, 1, $2, $4, array[b.id], array[$4::int] from boxcar.boxes b where b.id = $1 returning id`,
      [boxId, parent, by.agent_id, at],
    );
    if (row === undefined) throw new Error('no fork');
    return row.id;
  };
  const first = await fork(boxId, 3);
  return [first, await fork(first, 2)];
}

/** An open transaction of another process. */
async function open() {
  const client = await h.database.pool.connect();
  await client.query('begin');
  const { rows } = await client.query<{ pid: number }>('select pg_backend_pid() as pid');
  return { client, pid: rows[0]?.pid ?? 0 };
}
const waitsFor = (pid: number): Promise<unknown> =>
  waitFor(
    async () => {
      const rows = await h.rows('select pid from pg_stat_activity where $1 = any (pg_blocking_pids(pid))', [
        pid,
      ]);
      return rows.length > 0;
    },
    { message: 'the purge waits' },
  );

/** The purge of `before`, stopped at the rows of a run. `meanwhile` runs after the purge has decided which rows to remove. */
async function purgeHeldAt<T>(
  turnId: string,
  before: Date,
  meanwhile: () => Promise<T>,
): Promise<readonly [PurgeReport, T]> {
  const { client, pid } = await open();
  await client.query('select from boxcar.runs where id = $1 for update', [await runOf(turnId)]);
  const report = purge({ before });
  await waitsFor(pid);
  const done = await meanwhile();
  await client.query('commit');
  client.release();
  return [await report, done];
}
describe('a purge', () => {
  test('removes with an agent the tapes that it had before its resets, and their words', async () => {
    const before = await rowCounts(h.database.pool);
    const { agent_id: agent } = await play('child');
    const tape = await h.runtime.tape({ agent });
    expect(await tape.search('done')).toHaveLength(1);
    expect((await tape.info()).last_token_usage).toBeGreaterThan(0);
    await tape.reset({ archive: true });
    await tape.reset();
    await finish(await reuse(agent));
    expect((await purge()).removed).toMatchObject({ runs: 2, agents: 1 });
    expect(await rowCounts(h.database.pool)).toEqual(before);
  });

  test('leaves nothing of a run: there are as many rows as before the run', async () => {
    const before = await rowCounts(h.database.pool);
    await play();
    await play('child');
    expect(await rowCounts(h.database.pool)).not.toEqual(before);
    const report = await purge();
    expect(report).toMatchObject({ removed: { runs: 2, turns: 3, agents: 3 }, kept: [], isStopped: false });
    expect(await rowCounts(h.database.pool)).toEqual(before);
    expect(await h.rows('select * from boxcar.purging')).toEqual([]);
    // The system still works after the purge.
    await play();
  });

  test('removes the answers that name its agents, tapes, turns and boxes, and leaves other answers', async () => {
    const command = (agent: string, instruction: string) =>
      h.runtime.submit('delegate_async', { target_strategy: 'reuse', target_ref: agent, instruction });
    const keys = () => h.rows('select idempotency_key from boxcar.operations order by 1');
    const goes = await play('child');
    for (const text of [
      ',handoff name=phase',
      ',anchors',
      ',tape.search query=done',
      ',tape.reset archive=true',
    ])
      await command(goes.agent_id, text);
    // An operation of an agent, which is recognizable only by its key.
    await h.database.pool.query(
      `insert into boxcar.operations (project_id, idempotency_key, primitive, request_hash, response, made)
       select project_id, 'agent:' || id || ':mine', 'grant_box', '', '{"granted":true}', '{}' from boxcar.agents where id = $1`,
      [goes.agent_id],
    );
    expect(await keys()).toHaveLength(6);
    const before = await now();
    const gone = await keys();
    // An answer may contain any values under these names.
    await h.database.pool.query(
      `insert into boxcar.operations (project_id, idempotency_key, primitive, request_hash, response, made)
       select id, 'large', 'own', '', json_build_object('agent_id', (select string_agg(md5(n::text), '') from generate_series(1, 1000) n)), '{}' from boxcar.projects`,
    );
    const stays = await play('child');
    await command(stays.agent_id, ',anchors');
    await h.runtime.submit('create_box', { cards: [{ type: 'note', content: { kind: 'text', text: 'n' } }] });
    const all = await keys();
    expect((await purge({ before })).removed.runs).toBe(1);
    expect(await keys()).toEqual(all.filter((key) => !gone.some((other) => isDeepStrictEqual(other, key))));
    expect(await keys()).toHaveLength(4);
  });

  test('removes only work that ended before its time, and only in its project', async () => {
    const old = await play('child');
    const before = await now();
    const young = await play('child');
    const [project] = await h.rows<{ id: string }>('select gen_random_uuid() as id');
    expect((await purge({ before, projectId: project?.id as never })).removed.runs).toBe(0);
    expect((await purge({ before })).removed.runs).toBe(1);
    expect(await runOf(old.turn_id)).toBe('none');
    expect(await runOf(young.turn_id)).not.toBe('none');
  });

  test('as a dry run reports what would be removed, and changes nothing', async () => {
    await play();
    const before = await rowCounts(h.database.pool);
    expect(await purge({ isDryRun: true })).toMatchObject({ removed: { runs: 1, agents: 2 }, kept: [] });
    expect(await rowCounts(h.database.pool)).toEqual(before);
  });

  test('that is stopped has removed whole batches, and can be continued', async () => {
    for (let n = 0; n < 4; n++) await play('child');
    const stop = new AbortController();
    const report = await purge({ batchSize: 1, signal: stop.signal, onProgress: () => stop.abort() });
    expect(report).toMatchObject({ removed: { runs: 1 }, isStopped: true });
    await checkInvariants(h.database.pool);
    expect(await h.rows('select * from boxcar.purging')).toEqual([]);
    expect((await purge({ pageSize: 2 })).removed.runs).toBe(3);
  });

  test('removes the runs of one agent together, across pages', async () => {
    const old = await play('child');
    const other = await play('child');
    for (let n = 0; n < 3; n++) await finish(await reuse(old.agent_id));
    await finish(await reuse(other.agent_id));
    expect(await purge({ isDryRun: true, pageSize: 2 })).toMatchObject({
      removed: { runs: 6, agents: 2 },
      kept: [],
    });
    expect(await purge({ pageSize: 2 })).toMatchObject({ removed: { runs: 6, agents: 2 }, kept: [] });
  });

  test('runs at the same time as workers', async () => {
    for (let n = 0; n < 6; n++) await play('child');
    const before = await now();
    const work = Promise.all(Array.from({ length: 6 }, () => play()));
    expect((await purge({ before, batchSize: 1 })).removed.runs).toBe(6);
    await work;
  });
});

describe('a run stays, and the report gives the reason,', () => {
  test('while one of its turns has not ended', async () => {
    // No worker serves this pool.
    await h.profile('lonely', [{ say: 'done' }], { worker_target: 'nobody' });
    const waiting = await launch('lonely');
    const report = await purge();
    expect(report.kept).toEqual([
      { run_id: await runOf(waiting.turn_id), cause: 'unfinished', holder: null },
    ]);
    expect(report.removed.runs).toBe(0);
    await h.database.pool.query('update boxcar.profiles set worker_target = $1', ['']);
    await h.database.pool.query("update boxcar.turns set worker_target = '' where id = $1", [
      waiting.turn_id,
    ]);
    await finish(waiting);
  });

  test('while a younger run has packed from its boxes', async () => {
    const old = await play();
    const before = await now();
    const young = await play('child', { context_box_id: old.output_box_id });
    const report = await purge({ before });
    expect(report).toMatchObject({ removed: { runs: 0 } });
    expect(report.kept).toEqual([
      { run_id: await runOf(old.turn_id), cause: 'segment', holder: young.context_box_id },
    ]);
    // Both runs are removed together.
    expect((await purge({ batchSize: 1 })).removed.runs).toBe(2);
  });

  test('while an agent of another run may read it, until that grant ends', async () => {
    const old = await play('child');
    const before = await now();
    const reader = await play('child');
    await h.runtime.submit('grant_box', { box_id: old.output_box_id, grantee: reader.agent_id });
    expect((await purge({ before })).kept).toEqual([
      { run_id: await runOf(old.turn_id), cause: 'grant', holder: reader.agent_id },
    ]);
    await h.database.pool.query(
      'update boxcar.grants set expires_at = now() where agent_id = $1 and box_id = $2',
      [reader.agent_id, old.output_box_id],
    );
    expect((await purge({ before })).removed.runs).toBe(1);
    expect(await h.rows('select * from boxcar.grants where box_id = $1', [old.output_box_id])).toEqual([]);
  });

  test('while its agent works in a younger run; then both are removed together', async () => {
    const old = await play('child');
    const before = await now();
    const again = await finish(await reuse(old.agent_id));
    const report = await purge({ before });
    expect(report.kept).toEqual([
      { run_id: await runOf(old.turn_id), cause: 'agent', holder: await runOf(again.turn_id) },
    ]);
    expect((await purge({ batchSize: 1 })).removed).toMatchObject({ runs: 2, turns: 2, agents: 1 });
  });

  test('unless only ended forks refer to it, which are removed with their source, and a session with its agent', async () => {
    const before = await rowCounts(h.database.pool);
    const { agent_id: agent } = await play('child');
    const tape = await h.runtime.tape({ agent });
    const say = { kind: 'message', content: 'within' } as const;
    const merged = await tape.forkTape();
    const inner = await merged.tape.forkTape();
    await inner.tape.append([say]);
    await inner.merge();
    await merged.merge();
    const discarded = await tape.forkTape();
    await discarded.tape.append([say]);
    await discarded.tape.reset();
    await discarded.discard();
    const taking = await tape.forkTape();
    await taking.tape.reset();
    await taking.merge();
    const session = await (await h.runtime.tape({ agent })).forkSession('scout', {
      intention: { next_steps: 'look', context_summary: 'dark' },
    });
    await finish(await reuse(session.name));
    expect((await purge()).removed).toMatchObject({ runs: 2, agents: 2 });
    expect(await rowCounts(h.database.pool)).toEqual(before);
  });

  test('while the view of a forked session needs it; a removed parent that was reset and archived leaves that view byte-equal', async () => {
    await h.profile('resting', [{ say: 'never' }], { worker_target: 'nowhere' });
    const { agent_id: agent, turn_id: old } = await play('parent');
    const tape = await h.runtime.tape({ agent });
    const session = await tape.forkSession('reader', { profile: 'resting' });
    const turn = await reuse(session.name);
    const view = async (): Promise<string> => {
      const rows = (
        await loadViews(h.database.pool, [{ turnId: turn.turn_id, contextBoxId: turn.context_box_id }])
      ).get(turn.turn_id);
      if (rows === undefined) throw new Error('no view');
      const { messages } = buildView({
        ...toRows(rows),
        turn: { turnId: turn.turn_id, agentId: session.agentId, contextBoxId: turn.context_box_id },
        profile: { instructions: 'Rest.', tools: [], must_end_with: [] },
      });
      return JSON.stringify(messages);
    };
    const words = await view();
    expect(words).toContain('all done');
    await tape.reset({ archive: true });
    const report = await purge();
    expect(report.kept.map(({ run_id }) => run_id)).toContain(await runOf(old));
    expect(await view()).toBe(words);
    await h.runtime.submit('cancel', { turn_id: turn.turn_id });
    expect((await purge()).removed.runs).toBe(2);
  });

  test('while a fork reads its tape, even a reset and archived tape; the fork reads the same before and after', async () => {
    const old = await play('child');
    const before = await now();
    const young = await play('child');
    const [fork, grandchild] = await forksOf(old.output_box_id, young);
    const ofFork = await h.runtime.tape({ box: fork });
    const ofGrandchild = await h.runtime.tape({ box: grandchild });
    const read = async (): Promise<unknown> => [
      await ofFork.query().all(),
      await ofFork.messages(),
      await linesOf(ofFork),
      await ofGrandchild.query().all(),
    ];
    const words = await read();
    await (await h.runtime.tape({ agent: old.agent_id })).reset({ archive: true });
    const report = await purge({ before });
    expect(report).toMatchObject({ removed: { runs: 0 } });
    expect(report.kept).toMatchObject([{ run_id: await runOf(old.turn_id), cause: 'fork' }]);
    expect(await read()).toEqual(words);
    // Both runs are removed together.
    expect((await purge({ batchSize: 1 })).removed.runs).toBe(2);
    expect(await h.rows('select from boxcar.boxes where id = any ($1)', [[fork, grandchild]])).toEqual([]);
  });

  test('while a fork of its tape stays, and ended forks leave the tape unchanged', async () => {
    const old = await play('child');
    const tape = await h.runtime.tape({ agent: old.agent_id });
    const words = [await linesOf(tape), await tape.messages(), await tape.info()];
    const reset = await tape.forkTape({ mergeBack: false });
    await reset.tape.append([{ kind: 'message', content: 'within' }]);
    await reset.tape.reset({ archive: true });
    const gone = await tape.forkTape();
    await gone.tape.handoff('within');
    const session = await tape.forkSession('other', { profile: 'parent' });
    await session.tape.reset({ archive: true });
    for (const fork of [reset, gone]) await fork.discard();
    expect([await linesOf(tape), await tape.messages(), await tape.info()]).toEqual(words);
  });

  test('while one of its agents owns another agent', async () => {
    const old = await play('child');
    await h.runtime.submit('provision_agent', {
      action: 'derive',
      derived_from: old.agent_id,
      agent_id: 'heir',
    });
    expect(causes((await purge()).kept)).toEqual(['owner']);
  });

  test('while its agent has made the context of a run that stays', async () => {
    await h.profile('acting', [{ say: 'done' }], { delegation_policy: { target_profiles: null } });
    const old = await play('acting');
    await h.runtime.submit('provision_agent', {
      action: 'create',
      profile_name: 'child',
      agent_id: 'everybodys',
      shared: true,
    });
    const asked = (await h.runtime.submit(
      'delegate_async',
      { target_strategy: 'reuse', target_ref: 'everybodys', instruction: 'go' },
      { sourceAgentId: old.agent_id as AgentId },
    )) as unknown as Receipt;
    await finish(asked);
    const before = await now();
    const tape = await h.runtime.tape({ box: asked.output_box_id });
    await tape.append([{ kind: 'message', content: 'a note' }]);
    expect((await purge({ before })).kept).toEqual(
      expect.arrayContaining([
        { run_id: await runOf(asked.turn_id), cause: 'entry', holder: asked.output_box_id },
        { run_id: await runOf(old.turn_id), cause: 'maker', holder: asked.context_box_id },
      ]),
    );
    expect((await purge()).removed.runs).toBe(2);
  });

  test('while its agent has more runs than ten pages hold', async () => {
    const old = await play('child');
    for (let n = 0; n < 10; n++) await finish(await reuse(old.agent_id));
    const { removed, kept } = await purge({ pageSize: 1 });
    expect(removed.runs).toBe(0);
    expect(new Set(kept.map(({ run_id }) => run_id)).size).toBe(11);
    // Each run is kept because of its own agent, or because of an agent that is kept for that reason.
    const many = kept.filter(({ cause }) => cause === 'many_runs').map(({ run_id }) => run_id);
    for (const { cause, holder } of kept)
      if (cause !== 'many_runs') expect([cause, many.includes(holder ?? '')]).toEqual(['agent', true]);
    expect(many.length).toBeGreaterThan(0);
    expect((await purge({ pageSize: 2 })).removed).toMatchObject({ runs: 11, agents: 1 });
  });

  test('unless only a card of it is listed by another box: then only the card stays', async () => {
    const old = await play('child');
    const [card] = await h.rows<{ id: string }>(
      'select unnest(card_ids) as id from boxcar.boxes where id = $1',
      [old.context_box_id],
    );
    await h.runtime.submit('create_box', { card_ids: [card?.id] });
    expect((await purge()).removed.runs).toBe(1);
    expect(await h.rows('select id from boxcar.cards where id = $1', [card?.id])).toHaveLength(1);
  });
});

describe('a run stays while a tape that would be removed with it is younger than the cut:', () => {
  const say = { kind: 'message', content: 'a note' } as const;
  /** A finished run, and a moment after its last change. */
  async function settle(): Promise<{ readonly old: Receipt; readonly before: Date }> {
    return { old: await play('child'), before: await now() };
  }
  const tapeOf = (old: Receipt, as?: string): Promise<Tape> =>
    h.runtime.tape({ agent: old.agent_id }, as === undefined ? {} : { as });
  const changes: readonly (readonly [
    string,
    'entry' | 'reset' | 'open_fork',
    (old: Receipt) => Promise<unknown>,
  ])[] = [
    ['a note', 'entry', async (old) => (await tapeOf(old)).append([say])],
    ['an anchor', 'entry', async (old) => (await tapeOf(old)).handoff('phase')],
    ['a reset', 'reset', async (old) => (await tapeOf(old)).reset()],
    ['a reset that archives', 'reset', async (old) => (await tapeOf(old)).reset({ archive: true })],
    ['an open fork of its own', 'open_fork', async (old) => (await tapeOf(old, old.agent_id)).forkTape()],
    ['a merge', 'entry', async (old) => (await (await tapeOf(old)).forkTape()).merge()],
  ];

  test.each(changes)('a tape with %s', async (_what, cause, change) => {
    const { old, before } = await settle();
    const other = await play('child');
    await change(old);
    const report = await purge({ before });
    expect(report).toMatchObject({ removed: { runs: 0 } });
    expect(report.kept).toEqual([{ run_id: await runOf(old.turn_id), cause, holder: old.output_box_id }]);
    // A young run of another agent does not matter.
    expect(await runOf(other.turn_id)).not.toBe('none');
    expect((await purge()).removed.runs).toBe(2);
  });

  test('a tape with new entries that have an old date', async () => {
    const { old, before } = await settle();
    const [row] = await h.rows<{ project: ProjectId; operator: AgentId }>(
      'select id as project, operator_agent_id as operator from boxcar.projects limit 1',
    );
    if (row === undefined) throw new Error('no project');
    const card = buildCard(
      {
        type: 'note',
        role: 'user',
        content: { kind: 'text', text: 'old' },
        metadata: {},
        authorId: row.operator,
      },
      { id: newId<'card'>(), projectId: row.project },
    );
    const entry = { kind: 'message', card, payload: null, anchorName: null, authorId: row.operator } as const;
    const appended = await appendEntries(h.database.pool, {
      projectId: row.project,
      actorId: row.operator,
      boxId: old.output_box_id,
      dedupKey: 'import',
      entries: [{ ...entry, createdAt: '2020-01-01T00:00:00Z' }],
    });
    expect(appended).toMatchObject({ outcome: 'appended' });
    expect((await purge({ before })).kept).toEqual([
      { run_id: await runOf(old.turn_id), cause: 'entry', holder: old.output_box_id },
    ]);
  });

  test('a tape with a newly imported event that has an old date', async () => {
    const { old, before } = await settle();
    const lines = [
      '{"id":1,"kind":"event","payload":{"name":"x","data":{"note":"imported"}},"meta":{},"date":"2020-01-01T00:00:00Z"}',
    ];
    await h.runtime.importTape(
      { box: old.output_box_id },
      { main: { lines: () => lines } },
      { append: true },
    );
    expect((await purge({ before })).kept).toEqual([
      { run_id: await runOf(old.turn_id), cause: 'entry', holder: old.output_box_id },
    ]);
    expect((await purge()).removed.runs).toBe(1);
  });

  test('an open fork that its agent has made of another tape', async () => {
    const { old } = await settle();
    const shared = await h.runtime.tape('shared');
    for (const mode of ['read', 'append'])
      await h.runtime.submit('grant_box', { box_id: shared.boxId, grantee: old.agent_id, mode });
    const before = await now();
    const fork = await (await h.runtime.tape({ box: shared.boxId }, { as: old.agent_id })).forkTape();
    expect((await purge({ before })).kept).toEqual([
      { run_id: await runOf(old.turn_id), cause: 'open_fork', holder: fork.tape.boxId },
    ]);
  });

  test('a named tape of its agent to which another agent writes', async () => {
    const old = await play('child');
    const notes = await h.runtime.tape('notes', { as: old.agent_id });
    const before = await now();
    await (await h.runtime.tape('notes')).append([say]);
    expect((await purge({ before })).kept).toEqual([
      { run_id: await runOf(old.turn_id), cause: 'entry', holder: notes.boxId },
    ]);
    expect((await purge()).removed.runs).toBe(1);
  });

  test('a tape that gets an entry after the purge has decided', async () => {
    const { old, before } = await settle();
    const [report] = await purgeHeldAt(old.turn_id, before, async () => (await tapeOf(old)).append([say]));
    expect(report.kept).toEqual([
      { run_id: await runOf(old.turn_id), cause: 'entry', holder: old.output_box_id },
    ]);
  });

  test('a tape that is reset after the purge has decided', async () => {
    const { old, before } = await settle();
    const [report] = await purgeHeldAt(old.turn_id, before, async () => (await tapeOf(old)).reset());
    expect(report.kept).toEqual([
      { run_id: await runOf(old.turn_id), cause: 'reset', holder: old.output_box_id },
    ]);
  });
});

describe('the result card of a call that is on no tape', () => {
  let begin: () => void;
  beforeEach(async () => {
    h.runtime.registerTool({
      name: 'stay',
      description: 'Stays until it is aborted.',
      input: z.looseObject({}),
      isReadOnly: true,
      run: (_input, { signal }) =>
        new Promise<string>((resolve) => {
          signal.addEventListener('abort', () => resolve('late'));
          begin();
        }),
    });
    await h.profile('stayer', [{ calls: [{ tool: 'stay', arguments: {} }] }], { tools: ['stay'] });
  });

  /** A turn that was canceled during its call: the call has its result card, but the card is not on the tape. */
  async function playCanceled(): Promise<Receipt & { readonly card: CardId }> {
    const begun = new Promise<void>((resolve) => {
      begin = resolve;
    });
    const receipt = await launch('stayer');
    await begun;
    await h.runtime.submit('cancel', { turn_id: receipt.turn_id });
    await h.runtime.waitForTurn(receipt.turn_id);
    const [row] = await h.rows<{ id: CardId }>(
      'select k.result_card_id as id from boxcar.tool_calls k where k.turn_id = $1 and not exists (select from boxcar.tape_entries e where e.card_id = k.result_card_id)',
      [receipt.turn_id],
    );
    if (row === undefined) throw new Error('no such result');
    return { ...receipt, card: row.id };
  }

  test('is removed with its run, and stays when a box lists it', async () => {
    const before = await rowCounts(h.database.pool);
    await playCanceled();
    await purge();
    expect(await rowCounts(h.database.pool)).toEqual(before);
    const { card } = await playCanceled();
    await h.runtime.submit('create_box', { card_ids: [card] });
    expect((await purge()).removed.runs).toBe(1);
    expect(await h.rows('select from boxcar.cards where id = $1', [card])).toHaveLength(1);
  });

  test('holds its own run and the run of a box that lists it together', async () => {
    const { turn_id: turn, card } = await playCanceled();
    const before = await now();
    const other = await play('child');
    const [project] = await h.rows<{ id: string }>(
      'select project_id as id from boxcar.agents where id = $1',
      [other.agent_id],
    );
    // The agent of the other run made the box.
    await h.database.pool.query(
      `insert into boxcar.boxes (id, project_id, kind, maker_agent_id, owner_agent_id, card_ids, card_tokens, segments, card_count, token_estimate)
       values (gen_random_uuid(), $1, 'context', $2, $2, array[$3::uuid], '{1}', '[{"rule":"create_box","from":1,"to":1,"count":1,"tokens":1}]', 1, 1)`,
      [project?.id, other.agent_id, card],
    );
    expect((await purge({ before })).removed.runs).toBe(1);
    expect(await runOf(turn)).toBe('none');
    expect(await h.rows('select from boxcar.cards where id = $1', [card])).toHaveLength(1);
    expect((await purge()).removed).toMatchObject({ runs: 1 });
    expect(await h.rows('select from boxcar.cards where id = $1', [card])).toHaveLength(0);
  });

  test('is one of the cards of its tape that an erasure erases', async () => {
    const { card, output_box_id: tape } = await playCanceled();
    const [project] = await h.rows<{ id: ProjectId }>(
      'select project_id as id from boxcar.boxes where id = $1',
      [tape],
    );
    const cards = await findOwnCards(h.database.pool, tape, project?.id ?? ('' as ProjectId));
    expect(cards).toContain(card);
    expect(new Set(cards).size).toBe(cards.length);
  });
});

describe('while a purge runs', () => {
  test('a reference to a box that is being written is waited for, and is seen', async () => {
    const old = await play('child');
    const before = await now();
    const { client, pid } = await open();
    await client.query(
      `insert into boxcar.boxes (id, project_id, kind, card_ids, card_tokens, segments, card_count, token_estimate)
       select gen_random_uuid(), project_id, 'context', '{}', '{}', json_build_array(json_build_object('rule', 'inherit', 'source', id, 'from', 1, 'to', 1, 'count', 1, 'tokens', 0)), 1, 0
       from boxcar.boxes where id = $1`,
      [old.output_box_id],
    );
    const report = purge({ before });
    await waitsFor(pid);
    await client.query('commit');
    client.release();
    expect(causes((await report).kept)).toEqual(['segment']);
    expect(await runOf(old.turn_id)).not.toBe('none');
  });

  test('nothing new can refer to a box that is marked', async () => {
    const old = await play('child');
    await h.database.pool.query("insert into boxcar.purging values ($1, now() + interval '1 hour')", [
      old.output_box_id,
    ]);
    const refused = { code: 'not_found', message: expect.stringContaining(old.output_box_id) };
    await expect(launch('child', { context_box_id: old.output_box_id })).rejects.toMatchObject(refused);
    const other = await play('child');
    const grant = h.runtime.submit('grant_box', { box_id: old.output_box_id, grantee: other.agent_id });
    await expect(grant).rejects.toMatchObject(refused);
    // An expired mark of a killed purge has no effect.
    await h.database.pool.query('update boxcar.purging set until = now()');
    await play('child', { context_box_id: old.output_box_id });
  });

  test('nothing new can refer to a box that was removed together with its mark after it was read', async () => {
    const old = await play('child');
    const other = await play('child');
    const { client } = await open();
    // A tape is read before it is removed, and referred to afterwards.
    await client.query('select from boxcar.boxes where id = $1', [old.output_box_id]);
    const before = await now();
    await h.rows("update boxcar.turns set ended_at = 'infinity' where id = $1", [other.turn_id]);
    expect((await purge({ before })).removed.runs).toBe(1);
    const refused = { code: 'BX002', message: expect.stringContaining(old.output_box_id) };
    const refer = [
      `insert into boxcar.boxes (id, project_id, kind, card_ids, card_tokens, segments, card_count, token_estimate)
       select gen_random_uuid(), project_id, 'context', '{}', '{}', json_build_array(json_build_object('rule', 'inherit', 'source', '${old.output_box_id}', 'from', 1, 'to', 1, 'count', 1, 'tokens', 0)), 1, 0
       from boxcar.boxes where id = '${other.output_box_id}'`,
      `insert into boxcar.grants (project_id, agent_id, box_id, mode, source)
       select project_id, owner_agent_id, '${old.output_box_id}', 'read', owner_agent_id from boxcar.boxes where id = '${other.output_box_id}'`,
    ];
    for (const text of refer) {
      await client.query('savepoint s');
      await expect(client.query(text)).rejects.toMatchObject(refused);
      await client.query('rollback to savepoint s');
    }
    await client.query('rollback');
    client.release();
    await h.rows('update boxcar.turns set ended_at = now() where id = $1', [other.turn_id]);
  });

  test('a turn that is collected meanwhile keeps its run', async () => {
    const old = await play('child');
    const before = await now();
    const { client, pid } = await open();
    await client.query('select from boxcar.turns where id = $1 for update', [old.turn_id]);
    const report = purge({ before });
    await waitsFor(pid);
    // As collect writes it under that lock.
    await client.query(
      `insert into boxcar.batches (id, project_id, primitive, kind, turn_ids, remaining, succeeded, failed, fail_fast, status, is_due)
       select gen_random_uuid(), project_id, 'collect', 'collect', array[id], 0, 1, 0, false, 'running', true from boxcar.turns where id = $1`,
      [old.turn_id],
    );
    await client.query('commit');
    client.release();
    expect(causes((await report).kept)).toEqual(['in_use']);
  });

  test('a collect of a turn that is being removed is refused, and does not wait', async () => {
    const old = await play('child');
    const before = await now();
    const { client, pid } = await open();
    await client.query('select from boxcar.boxes where id = $1 for key share', [old.output_box_id]);
    const report = purge({ before });
    await waitsFor(pid);
    const [purger] = await h.rows<{ pid: number }>(
      'select pid from pg_stat_activity where $1 = any (pg_blocking_pids(pid))',
      [pid],
    );
    const collected = h.runtime.submit('collect', { turn_ids: [old.turn_id] });
    const refused = expect(collected).rejects.toMatchObject({
      code: 'not_found',
      message: expect.stringContaining('arguments.turn_ids.0'),
    });
    await waitsFor(purger?.pid ?? 0);
    await client.query('commit');
    client.release();
    expect((await report).removed.turns).toBe(1);
    await refused;
  });

  const cardOf = async (sql: string, id: string): Promise<string> => {
    const [row] = await h.rows<{ id: string }>(sql, [id]);
    return row?.id ?? 'none';
  };
  const contextCard = 'select card_ids[1] as id from boxcar.boxes where id = $1';
  const tapeCard =
    "select card_id as id from boxcar.tape_entries where box_id = $1 and kind = 'message' limit 1";
  const existingCard = 'select id from boxcar.cards where id = $1';

  test('a card that is listed in a box meanwhile stays, and a later turn reads it', async () => {
    const old = await play('child');
    const before = await now();
    const card = await cardOf(contextCard, old.context_box_id);
    const [report, made] = await purgeHeldAt(old.turn_id, before, () =>
      h.runtime.submit('create_box', { card_ids: [card] }),
    );
    expect(report.removed.runs).toBe(1);
    expect(await h.rows(existingCard, [card])).toHaveLength(1);
    await play('child', { context_box_id: (made as { box_id: string }).box_id });
  });

  test('a card of its tape that is listed in a box meanwhile keeps its run, and only its run', async () => {
    const [old, other] = [await play('child'), await play('child')];
    const before = await now();
    const card = await cardOf(tapeCard, old.output_box_id);
    const [report, made] = await purgeHeldAt(old.turn_id, before, () =>
      h.runtime.submit('create_box', { card_ids: [card] }),
    );
    expect(report.kept).toEqual([
      {
        run_id: await runOf(old.turn_id),
        cause: 'card',
        holder: (made as { box_id: string }).box_id,
      },
    ]);
    expect(await runOf(other.turn_id)).toBe('none');
  });

  test('a fork that is merged into a tape that stays keeps its run', async () => {
    const old = await play('child');
    const shared = await h.runtime.tape('shared');
    for (const mode of ['read', 'append'])
      await h.runtime.submit('grant_box', { box_id: shared.boxId, grantee: old.agent_id, mode });
    const theirs = await h.runtime.tape({ box: shared.boxId }, { as: old.agent_id });
    const fork = await theirs.forkTape();
    await fork.tape.append([{ kind: 'message', content: 'within' }]);
    const before = await now();
    const [report] = await purgeHeldAt(old.turn_id, before, () => fork.merge());
    expect(report.kept).toEqual([{ run_id: await runOf(old.turn_id), cause: 'card', holder: shared.boxId }]);
    expect(JSON.stringify(await shared.messages())).toContain('within');
  });

  test('a box that names a card to be removed waits, and is refused', async () => {
    const old = await play('child');
    const before = await now();
    const card = await cardOf(contextCard, old.context_box_id);
    const { client, pid } = await open();
    // The purge is stopped after its decision, when it removes the operations of the run.
    await client.query('select from boxcar.operations for update');
    const report = purge({ before });
    await waitsFor(pid);
    const [purger] = await h.rows<{ pid: number }>(
      'select pid from pg_stat_activity where $1 = any (pg_blocking_pids(pid))',
      [pid],
    );
    const made = h.runtime.submit('create_box', { card_ids: [card] });
    const refused = expect(made).rejects.toMatchObject({
      code: 'not_found',
      message: expect.stringContaining(card),
    });
    await waitsFor(purger?.pid ?? 0);
    await client.query('commit');
    client.release();
    expect((await report).removed.runs).toBe(1);
    await refused;
    expect(await h.rows('select from boxcar.boxes where card_ids @> array[$1::uuid]', [card])).toEqual([]);
  });

  describe('a run is kept by an object that its agent makes after the purge has decided:', () => {
    let old: Receipt;
    const asOld = () => ({ sourceAgentId: old.agent_id as AgentId });
    const makes: readonly (readonly [string, () => Promise<string>])[] = [
      [
        'a box',
        async () => {
          const cards = [{ type: 'note', content: { kind: 'text', text: 'late' } }];
          return ((await h.runtime.submit('create_box', { cards }, asOld())) as { box_id: string }).box_id;
        },
      ],
      [
        'an agent',
        async () => {
          const args = { profile_name: 'child', instruction: 'go' };
          return ((await h.runtime.submit('launch_principal', args, asOld())) as { agent_id: string })
            .agent_id;
        },
      ],
      ['a named tape', async () => (await h.runtime.tape('late', { as: old.agent_id })).boxId],
      [
        'a fork of a tape that stays',
        async () => {
          const shared = await h.runtime.tape(
            { box: (await h.runtime.tape('shared')).boxId },
            { as: old.agent_id },
          );
          return (await shared.forkTape()).tape.boxId;
        },
      ],
    ];

    beforeEach(async () => {
      await h.profile('acting', [{ say: 'done' }], { delegation_policy: { target_profiles: null } });
      old = await play('acting');
      const shared = await h.runtime.tape('shared');
      for (const mode of ['read', 'append'])
        await h.runtime.submit('grant_box', { box_id: shared.boxId, grantee: old.agent_id, mode });
    });

    test.each(makes)('%s', async (_what, make) => {
      const [report] = await purgeHeldAt(old.turn_id, await now(), make);
      const run = { run_id: await runOf(old.turn_id), cause: 'in_use', holder: expect.any(String) };
      expect(report).toMatchObject({ removed: { runs: 0 }, kept: [run] });
      // The holder is the new object, or an object that was made together with it.
      const [made] = await h.rows<{ made: boolean }>(
        `select exists (select from boxcar.boxes b where b.id = $1 and b.maker_agent_id = $2)
           or exists (select from boxcar.agents a where a.id = $1 and a.owner_agent_id = $2) as made`,
        [report.kept[0]?.holder, old.agent_id],
      );
      expect(made?.made).toBe(true);
    });

    test.each(makes)('%s waits, and is refused, when the agent was just removed', async (_what, make) => {
      await h.runtime.tape('shared');
      const before = await now();
      const { client, pid } = await open();
      // The purge is stopped after its check, when it removes the operations.
      await client.query('select from boxcar.operations for update');
      const report = purge({ before });
      await waitsFor(pid);
      const [purger] = await h.rows<{ pid: number }>(
        'select pid from pg_stat_activity where $1 = any (pg_blocking_pids(pid))',
        [pid],
      );
      const refused = expect(make()).rejects.toMatchObject({ code: 'not_found' });
      await waitsFor(purger?.pid ?? 0);
      await client.query('commit');
      client.release();
      expect((await report).removed.runs).toBe(1);
      await refused;
    });
  });

  test('an agent that gets a turn keeps its runs', async () => {
    const old = await play('child');
    const before = await now();
    const { client, pid } = await open();
    await client.query('select id from boxcar.agents where id = $1 for no key update', [old.agent_id]);
    const report = purge({ before });
    await waitsFor(pid);
    await client.query(
      `insert into boxcar.turns (id, project_id, run_id, agent_id, profile_id, depth, primitive, status, epoch, max_steps, context_box_id, output_box_id, worker_target)
       select $2, project_id, $2, agent_id, profile_id, 0, primitive, 'queued', 0, 1, context_box_id, output_box_id, 'nobody' from boxcar.turns where id = $1`,
      [old.turn_id, '00000000-0000-7000-8000-0000000000aa'],
    );
    await client.query('commit');
    client.release();
    expect(causes((await report).kept)).toEqual(['in_use']);
    await h.database.pool.query("delete from boxcar.turns where id = '00000000-0000-7000-8000-0000000000aa'");
  });
});
