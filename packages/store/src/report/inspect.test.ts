import { jsonText, submitResultSchema } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { createWorker, InProcessDoorbell, Runtime } from '@boxcar/runtime';
import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { createPool } from '../db/pool.js';
import { findLiveWorkers } from '../health/live-workers.js';
import { hasQueueTables } from '../rows/queue-tables.js';
import { inspectTurn } from './inspect.js';

let database: TestDatabase;
let runtime: Runtime;

beforeEach(async () => {
  database = await testDatabase();
  runtime = new Runtime({
    pool: database.pool,
    directUrl: database.url,
    doorbell: new InProcessDoorbell(),
    model: createModelRouter(),
  });
});

afterEach(async () => {
  await runtime.close();
  await database.close();
});

interface Receipt {
  turn_id: string;
  context_box_id: string;
}

const profile = (name: string, script: readonly object[], rest: object = {}) =>
  runtime.applyProfile({ name, instructions: `You are ${name}.`, model: 'scripted', script, ...rest });

const launch = async (args: object): Promise<Receipt> =>
  (await runtime.submit('launch_principal', {
    profile_name: 'principal',
    instruction: 'go',
    ...args,
  })) as unknown as Receipt;

/** Counts the statements of one look on a separate pool, because the runtime continues to use the other pool. */
async function countStatements(turnId: string): Promise<number> {
  const pool = createPool({ connectionString: database.url, max: 1 });
  let statements = 0;
  pool.on('connect', (client) => {
    const query = client.query.bind(client);
    client.query = ((...args: Parameters<typeof query>) => {
      statements++;
      return query(...args);
    }) as typeof client.query;
  });
  await inspectTurn(pool, turnId, { project: 'default' });
  await pool.end();
  return statements;
}

describe('a finished turn', () => {
  let receipt: Receipt;

  beforeEach(async () => {
    runtime.registerTool({
      name: 'echo',
      description: 'Says it again.',
      input: submitResultSchema,
      run: ({ result }) => {
        if (result === 'no') throw new Error('it will not');
        return { said: result };
      },
    });
    await profile('expert', [{ say: 'It is {{instruction}}.' }]);
    await profile(
      'principal',
      [
        {
          calls: [
            { tool: 'echo', arguments: { result: 'yes' } },
            { tool: 'echo', arguments: { result: 'no' } },
            { tool: 'ask_expert', arguments: { expert_profile: 'expert', question: 'so' } },
          ],
        },
        { say: 'Done.', usage: { inputTokens: 30, outputTokens: 2 } },
      ],
      { tools: ['echo', 'ask_expert'], delegation_policy: { target_profiles: null } },
    );
    const box = (await runtime.submit('create_box', {
      cards: [
        { type: 'note', content: { kind: 'text', text: 'a'.repeat(1000) } },
        { type: 'note', role: 'system', content: { kind: 'json', data: { deep: [1] } } },
      ],
    })) as unknown as { box_id: string };
    await using _worker = await createWorker(runtime);
    receipt = await launch({ context_box_id: box.box_id });
    await runtime.waitForTurn(receipt.turn_id, { timeoutMs: 60_000 });
  });

  it('is reported with its steps, calls, context, children, deliverable and run', async () => {
    const report = await inspectTurn(database.pool, receipt.turn_id, { project: 'default' });
    expect(report).toMatchObject({
      turn_id: receipt.turn_id,
      status: 'success',
      error: null,
      primitive: 'launch_principal',
      step_count: 2,
      profile: { name: 'principal', version: 1 },
      lineage: [{ turn_id: receipt.turn_id, depth: 0 }],
      deliverable: { content: { kind: 'text', text: 'Done.' } },
      child_count: 1,
      children: [{ profile: 'expert', status: 'success', primitive: 'ask_expert', depth: 1 }],
      run: { run_id: report.run_id, root_turn_id: receipt.turn_id, turns: 2, open_turns: 0, steps: 3 },
    });
    expect(report.steps).toMatchObject([
      { step: 1, attempt: 1, model: 'scripted', finish_reason: 'tool_calls' },
      { step: 2, attempt: 1, finish_reason: 'stop', usage: { input_tokens: 30, output_tokens: 2 } },
    ]);
    for (const step of report.steps) {
      expect(step.prompt_hash).toMatch(/^[0-9a-f]{64}$/);
      expect(step.committed_at).toBeInstanceOf(Date);
    }
    expect(report.calls).toMatchObject([
      { step: 1, ordinal: 1, name: 'echo', route: 'function', status: 'success', error: null },
      { ordinal: 2, name: 'echo', status: 'failed', error: { code: 'tool_failed' } },
      { ordinal: 3, name: 'ask_expert', route: 'primitive', status: 'success' },
    ]);
    expect(report.children[0]?.tool_call_id).toBe(report.calls[2]?.tool_call_id);
    expect(report.calls[0]?.duration_ms).toBeGreaterThanOrEqual(0);
    expect(report.calls[0]?.arguments_preview.replaceAll(' ', '')).toBe('{"result":"yes"}');
    const sum = report.run.usage;
    expect(sum.input_tokens).toBeGreaterThan(30);
    expect(sum.output_tokens).toBeGreaterThan(2);
  });

  it('has a context that names the rule, argument and source of every segment, and previews the cards in stored order', async () => {
    const { context } = await inspectTurn(database.pool, receipt.turn_id, { project: 'default' });
    expect(context.segments.map(({ rule, argument, count }) => ({ rule, argument, count }))).toEqual([
      { rule: 'pack_arguments', argument: 'instruction', count: 1 },
      { rule: 'inherit', argument: 'input_box_ids', count: 2 },
      { rule: 'parent', argument: undefined, count: 1 },
    ]);
    expect(context).toMatchObject({ box_id: receipt.context_box_id, card_count: 4 });
    expect(context.cards).toMatchObject([
      { type: 'task.instruction', role: 'user', preview: 'go', segment: 0 },
      { type: 'note', role: null, preview: 'a'.repeat(200), segment: 1 },
      { type: 'note', role: 'system', preview: '{"deep":[1]}', segment: 1 },
      { type: 'meta.parent_pointer', segment: 2 },
    ]);
    expect(context.cards.reduce((total, card) => total + card.tokens, 0)).toBe(context.tokens);
  });

  it('has a lineage that begins at the root', async () => {
    const { children } = await inspectTurn(database.pool, receipt.turn_id, { project: 'default' });
    const child = await inspectTurn(database.pool, children[0]?.turn_id ?? '', { project: 'default' });
    expect(child.lineage.map((line) => line.turn_id)).toEqual([receipt.turn_id, child.turn_id]);
    expect(child.lineage[1]?.tool_call_id).not.toBeNull();
    expect(child.run.turns).toBe(2);
  });

  it('previews a context made from a tape without events and skipped entries', async () => {
    const { output_box_id } = await inspectTurn(database.pool, receipt.turn_id, { project: 'default' });
    const heir = await launch({ context_box_id: output_box_id });
    const { context } = await inspectTurn(database.pool, heir.turn_id, { project: 'default' });
    const inherited = context.cards.filter((card) => context.segments[card.segment]?.rule === 'inherit');
    expect(inherited).toHaveLength(context.segments[1]?.count ?? -1);
    expect(inherited.map((card) => card.type)).toContain('tool.result');
    expect(inherited.at(-1)).toMatchObject({ type: 'task.deliverable', preview: 'Done.' });
    const twice = await launch({ context_box_id: [receipt.context_box_id, receipt.context_box_id] });
    const again = (await inspectTurn(database.pool, twice.turn_id, { project: 'default' })).context;
    expect(again.cards).toHaveLength(again.card_count);
  });

  it('keeps the key order that the author of a deliverable chose', async () => {
    await database.pool.query('alter table boxcar.cards disable trigger user');
    await database.pool.query(
      `update boxcar.cards c set content = $1 from boxcar.turns t where t.id = $2 and c.id = t.deliverable_card_id`,
      ['{"kind":"json","data":{"b":1,"10":2,"a":3}}', receipt.turn_id],
    );
    const { deliverable } = await inspectTurn(database.pool, receipt.turn_id, { project: 'default' });
    expect(jsonText(deliverable?.content ?? null)).toBe('{"kind":"json","data":{"b":1,"10":2,"a":3}}');
  });

  it('is reported by the same number of statements, however large it is', async () => {
    const small = await launch({});
    expect(await countStatements(receipt.turn_id)).toBe(16);
    expect(await countStatements(small.turn_id)).toBe(16);
  });
});

describe('a search for a turn', () => {
  let first: Receipt;

  beforeEach(async () => {
    await profile('principal', [{ say: 'x' }]);
    first = await launch({});
  });

  it('accepts the id with dashes, as 32 digits, in capitals, and as a prefix', async () => {
    const digits = first.turn_id.replaceAll('-', '');
    for (const ref of [first.turn_id, digits, digits.toUpperCase(), first.turn_id.slice(0, 20)]) {
      expect(await inspectTurn(database.pool, ref, { project: 'default' })).toMatchObject({
        turn_id: first.turn_id,
        status: 'queued',
        deliverable: null,
        steps: [],
        calls: [],
        children: [],
      });
    }
  });

  it('lists the candidates when a prefix matches several turns', async () => {
    const second = await launch({});
    // Ids of the same minute have the same beginning.
    await expect(
      inspectTurn(database.pool, first.turn_id.slice(0, 8), { project: 'default' }),
    ).rejects.toMatchObject({ code: 'bad_request', details: { turn_ids: [first.turn_id, second.turn_id] } });
  });

  it('recognizes the id of a run, and names the first turn of the run', async () => {
    const { rows } = await database.pool.query<{ id: string }>('select run_id as id from boxcar.turns');
    const runId = rows[0]?.id ?? '';
    // Ids that are made at the same moment have the same beginning.
    const other = `ffff${runId.slice(4)}`;
    await database.pool.query(
      'insert into boxcar.runs (id, project_id, root_turn_id) select $1, project_id, root_turn_id from boxcar.runs where id = $2',
      [other, runId],
    );
    for (const ref of [other, other.slice(0, 13)])
      await expect(inspectTurn(database.pool, ref, { project: 'default' })).rejects.toMatchObject({
        code: 'not_found',
        message: `'${ref}' is a run, and this needs a turn. Its first turn is ${first.turn_id}. Give the id of a turn; boxcar tree ${other} --ids lists those of the run.`,
        details: { turn_id: ref, run_id: other, root_turn_id: first.turn_id },
      });
    await database.pool.query('delete from boxcar.runs where id = $1', [other]);
  });

  it('refuses a text that is not an id, and finds nothing outside the project', async () => {
    const { pool } = database;
    for (const ref of ['0192', 'not-an-id', `${first.turn_id}0`, '']) {
      await expect(inspectTurn(pool, ref, { project: 'default' })).rejects.toMatchObject({
        code: 'bad_request',
      });
    }
    await expect(inspectTurn(pool, 'ffffffff', { project: 'default' })).rejects.toMatchObject({
      code: 'not_found',
    });
    await expect(inspectTurn(pool, first.turn_id, { project: 'nowhere' })).rejects.toThrow(
      /No project 'nowhere'/,
    );
    await pool.query(`insert into boxcar.projects (id, name, operator_agent_id, bootstrap_card_id)
      select gen_random_uuid(), 'other', operator_agent_id, bootstrap_card_id from boxcar.projects`);
    await expect(inspectTurn(pool, first.turn_id, { project: 'other' })).rejects.toMatchObject({
      code: 'not_found',
    });
  });

  it('an unmigrated database and an unreachable server are reported with codes of the catalogue', async () => {
    await using empty = await testDatabase({ empty: true });
    await expect(inspectTurn(empty.pool, first.turn_id, { project: 'default' })).rejects.toMatchObject({
      code: 'schema_outdated',
    });
    expect(await hasQueueTables(empty.pool)).toBe(false);
  });
});

it('only workers with a live lease are found, by host, process and target', async () => {
  await database.pool.query(`insert into boxcar.workers (id, lock_key, lease_until, targets, concurrency, info) values
    (gen_random_uuid(), 1, now() + interval '1 minute', '{"",gpu}', 3, '{"hostname":"a","pid":7}'),
    (gen_random_uuid(), 2, now() - interval '1 second', '{""}', 3, '{"hostname":"a","pid":8}'),
    (gen_random_uuid(), 3, now() + interval '1 minute', '{cpu}', 3, '{"hostname":"b","pid":7}')`);
  const find = async (where: Parameters<typeof findLiveWorkers>[1]) =>
    (await findLiveWorkers(database.pool, where)).map((worker) => `${worker.hostname}:${worker.pid}`).sort();
  expect(await find({})).toEqual(['a:7', 'b:7']);
  expect(await find({ hostname: 'a' })).toEqual(['a:7']);
  expect(await find({ hostname: 'a', pid: 8 })).toEqual([]);
  expect(await find({ target: '' })).toEqual(['a:7']);
  expect(await find({ target: 'cpu' })).toEqual(['b:7']);
});
