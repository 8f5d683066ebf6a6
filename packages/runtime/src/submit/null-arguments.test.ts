/** `null` for an optional argument of a primitive or tool means "not given". */
import { isJsonObject, type JsonObject, type JsonValue } from '@boxcar/kernel';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import type { TurnResult } from '../queue/turn-result.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { rowCounts } from '../testing/row-counts.js';
import { readInput } from './parse.js';

let h: Harness;
const inputs: unknown[] = [];

beforeAll(async () => {
  h = await harness();
  h.runtime.registerHandler('note', {
    description: 'Notes.',
    input: z.strictObject({
      title: z.string().optional(),
      size: z.number().default(7),
      cleared: z.string().nullable().optional(),
      any: z.json().optional(),
      parts: z.array(z.strictObject({ name: z.string(), of: z.string().optional() })).optional(),
      place: z
        .union([z.strictObject({ box: z.string().optional() }), z.strictObject({ tape: z.int() })])
        .optional(),
    }),
    handle: (input) => {
      inputs.push(input);
      return Promise.resolve({ noted: true });
    },
  });
  h.runtime.registerTool({
    name: 'look',
    description: 'Looks.',
    input: z.strictObject({ q: z.number(), deep: z.boolean().optional() }),
    run: (input) => ({ ...input }),
  });
  await h.profile('expert', [{ say: 'fine' }]);
  await h.worker();
});
afterAll(() => h[Symbol.asyncDispose]());

const task = { target_strategy: 'new', target_ref: 'expert', instruction: 'go' };
const FULL: Readonly<Record<string, JsonObject>> = {
  delegate_async: task,
  launch_principal: { profile_name: 'expert', instruction: 'go' },
  ask_expert: { expert_profile: 'expert', question: 'go' },
  fork_join: { tasks: [task] },
  collect: { batch_id: 'b' },
  provision_agent: { action: 'create', profile_name: 'expert' },
  cancel: { turn_id: 't' },
  raise_budget: { target: 't', budget: { turns: 1 } },
  context_handoff: { target_ref: 'expert', reason: 'r', summary: 's' },
  handoff: { target_agent: 'expert', task: 'go' },
  handoff_chain: { source_agent: 's', hops: [{ target_agent: 'expert', task: 'go' }] },
  handoff_hop: {},
  submit_result: { result: null },
  create_box: { card_ids: ['c'] },
  'tape.handoff': {},
  grant_box: { box_id: 'b', grantee: 'g' },
};

describe('null for an optional argument', () => {
  test('is the same as no argument, in every primitive and for every argument', () => {
    const own = [...h.runtime.handlers].filter(([name]) => name !== 'note');
    expect(own.map(([name]) => name).sort()).toEqual(Object.keys(FULL).sort());
    for (const [name, handler] of own) {
      const given = FULL[name] ?? {};
      const plain = readInput(handler, given, undefined);
      expect(handler.input).toBeInstanceOf(z.ZodObject);
      const keys = handler.input instanceof z.ZodObject ? Object.keys(handler.input.shape) : [];
      const nulls = Object.fromEntries(
        keys.filter((key) => !Object.hasOwn(given, key)).map((key) => [key, null]),
      );
      expect(readInput(handler, { ...nulls, ...given }, undefined), name).toEqual(plain);
    }
  });

  test('is the same in a task of a fork_join, and in nested objects', () => {
    const handler = h.runtime.handlers.get('fork_join');
    if (handler === undefined) throw new Error('there is no fork_join');
    const fields = [{ name: 'a' }];
    const nulls = { context_box_id: null, history: null, budget: null, budget_tokens: null, priority: null };
    const tasks = [{ ...task, ...nulls, result_fields: [{ name: 'a', description: null, type: null }] }];
    expect(readInput(handler, { tasks, min_success: null }, undefined)).toEqual(
      readInput(handler, { tasks: [{ ...task, result_fields: fields }] }, undefined),
    );
  });

  test('stays in one alternative of a union when this alternative accepts null', () => {
    const set = z.strictObject({ kind: z.literal('set'), due: z.string(), note: z.string().optional() });
    const clear = z.strictObject({
      kind: z.literal('clear'),
      due: z.null(),
      note: z.string().optional(),
    });
    const handler = { input: z.strictObject({ change: z.union([set, clear]) }) };
    expect(readInput(handler, { change: { kind: 'clear', due: null, note: null } }, undefined)).toEqual({
      change: { kind: 'clear', due: null },
    });
    expect(readInput(handler, { change: { kind: 'set', due: 'now', note: null } }, undefined)).toEqual({
      change: { kind: 'set', due: 'now' },
    });
  });

  test('makes the same request: with one key it is a repetition', async () => {
    const args = { profile_name: 'expert', instruction: 'go' };
    const options = { idempotencyKey: 'once' };
    const nulls = { context_box_id: null, result_fields: null, wait: null, deadline_seconds: null };
    const first = await h.runtime.submit('launch_principal', { ...args, ...nulls }, options);
    expect(await h.runtime.submit('launch_principal', args, options)).toEqual(first);
    const { turns, operations } = await rowCounts(h.database.pool);
    expect({ turns, operations }).toEqual({ turns: 1, operations: 1 });
  });

  test('does not replace a required argument', async () => {
    const refused = h.runtime.submit('launch_principal', { profile_name: 'expert', instruction: null });
    await expect(refused).rejects.toMatchObject({
      code: 'bad_request',
      message: expect.stringContaining('arguments.instruction'),
    });
    const list = h.runtime.submit('launch_principal', {
      profile_name: 'expert',
      instruction: 'go',
      context_box_id: [null],
    });
    await expect(list).rejects.toMatchObject({ code: 'bad_request' });
  });

  test('of a custom primitive stays null only where its schema accepts null', async () => {
    const parts = [
      { name: 'a', of: null },
      { name: 'b', of: 'c' },
    ];
    await h.runtime.submit('note', {
      title: null,
      size: null,
      cleared: null,
      any: null,
      parts,
      place: { box: null },
    });
    expect(inputs).toEqual([
      { size: 7, cleared: null, any: null, parts: [{ name: 'a' }, { name: 'b', of: 'c' }], place: {} },
    ]);
  });

  test('from a model counts as not given, in primitives and tools', async () => {
    const ask = {
      expert_profile: 'expert',
      question: 'q',
      context_box_id: null,
      include_history: null,
      wait: null,
    };
    const calls = [
      { tool: 'ask_expert', arguments: ask },
      { tool: 'look', arguments: { q: 1, deep: null } },
    ];
    await h.profile('boss', [{ calls }, { say: 'done' }], {
      tools: ['ask_expert', 'look'],
      delegation_policy: { target_profiles: null },
    });
    const { turn_id } = (await h.runtime.submit('launch_principal', {
      profile_name: 'boss',
      instruction: 'go',
    })) as unknown as TurnResult;
    await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
    const rows = await h.rows<{ content: JsonValue }>(
      `select c.content from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id where k.turn_id = $1 order by k.ordinal`,
      [turn_id],
    );
    expect(rows.map(({ content }) => (isJsonObject(content) ? content.result : undefined))).toMatchObject([
      { status: 'success', result: 'fine' },
      { q: 1 },
    ]);
    await checkInvariants(h.database.pool);
  });
});
