/** Grants that builds of schema 15 write at ends of turns, before the migration and during a deploy. Rule: docs/explanation/security.md. */
import { readFileSync } from 'node:fs';
import { createModelRouter, type ScriptedFunction } from '@boxcar/llm';
import { waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { SubmitOptions } from '../core/submit-options.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';

const SECRET = 'xylophone';
const MIGRATION = readFileSync(
  new URL('../../../../migrations/0017_ends_give_no_rights.sql', import.meta.url),
  'utf8',
);

const actor: ScriptedFunction = ({ turn }) => ({ text: String(turn.instruction) });

/** The statement of a build of schema 15: a grant for agent $1, on tape $2, at the end of turn $3. */
const GRANT_OF_END = `
  insert into boxcar.grants (project_id, agent_id, box_id, mode, upto_position, source)
  select b.project_id, $1, b.id, 'read', b.head_position, 'turn:' || $3::uuid::text from boxcar.boxes b where b.id = $2
  on conflict (agent_id, box_id, mode) do update set
    upto_position = case when grants.expires_at <= now() then excluded.upto_position
      when grants.upto_position is null then null else greatest(grants.upto_position, excluded.upto_position) end,
    expires_at = case when grants.expires_at <= now() then null else grants.expires_at end,
    source = case when grants.expires_at <= now() then excluded.source else grants.source end`;

describe('builds of schema 15', () => {
  let h: Harness;
  let n = 0;
  beforeAll(async () => {
    h = await harness({ model: createModelRouter({ scripted: { functions: { actor } } }) });
    await h.runtime.applyProfile({
      name: 'worker',
      instructions: 'You work.',
      model: 'scripted:actor',
      tools: ['delegate_async', 'context_handoff', 'grant_box'],
      delegation_policy: { target_profiles: null },
    });
    await h.worker({ sweepMs: 600_000 });
  });
  afterAll(async () => {
    // Without these grants, the database is as every build leaves it.
    await h.rows("delete from boxcar.grants where source like 'turn:%'");
    await checkInvariants(h.database.pool);
    await h[Symbol.asyncDispose]();
  });

  const submit = (primitive: string, args: object, options: SubmitOptions = {}) =>
    h.runtime.submit(primitive, args, options) as Promise<Record<string, string>>;
  async function turn(agent: string, instruction: string) {
    const { turn_id: turnId = '' } = await submit('delegate_async', {
      target_strategy: 'reuse',
      target_ref: agent,
      instruction,
    });
    await h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });
    return turnId;
  }
  async function agent(more: object = {}) {
    // Without a name of its own, because cards of older builds have ids of agents.
    const {
      agent_id: id = '',
      name = '',
      output_box_id: box = '',
    } = await submit('provision_agent', {
      action: 'create',
      profile_name: 'worker',
      ...more,
    });
    return { name, id, box, tape: await h.runtime.tape({ agent: name }) };
  }
  const handOver = (to: string, box: string, entry: number, more: object = {}, options: SubmitOptions = {}) =>
    submit(
      'context_handoff',
      {
        target_ref: to,
        reason: 'r',
        summary: 's',
        tape_ref: `tape://default/${box}/entry/${entry}`,
        ...more,
      },
      options,
    );
  const endFor = (agentId: string, boxId: string, turnId: string) =>
    h.rows(GRANT_OF_END, [agentId, boxId, turnId]);
  const grantOf = async (agentId: string, boxId: string) =>
    (
      await h.rows<{ upto_position: number | null }>(
        "select upto_position from boxcar.grants where agent_id = $1 and box_id = $2 and mode = 'read'",
        [agentId, boxId],
      )
    ).map(({ upto_position }) => upto_position);
  const widen = (upto: number | null = 999) =>
    h.rows(
      "update boxcar.grants set upto_position = $1 where mode = 'read' and upto_position is not null and source not like 'turn:%'",
      [upto],
    );
  const migrate = () => h.database.pool.query(MIGRATION);

  async function told() {
    const lead = await agent();
    const session = await lead.tape.forkSession(`session-${++n}`, { triggerOnComplete: 'notify_parent' });
    const turnId = await turn(session.name, 'work');
    await waitFor(
      async () =>
        (await h.rows('select from boxcar.turns where id = $1 and not notifies', [turnId])).length > 0 ||
        undefined,
      { message: 'the end is told', deadlineMs: 60_000 },
    );
    const message = (await lead.tape.query().kinds('message').all()).find(({ payload }) =>
      String(payload.content).startsWith('[FORK RESULT]'),
    );
    const ref = /tape:\/\/[^\s\\"]+/.exec(JSON.stringify(message))?.[0] ?? '';
    const reads = () =>
      h.runtime.resolveTapeRef(ref, { as: lead.name }).then(
        () => true,
        (error) => error.code,
      );
    const [row] = await h.rows<{ output_box_id: string }>(
      'select output_box_id from boxcar.turns where id = $1',
      [turnId],
    );
    return { lead, box: row?.output_box_id ?? '', turnId, reads };
  }

  test('write a grant for their own readers at an end; newer readers do not use it, and other grants stay unchanged', async () => {
    const [target, reader, other] = [await agent(), await agent(), await agent()];
    await turn(target.name, 'hello');
    await handOver(reader.name, target.box, 3);
    const turnId = await turn(target.name, `keep ${SECRET}`);
    await endFor(reader.id, target.box, turnId);
    await endFor(other.id, target.box, turnId);
    expect(await grantOf(reader.id, target.box)).toEqual([3]);
    expect(await grantOf(other.id, target.box)).toEqual([expect.any(Number)]);
    const none = await h.runtime.tape({ agent: target.name }, { as: other.name });
    await expect(none.query().all()).rejects.toMatchObject({ code: 'box_not_authorized' });
    const theirs = await h.runtime.tape({ agent: target.name }, { as: reader.name });
    expect(JSON.stringify(await theirs.query().all())).not.toContain(SECRET);
  });

  test('do not prevent an agent from giving a grant', async () => {
    const [target, holder, reader] = [await agent(), await agent(), await agent()];
    const turnId = await turn(target.name, 'work');
    await handOver(holder.name, target.box, 3);
    await endFor(reader.id, target.box, turnId);
    await submit('grant_box', { box_id: target.box, grantee: reader.name }, { sourceAgentId: holder.name });
    const theirs = await h.runtime.tape({ agent: target.name }, { as: reader.name });
    expect((await theirs.query().all()).length).toBeGreaterThan(0);
  });

  test('have widened grants: the migration narrows these again, and removes no given grant', async () => {
    const target = await agent();
    const [shared, passed, moved, whole] = [
      await agent(),
      await agent(),
      await agent({ shared: true }),
      await agent(),
    ];
    await turn(target.name, 'hello');
    await handOver(shared.name, target.box, 3);
    await submit('grant_box', { box_id: target.box, grantee: passed.name }, { sourceAgentId: shared.name });
    await submit('grant_box', { box_id: target.box, grantee: whole.name });
    await submit('grant_box', { box_id: target.box, grantee: passed.name, mode: 'append' });
    await handOver(
      moved.name,
      target.box,
      2,
      { ownership: 'transfer' },
      {
        sourceAgentId: passed.name,
      },
    );
    await turn(target.name, `keep ${SECRET}`);
    const bounds = () => Promise.all([shared, passed, moved, whole].map(({ id }) => grantOf(id, target.box)));
    const given = await bounds();
    expect(given).toEqual([[3], [3], [3], [null]]);
    await widen();
    await migrate();
    expect(await bounds()).toEqual(given);
    const theirs = await h.runtime.tape({ agent: target.name }, { as: moved.name });
    expect(JSON.stringify(await theirs.query().all())).not.toContain(SECRET);
    // A grant that was narrowed after it was given stays narrow.
    await widen(1);
    await migrate();
    expect(await bounds()).toEqual([[1], [1], [1], [null]]);
  });

  test('may widen a grant during the migration: the grant is narrowed all the same', async () => {
    const [target, reader] = [await agent(), await agent()];
    await turn(target.name, 'hello');
    await handOver(reader.name, target.box, 3);
    const other = await h.database.pool.connect();
    try {
      await other.query('begin');
      await other.query('update boxcar.grants set upto_position = 4 where agent_id = $1 and box_id = $2', [
        reader.id,
        target.box,
      ]);
      const migrated = migrate();
      await waitFor(
        async () =>
          (
            await h.rows(
              "select from pg_locks where database = (select oid from pg_database where datname = current_database()) and relation = 'boxcar.grants'::regclass and not granted and mode = 'ShareRowExclusiveLock'",
            )
          ).length > 0 || undefined,
        { message: 'the migration waits for the writer', deadlineMs: 60_000 },
      );
      await other.query('commit');
      await migrated;
    } finally {
      other.release();
    }
    expect(await grantOf(reader.id, target.box)).toEqual([3]);
  });

  test('report the end of a session’s turn: the agent reads the report from before the migration and after it', async () => {
    const { lead, box, turnId, reads } = await told();
    const forget = 'update boxcar.turns set told_agent_id = null, notifies = $2 where id = $1';
    await h.rows(forget, [turnId, false]);
    expect(await reads()).toBe('box_not_authorized');
    await migrate();
    expect(await reads()).toBe(true);

    // As a build of that schema notifies: the grant is written first.
    await h.rows(forget, [turnId, true]);
    await endFor(lead.id, box, turnId);
    await h.rows('update boxcar.turns set notifies = false where id = $1', [turnId]);
    expect(await reads()).toBe(true);
  });

  test('have reported no end by an entry that another agent wrote', async () => {
    const { turnId, reads } = await told();
    const thief = await agent();
    await h.rows('update boxcar.turns set told_agent_id = null where id = $1', [turnId]);
    await h.rows(
      `insert into boxcar.tape_entries (box_id, position, kind, payload, author_id, dedup_key, meta)
        select b.id, b.head_position + 1, 'event', '{"name":"x"}', $2, 'fork-result:' || $3::text, json_build_object('fork_result', json_build_object('turn_id', $3::text)) from boxcar.boxes b where b.id = $1`,
      [thief.box, thief.id, turnId],
    );
    await h.rows('update boxcar.boxes set head_position = head_position + 1 where id = $1', [thief.box]);
    await migrate();
    expect(await h.rows('select told_agent_id from boxcar.turns where id = $1', [turnId])).not.toContainEqual(
      { told_agent_id: thief.id },
    );
    expect(await reads()).toBe(true);
  });
});
