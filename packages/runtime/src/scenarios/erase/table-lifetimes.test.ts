/**
 * Checks the lifetime of each table: one run writes to all tables whose rows belong to runs, and after its purge these tables are as
 * before. A table to which the run does not write fails here: extend the run so that it writes to the table, or add the table to
 * `OUTLIVES_RUNS`.
 */
import { type HandoffId, ModelError, type ProjectId, type TurnId } from '@boxcar/kernel';
import { PermissionEvaluator } from '@boxcar/policy';
import { keepEvidence, noteSweepFailure, purgeRuns, setProviderLimits, setPushConfig } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { z } from 'zod';
import { ApprovalGate } from '../../approval/approval-gate.js';
import { HandoffTool } from '../../handoff/index.js';
import { openHandoffSessions } from '../../handoff-session/index.js';
import { newId } from '../../lib/new-id.js';
import { type Harness, harness } from '../../testing/harness.js';
import { checkInvariants } from '../../testing/invariants.js';
import { OUTLIVES_RUNS, rowCounts } from '../../testing/row-counts.js';

let h: Harness;
let gate: ApprovalGate;

beforeAll(async () => {
  h = await harness({ handoffs: { webhooks: { secret: 'a secret', allowPrivate: ['127.0.0.1'] } } });
  h.runtime.registerTool({
    name: 'look',
    description: 'Looks.',
    input: z.looseObject({}),
    run: async () => 'seen',
    requiresApproval: true,
  });
  gate = new ApprovalGate({ runtime: h.runtime });
  let isFirst = true;
  h.runtime.registerModel('busy', {
    generate: async () => {
      if (isFirst) {
        isFirst = false;
        throw new ModelError('model_failed', 'busy', { canRetry: true });
      }
      return {
        text: 'done',
        toolCalls: [],
        usage: { inputTokens: 1, outputTokens: 1 },
        finishReason: 'stop',
      };
    },
  });
  await h.runtime.applyProfile({ name: 'child', instructions: 'You work.', model: 'busy:any' });
  await setProviderLimits(h.database.pool, 'busy', { maxConcurrent: 10 });
  await h.profile(
    'parent',
    [
      { calls: [{ tool: 'look', arguments: {} }] },
      {
        calls: [
          {
            tool: 'fork_join',
            arguments: { tasks: [{ target_strategy: 'new', target_ref: 'child', instruction: 'help' }] },
          },
        ],
      },
      { say: 'all done' },
    ],
    { tools: ['look', 'fork_join'], delegation_policy: { target_profiles: null } },
  );
  await h.worker({ sweepMs: 100 });
});
afterAll(() => h[Symbol.asyncDispose]());

const tablesOf = async (): Promise<string[]> => Object.keys(await rowCounts(h.database.pool)).sort();

/** Records each table that gets a row from now on. */
async function noteWrites(): Promise<void> {
  await h.database.pool.query(`
    create table public.written (name text primary key);
    create function public.note_write() returns trigger language plpgsql security definer as
      $$ begin insert into public.written values (tg_table_name) on conflict do nothing; return null; end $$;
    ${(await tablesOf()).map((table) => `create trigger note_write after insert on boxcar.${table} for each statement execute function public.note_write();`).join('\n')}`);
}

interface Receipt {
  readonly turn_id: TurnId;
  readonly agent_id: string;
}

async function finish(primitive: string, args: unknown): Promise<Receipt> {
  const receipt = (await h.runtime.submit(primitive, args)) as unknown as Receipt;
  if (primitive === 'launch_principal') {
    const ticket = await waitFor(async () => (await gate.list({ status: 'pending' })).approvals[0], {
      message: 'a ticket',
    });
    await gate.approve(ticket.ticket_id);
  }
  const ended = await h.runtime.waitForTurn(receipt.turn_id, { timeoutMs: 60_000 });
  expect(ended).toMatchObject({ status: 'success' });
  return receipt;
}

/** Handoffs: the first runs, the second waits and is joined by another, the third is never approved, the fourth is refused. */
async function handOff(): Promise<void> {
  const policy = new PermissionEvaluator({
    text: `rules:\n${[
      ['ALWAYS', 'child'],
      ['ALWAYS', 'asker'],
      ['REQUIRE_APPROVAL', 'echo'],
      ['NEVER', 'external-*'],
    ]
      .map(
        ([permission, target]) =>
          `  - condition: { tool_name: handoff, context: { target_agent: '${target}' } }\n    permission: ${permission}\n`,
      )
      .join('')}`,
  });
  const tool = new HandoffTool({ runtime: h.runtime, permissionEvaluator: policy });
  tool.registerAgent('asker', (_input, { ask }) => ask('Well?'), { retry: 'safe' });
  tool.registerAgent('echo', async (input, { write }) => {
    write('echo');
    // The first part has been written at this point.
    await new Promise((settle) => setImmediate(settle));
    return input;
  });
  const ask = (target_agent: string, run_id: string) => ({
    source_agent: 'x',
    target_agent,
    task: 'go',
    run_id,
  });
  await tool.handoff(ask('child', 'r'));
  const asking = await tool.handoff({ ...ask('asker', 'r'), wait: false });
  await waitFor(async () => (await tool.messages(asking.handoff_id)).length > 0, { message: 'a question' });
  await tool.reply(asking.handoff_id, 'Yes.');
  await tool.waitForHandoff(asking.handoff_id);
  const all = ['r1', 'r1', 'r2'].map((run_id) => tool.handoff(ask('echo', run_id)));
  const ended = Promise.allSettled(all);
  const ticketOf = (run_id: string) =>
    waitFor(
      async () => {
        const [ticket] = (await gate.list({ run_id, status: 'pending' })).approvals;
        return (await h.rows('select from boxcar.handoffs where run_id = $1', [run_id])).length ===
          (run_id === 'r1' ? 2 : 1)
          ? ticket
          : undefined;
      },
      { message: 'a ticket' },
    );
  await gate.approve((await ticketOf('r1')).ticket_id);
  await gate.deny((await ticketOf('r2')).ticket_id);
  expect((await ended).map(({ status }) => status)).toEqual(['fulfilled', 'fulfilled', 'rejected']);
  // No server listens at this address.
  const callback = { url: 'http://127.0.0.1:9/' };
  const push = { id: 'inbox', ...callback, token: null, scheme: null, credentials: null, version: '1.0' };
  await setPushConfig(h.database.pool, asking.handoff_id as HandoffId, push);
  await expect(tool.handoff({ ...ask('external-x', 'r'), callback })).rejects.toThrow(
    'not allowed by policy',
  );
  await tool.close();
}

/** A run that writes a row to each table, at least for a moment. */
async function playEverything(): Promise<void> {
  const { turn_id, agent_id } = await finish('launch_principal', {
    profile_name: 'parent',
    instruction: 'go',
    budget: { turns: 100 },
  });
  const [turn] = await h.rows<{ project_id: ProjectId }>(
    'select project_id from boxcar.turns where id = $1',
    [turn_id],
  );
  if (turn === undefined) throw new Error('no turn');
  const tape = await h.runtime.tape({ agent: agent_id });
  expect(await tape.search('done')).not.toEqual([]);
  const fork = await tape.forkTape();
  await fork.merge();
  const session = await tape.forkSession('scout', { profile: 'child' });
  await finish('delegate_async', {
    target_strategy: 'reuse',
    target_ref: session.name,
    instruction: 'again',
  });
  await keepEvidence(h.database.pool, [
    {
      id: newId(),
      projectId: turn.project_id,
      turnId: turn_id,
      kind: 'reply',
      step: 1,
      attempt: 9,
      epoch: 9,
      holderId: newId(),
      toolCallId: null,
      body: { text: 'late' },
      usage: { input_tokens: 1, output_tokens: 1 },
    },
  ]);
  await handOff();
  const client = await openHandoffSessions(h.runtime, { as: agent_id });
  await client.register({ session_key: 'ours' });
  await noteSweepFailure(h.database.pool, {
    kind: 'turn_ends',
    rowId: turn_id,
    projectId: turn.project_id,
    error: 'refused',
  });
}

test('a run writes to every table whose rows belong to runs; after its purge each table is as before', async () => {
  // The profile for turns of functions is created by the first such turn and stays, as all profiles do.
  const tool = new HandoffTool({ runtime: h.runtime });
  tool.registerAgent('first', () => 'done');
  await tool.handoff({ source_agent: 'x', target_agent: 'first', task: 'go' });
  await tool.close();
  await purgeRuns(h.database.pool, { before: new Date(Date.now() + 60_000) });
  const before = await rowCounts(h.database.pool);
  await noteWrites();
  await playEverything();
  const report = await purgeRuns(h.database.pool, { before: new Date(Date.now() + 60_000) });
  expect(report).toMatchObject({ removed: { runs: 5 }, kept: [] });
  const written = await h.rows<{ name: string }>('select name from public.written order by 1');
  expect(written.map(({ name }) => name)).toEqual(await tablesOf());
  expect(await rowCounts(h.database.pool)).toEqual(before);
  await checkInvariants(h.database.pool);
}, 60_000);

test('the tables that outlive runs exist', async () => {
  const rows = await h.rows<{ name: string }>(
    "select relname as name from pg_class where relnamespace = 'boxcar'::regnamespace and relkind in ('r', 'p')",
  );
  expect(rows.map(({ name }) => name)).toEqual(expect.arrayContaining(Object.keys(OUTLIVES_RUNS)));
});

/** Tables without a `project_id`, and the column that leads from their rows to a project. */
const WITHOUT_PROJECT: Readonly<Record<string, string>> = {
  handoff_events: 'handoff_id',
  handoff_messages: 'handoff_id',
  handoff_session_entries: 'session_id',
  // Belongs to the whole database: several projects may have the same policy.
  policies: '',
  projects: 'id',
  push_configs: 'handoff_id',
  provider_slots: 'turn_id',
  purging: 'box_id',
  tape_entries: 'box_id',
  tape_words: 'box_id',
  turn_parts: 'turn_id',
  // These tables belong to the whole database.
  providers: '',
  schema_version: '',
  sweeper: '',
  unsealed: '',
  workers: '',
};

test('each table has the project of its rows, or a reference that leads to it', async () => {
  const rows = await h.rows<{ name: string; columns: string[] }>(
    `select c.relname as name, array_agg(a.attname::text) as columns from pg_class c join pg_attribute a on a.attrelid = c.oid
     where c.relnamespace = 'boxcar'::regnamespace and c.relkind in ('r', 'p') and a.attnum > 0 and not a.attisdropped group by c.relname order by 1`,
  );
  const without = rows.filter(({ columns }) => !columns.includes('project_id'));
  expect(without.map(({ name }) => name)).toEqual(Object.keys(WITHOUT_PROJECT).sort());
  for (const { name, columns } of without)
    if (WITHOUT_PROJECT[name] !== '') expect(columns).toContain(WITHOUT_PROJECT[name]);
});
