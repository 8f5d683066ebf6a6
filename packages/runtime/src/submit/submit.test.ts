import { type AgentId, type BoxId, type JsonValue, KernelError, type TurnId } from '@boxcar/kernel';
import { type AgentRow, registerWorker } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import { beforeEach, describe, expect, test } from 'vitest';
import { z } from 'zod';
import type { Handler, HandlerTools } from '../handler/handler.js';
import { newId } from '../lib/new-id.js';
import { statementsOf } from '../testing/count-statements.js';
import { type Harness, harness } from '../testing/harness.js';
import { rowCounts } from '../testing/row-counts.js';

let h: Harness;

beforeEach(async () => {
  h = await harness();
  await h.profile('expert', [{ say: 'x' }]);
  return () => h[Symbol.asyncDispose]();
});

interface Receipt {
  readonly turn_id: TurnId;
  readonly agent_id: AgentId;
  readonly context_box_id: BoxId;
  readonly output_box_id: BoxId;
}
const launch = { profile_name: 'expert', instruction: 'go' };
const submit = (primitive: string, args: unknown, options = {}): Promise<JsonValue> =>
  h.runtime.submit(primitive, args, options);
const receiptOf = async (options = {}): Promise<Receipt> =>
  (await submit('launch_principal', launch, options)) as unknown as Receipt;
const counts = () => rowCounts(h.database.pool);

async function refusal(work: Promise<unknown>): Promise<KernelError> {
  const thrown: unknown = await work.then(
    () => undefined,
    (error: unknown) => error,
  );
  expect(thrown).toBeInstanceOf(KernelError);
  return thrown as KernelError;
}

/** Registers a primitive without arguments. Returns a function that submits it. */
function primitive(handle: (tools: HandlerTools) => Promise<JsonValue>): () => Promise<JsonValue> {
  const name = `custom-${newId().slice(-12)}`;
  h.runtime.registerHandler(name, {
    description: 'A test.',
    input: z.strictObject({}),
    handle: (_input, tools) => handle(tools),
  });
  return () => submit(name, {});
}

describe('a key', () => {
  test('makes the second submission change nothing and return the first answer', async () => {
    const first = await receiptOf({ idempotencyKey: 'key' });
    const before = await counts();
    expect(await receiptOf({ idempotencyKey: 'key' })).toEqual(first);
    expect(
      await h.runtime.accept(
        'launch_principal',
        { instruction: 'go', profile_name: 'expert' },
        { idempotencyKey: 'key' },
      ),
    ).toMatchObject({
      isReplay: true,
      answer: first,
    });
    expect(await counts()).toEqual(before);
  });

  test('used by many at once makes one turn, and every caller gets its receipt', async () => {
    const before = await counts();
    const receipts = await Promise.all(
      Array.from({ length: 20 }, () => receiptOf({ idempotencyKey: 'key' })),
    );
    expect(new Set(receipts.map(({ turn_id }) => turn_id)).size).toBe(1);
    const after = await counts();
    expect(after).toMatchObject({ turns: 1, operations: 1, agents: before.agents + 1, runs: 1 });
    expect(after.cards).toBe(before.cards + 2);
  });

  test('used by many at once for an existing agent makes one turn', async () => {
    const { agent_id } = await receiptOf();
    const again = () =>
      submit(
        'delegate_async',
        { target_strategy: 'reuse', target_ref: agent_id, instruction: 'again' },
        { idempotencyKey: 'key' },
      );
    const answers = await Promise.all(Array.from({ length: 10 }, again));
    expect(new Set(answers.map((answer) => JSON.stringify(answer))).size).toBe(1);
    expect(await counts()).toMatchObject({ turns: 2, operations: 2 });
  });

  test('with other arguments or another primitive is a conflict, and from another caller it is another key', async () => {
    const first = await receiptOf({ idempotencyKey: 'key' });
    const before = await counts();
    for (const [name, args] of [
      ['launch_principal', { ...launch, instruction: 'other' }],
      ['ask_expert', { expert_profile: 'expert', question: 'go' }],
    ] as const) {
      expect(await refusal(submit(name, args, { idempotencyKey: 'key' }))).toMatchObject({
        code: 'idempotency_conflict',
        details: { idempotency_key: 'key' },
      });
    }
    expect(await counts()).toEqual(before);
    // The policy is the cause of the refusal, not the key.
    const foreign = submit('launch_principal', launch, {
      sourceAgentId: first.agent_id,
      idempotencyKey: 'key',
    });
    expect(await refusal(foreign)).toMatchObject({ code: 'delegation_denied' });
  });

  test('of a refused submission can be used again', async () => {
    const wrong = submit(
      'launch_principal',
      { ...launch, profile_name: 'nobody' },
      { idempotencyKey: 'key' },
    );
    expect(await refusal(wrong)).toMatchObject({ code: 'not_found' });
    expect(await receiptOf({ idempotencyKey: 'key' })).toMatchObject({ turn_id: expect.any(String) });
  });

  test('also gives the answer when the calling turn has ended meanwhile', async () => {
    const parent = await receiptOf();
    const child = await receiptOf({ parentTurnId: parent.turn_id, idempotencyKey: 'key' });
    await h.worker();
    await h.runtime.waitForTurn(parent.turn_id, { timeoutMs: 60_000 });
    expect(await receiptOf({ parentTurnId: parent.turn_id, idempotencyKey: 'key' })).toEqual(child);
    expect(await refusal(receiptOf({ parentTurnId: parent.turn_id }))).toMatchObject({
      code: 'turn_ended',
      message: expect.stringContaining(`Turn ${parent.turn_id} has ended as success.`),
      details: { turn_id: parent.turn_id },
    });
  });

  test.each(['', ' ', 'x'.repeat(501), 'NUL \u0000'])(
    'that is not valid is refused',
    async (idempotencyKey) => {
      expect(await refusal(receiptOf({ idempotencyKey }))).toMatchObject({ code: 'bad_request' });
    },
  );
});

describe('for a handler’s reference to a missing object,', () => {
  const make = (change: (agent: AgentRow) => AgentRow): (() => Promise<JsonValue>) =>
    primitive(async ({ packer, ctx, findAgent, submitTurn }) => {
      const agent = await findAgent('known');
      const contextBoxId = await packer.createBox({
        projectId: ctx.projectId,
        sourceAgentId: ctx.source.agentId,
        cards: [{ type: 'note', content: { kind: 'text', text: 'go' } }],
      });
      return { ...(await submitTurn({ target: { kind: 'reuse', agent: change(agent) }, contextBoxId })) };
    });

  test.each<[string, (agent: AgentRow) => AgentRow]>([
    ['an agent', (agent) => ({ ...agent, agentId: newId<'agent'>() })],
    ['the tape of an agent', (agent) => ({ ...agent, tapeBoxId: newId<'box'>() })],
    ['a profile', (agent) => ({ ...agent, profile: { ...agent.profile, profileId: newId<'profile'>() } })],
  ])('%s is refused, and makes no turn', async (_what, change) => {
    await submit('provision_agent', { action: 'ensure', agent_id: 'known', profile_name: 'expert' });
    const before = await counts();
    expect(await refusal(make(change)())).toMatchObject({ code: 'not_found' });
    expect(await counts()).toEqual(before);
    expect(await make((agent) => agent)()).toMatchObject({ turnId: expect.any(String) });
  });
});

describe('bad input leaves nothing and is refused with the reason:', () => {
  const cases: [string, string, unknown, string, string?][] = [
    ['unknown primitive', 'nothing', {}, 'unknown_primitive'],
    ['input that is not an object', 'launch_principal', 'x', 'bad_request', 'arguments'],
    ['null', 'launch_principal', null, 'bad_request', 'arguments'],
    ['missing key', 'launch_principal', { profile_name: 'expert' }, 'bad_request', 'arguments.instruction'],
    ['unknown key', 'launch_principal', { ...launch, typo: 1 }, 'bad_request', 'typo'],
    ['wrong type', 'launch_principal', { ...launch, wait: 'yes' }, 'bad_request', 'arguments.wait'],
    ['blank instruction', 'launch_principal', { ...launch, instruction: ' ' }, 'bad_request', 'instruction'],
    [
      'NUL',
      'launch_principal',
      { ...launch, instruction: 'a\u0000' },
      'bad_request',
      'arguments.instruction',
    ],
    ['lone surrogate', 'launch_principal', { ...launch, instruction: '\ud800' }, 'bad_request', 'surrogate'],
    [
      'deadline of zero',
      'launch_principal',
      { ...launch, deadline_seconds: 0 },
      'bad_request',
      'deadline_seconds',
    ],
    [
      'deadline too far',
      'launch_principal',
      { ...launch, deadline_seconds: 1e9 },
      'bad_request',
      'deadline_seconds',
    ],
    ['unknown profile', 'launch_principal', { ...launch, profile_name: 'nobody' }, 'not_found', 'nobody'],
    ['unknown box', 'launch_principal', { ...launch, context_box_id: newId() }, 'not_found', 'box'],
    [
      'a box id that is not valid',
      'launch_principal',
      { ...launch, context_box_id: 'x' },
      'not_found',
      'box',
    ],
    [
      'a box of a wrong type',
      'launch_principal',
      { ...launch, context_box_id: 7 },
      'bad_request',
      'context_box_id',
    ],
    [
      'result fields that are not a list',
      'launch_principal',
      { ...launch, result_fields: {} },
      'bad_request',
      'result_fields',
    ],
    [
      'two result fields with one name',
      'launch_principal',
      { ...launch, result_fields: [{ name: 'a' }, { name: 'a' }] },
      'bad_request',
      'result_fields',
    ],
    [
      'too large input',
      'launch_principal',
      { ...launch, instruction: 'x'.repeat(300_000) },
      'payload_too_large',
    ],
    [
      'unknown agent',
      'delegate_async',
      { target_strategy: 'reuse', target_ref: newId(), instruction: 'x' },
      'not_found',
      'agent',
    ],
    [
      'the operator as an agent that works',
      'delegate_async',
      { target_strategy: 'reuse', target_ref: 'operator', instruction: 'x' },
      'not_found',
    ],
    [
      'unknown strategy',
      'delegate_async',
      { target_strategy: 'fork', target_ref: 'x', instruction: 'x' },
      'bad_request',
      'target_strategy',
    ],
    [
      'history of a new agent',
      'delegate_async',
      { target_strategy: 'new', target_ref: 'expert', instruction: 'x', history: 'full' },
      'bad_request',
      'history',
    ],
    ['a result from outside', 'submit_result', { result: 1 }, 'bad_request', 'submit_result'],
    ['no result', 'submit_result', {}, 'bad_request', 'result'],
    ['an empty box', 'create_box', {}, 'bad_request', 'cards'],
    [
      'a wrong card',
      'create_box',
      { cards: [{ type: 't', content: { kind: 'x' } }] },
      'bad_request',
      'cards.0',
    ],
    ['an unknown card', 'create_box', { card_ids: [newId()] }, 'not_found', 'card'],
    ['a grant for nothing', 'grant_box', { box_id: newId(), grantee: 'operator' }, 'not_found', 'box'],
    [
      'a grant without a valid end',
      'grant_box',
      { box_id: newId(), grantee: 'x', until: 'never' },
      'bad_request',
      'until',
    ],
    [
      'history without a calling turn',
      'ask_expert',
      { expert_profile: 'expert', question: 'x', include_history: true },
      'bad_request',
      'include_history',
    ],
  ];
  test.each(cases)('%s', async (_name, name, args, code, words = '') => {
    const before = await counts();
    const error = await refusal(submit(name, args));
    expect(error.code).toBe(code);
    expect(error.message).toContain(words);
    expect(await counts()).toEqual(before);
  });

  test.each([
    ['an unknown project', { projectId: 'nowhere' }, 'not_found'],
    ['an unknown project id', { projectId: newId() }, 'not_found'],
    ['an unknown caller', { sourceAgentId: 'nobody' }, 'not_found'],
    ['an unknown caller id', { sourceAgentId: newId() }, 'not_found'],
    ['an unknown calling turn', { parentTurnId: newId() }, 'not_found'],
    ['a calling turn with an invalid id', { parentTurnId: 'x' }, 'bad_request'],
    ['a channel with NUL', { channelId: 'a\u0000' }, 'bad_request'],
    ['a blank project', { projectId: ' ' }, 'bad_request'],
  ])('%s', async (_name, options, code) => {
    const before = await counts();
    expect(await refusal(receiptOf(options))).toMatchObject({ code });
    expect(await counts()).toEqual(before);
  });

  test('a turn of another agent cannot be the calling turn, unless the operator files the submission there', async () => {
    const [mine, other] = [await receiptOf(), await receiptOf()];
    const before = await counts();
    expect(
      await refusal(receiptOf({ parentTurnId: mine.turn_id, sourceAgentId: other.agent_id })),
    ).toMatchObject({
      code: 'bad_request',
      details: { parent_turn_id: mine.turn_id, source_agent_id: other.agent_id },
    });
    expect(await counts()).toEqual(before);
    expect(await receiptOf({ parentTurnId: mine.turn_id })).toMatchObject({ turn_id: expect.any(String) });
  });

  test('objects of another project do not exist', async () => {
    const mine = await receiptOf();
    const box = (await submit('create_box', {
      cards: [{ type: 't', content: { kind: 'text', text: 'x' } }],
    })) as { box_id: string };
    const operator = newId<'agent'>();
    await h.rows(
      `insert into boxcar.projects (id, name, operator_agent_id, bootstrap_card_id)
       select '${newId()}', 'other', '${operator}', bootstrap_card_id from boxcar.projects`,
    );
    await h.rows(
      `insert into boxcar.agents (id, project_id, name) select '${operator}', id, 'operator' from boxcar.projects where name = 'other'`,
    );
    const there = { projectId: 'other' };
    await h.runtime.applyProfile(
      { name: 'theirs', instructions: '', model: 'scripted', script: [{ say: 'x' }] },
      there,
    );
    const before = await counts();
    const target = { profile_name: 'theirs', instruction: 'x' };
    const reach = (target_strategy: string) => ({
      target_strategy,
      target_ref: mine.agent_id,
      instruction: 'x',
    });
    for (const [name, args, options] of [
      ['launch_principal', launch, {}],
      ['launch_principal', { ...target, context_box_id: box.box_id }, {}],
      ['launch_principal', { ...target, context_box_id: mine.output_box_id }, {}],
      ['launch_principal', target, { sourceAgentId: mine.agent_id }],
      ['launch_principal', target, { parentTurnId: mine.turn_id }],
      ['delegate_async', reach('reuse'), {}],
      ['delegate_async', reach('clone'), {}],
      ['grant_box', { box_id: box.box_id, grantee: 'operator' }, {}],
    ] as const)
      expect(await refusal(submit(name, args, { ...there, ...options }))).toMatchObject({
        code: 'not_found',
      });
    expect(await counts()).toEqual(before);
  });
});

describe('a custom primitive', () => {
  test('reads its packed context, writes on tx, and makes turns: all of it commits with its answer', async () => {
    await h.rows('create table notes (words text)');
    const run = primitive(async ({ packer, tx, ctx, findProfile, submitTurn }) => {
      const boxId = await packer.createBox({
        projectId: ctx.projectId,
        sourceAgentId: ctx.source.agentId,
        cards: [{ type: 't', content: { kind: 'text', text: 'x' } }],
      });
      const packed = await packer.packContext({
        projectId: ctx.projectId,
        sourceAgentId: ctx.source.agentId,
        toolSuffix: ctx.primitive,
        arguments: { instruction: 'hello', boxes: boxId },
        handover: {
          target_profile_config: { profile_name: 'expert' },
          context_packing_config: {
            pack_arguments: [{ arg_key: 'instruction' }],
            inherit_context: { include_boxes_from_args: ['boxes'] },
          },
        },
      });
      const { rows } = await tx.query<{ n: number }>({
        text: 'select card_count as n from boxcar.boxes where id = $1',
        values: [packed.contextBoxId],
      });
      await tx.query({ text: "insert into notes values ('made')" });
      const turn = await submitTurn({
        target: { kind: 'new', profile: await findProfile('expert') },
        contextBoxId: packed.contextBoxId,
      });
      return { n: rows[0]?.n ?? 0, turn_id: turn.turnId, agent_id: turn.agentId, box: packed.contextBoxId };
    });
    const answer = (await run()) as { n: number; turn_id: string; agent_id: string; box: string };
    expect(answer.n).toBe(2);
    expect(await h.rows('select * from notes')).toEqual([{ words: 'made' }]);
    await h.worker();
    expect(await h.runtime.waitForTurn(answer.turn_id, { timeoutMs: 60_000 })).toMatchObject({
      status: 'success',
    });
    // The context was written before its turn was known, and still belongs to the agent.
    expect(
      await submit(
        'create_box',
        { card_ids: await cardIdsOf(answer.box) },
        { sourceAgentId: answer.agent_id },
      ),
    ).toMatchObject({ box_id: expect.any(String) });
  });

  const cardIdsOf = async (boxId: string): Promise<string[]> =>
    (
      await h.rows<{ id: string }>('select unnest(card_ids) as id from boxcar.boxes where id = $1', [boxId])
    ).map(({ id }) => id);

  test('that throws leaves nothing, whatever it did before', async () => {
    await h.rows('create table notes (words text)');
    const before = await counts();
    const fail = primitive(async ({ packer, tx, ctx, findProfile, submitTurn }) => {
      const packed = await packer.packContextWithInstruction({
        projectId: ctx.projectId,
        sourceAgentId: ctx.source.agentId,
        toolSuffix: 'x',
        profileName: 'expert',
        instruction: 'x',
      });
      await tx.query({ text: "insert into notes values ('made')" });
      await submitTurn({
        target: { kind: 'new', profile: await findProfile('expert') },
        contextBoxId: packed.contextBoxId,
      });
      throw new KernelError('conflict', { message: 'Not now.' });
    });
    expect(await refusal(fail())).toMatchObject({ code: 'conflict' });
    expect(await counts()).toEqual(before);
    expect(await h.rows('select * from notes')).toEqual([]);
    expect(h.database.pool.idleCount).toBe(h.database.pool.totalCount);
  });

  test('may send statements in parallel: they share its transaction', async () => {
    await h.rows('create table notes (words text)');
    const run = primitive(async ({ tx, packer, ctx }) => {
      const made = packer.createBox({
        projectId: ctx.projectId,
        sourceAgentId: ctx.source.agentId,
        cards: [{ type: 't', content: { kind: 'text', text: 'x' } }],
      });
      const ids = await Promise.all(
        Array.from({ length: 5 }, (_none, index) =>
          tx.query<{ xid: string }>({
            text: `with made as (insert into notes values ('${index}')) select pg_current_xact_id()::text as xid`,
          }),
        ),
      );
      await made;
      return [...new Set(ids.map(({ rows }) => rows[0]?.xid ?? ''))];
    });
    expect(await run()).toHaveLength(1);
    expect(await h.rows('select count(*)::int as n from notes')).toEqual([{ n: 5 }]);
    expect(await counts()).toMatchObject({ operations: 1 });
    expect(h.database.pool.idleCount).toBe(h.database.pool.totalCount);
  });

  test('cannot use its transaction after the transaction has ended', async () => {
    let late: HandlerTools['tx'] | undefined;
    await primitive(async ({ tx }) => {
      late = tx;
      return null;
    })();
    await expect(late?.query({ text: 'select 1' })).rejects.toMatchObject({ code: 'internal_error' });
    expect(h.database.pool.idleCount).toBe(h.database.pool.totalCount);
  });

  test('runs again completely when its transaction fails to serialize', async () => {
    await h.rows('create table notes (words text)');
    let runs = 0;
    const run = primitive(async ({ tx }) => {
      runs++;
      await tx.query({ text: "insert into notes values ('made')" });
      if (runs < 3) await tx.query({ text: "do $$ begin raise exception using errcode = '40P01'; end $$" });
      return runs;
    });
    expect(await run()).toBe(3);
    expect(await h.rows('select * from notes')).toEqual([{ words: 'made' }]);
  });

  test('whose connection is cut runs again, and its answer is stored once', async () => {
    let runs = 0;
    const run = primitive(async ({ tx }) => {
      runs++;
      if (runs === 1) await tx.query({ text: 'select pg_terminate_backend(pg_backend_pid())' });
      return runs;
    });
    expect(await run()).toBe(2);
    expect(await counts()).toMatchObject({ operations: 1 });
  });

  test('may return values that JSON lacks: rows keep the parts that JSON has', async () => {
    const circle: Record<string, unknown> = { n: 1n, nul: 'a\u0000', no: undefined };
    circle.self = circle;
    for (const [answer, expected] of [
      [undefined, null],
      [circle, { n: '1', nul: 'a\ufffd', self: '[circular]' }],
      ['\ud800', '\ufffd'],
    ] as const)
      expect(await primitive(async () => answer as unknown as JsonValue)()).toEqual(expected);
    expect(await counts()).toMatchObject({ operations: 3 });
  });

  test('can give its turns only sealed contexts of this project', async () => {
    const { output_box_id } = await receiptOf();
    const before = await counts();
    for (const contextBoxId of [newId<'box'>(), output_box_id]) {
      const run = primitive(async ({ submitTurn, findProfile }) => {
        await submitTurn({ target: { kind: 'new', profile: await findProfile('expert') }, contextBoxId });
        return null;
      });
      expect(await refusal(run())).toMatchObject({
        code: 'not_found',
        details: { context_box_id: contextBoxId },
      });
    }
    expect(await counts()).toEqual(before);
  });

  test('can wait for only one turn', async () => {
    const before = await counts();
    const run = primitive(async ({ submitTurn, findProfile, packer, ctx }) => {
      for (let i = 0; i < 2; i++) {
        const { contextBoxId } = await packer.packContextWithInstruction({
          projectId: ctx.projectId,
          sourceAgentId: ctx.source.agentId,
          toolSuffix: 'x',
          profileName: 'expert',
          instruction: 'x',
        });
        await submitTurn({
          target: { kind: 'new', profile: await findProfile('expert') },
          contextBoxId,
          wait: true,
        });
      }
      return null;
    });
    expect(await refusal(run())).toMatchObject({ code: 'bad_request' });
    expect(await counts()).toEqual(before);
  });

  test('can give one agent two turns: the second waits for the first', async () => {
    const { agent_id, turn_id } = await receiptOf();
    await h.worker();
    await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
    const run = primitive(async ({ submitTurn, findAgent, packer, ctx }) => {
      const turns: string[] = [];
      for (const instruction of ['one', 'two']) {
        const { contextBoxId } = await packer.packContextWithInstruction({
          projectId: ctx.projectId,
          sourceAgentId: ctx.source.agentId,
          toolSuffix: 'x',
          profileName: 'expert',
          instruction,
        });
        turns.push(
          (await submitTurn({ target: { kind: 'reuse', agent: await findAgent(agent_id) }, contextBoxId }))
            .turnId,
        );
      }
      return turns;
    });
    for (const turn of (await run()) as string[])
      expect(await h.runtime.waitForTurn(turn, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
    // The agent can read each context, although a lock was taken and the box was written before its turn was known.
    for (const { id } of await h.rows<{ id: string }>(
      'select context_box_id as id from boxcar.turns where agent_id = $1',
      [agent_id],
    ))
      await submit('create_box', { card_ids: await cardIdsOf(id) }, { sourceAgentId: agent_id });
  });

  test('cannot end a turn from outside', async () => {
    const run = primitive(async ({ endTurn }) => {
      endTurn('x');
      return null;
    });
    expect(await refusal(run())).toMatchObject({ code: 'bad_request' });
    expect(await counts()).toMatchObject({ operations: 0 });
  });

  test('has a unique name that a model can call', () => {
    const handler: Handler = { description: '', input: z.strictObject({}), handle: async () => null };
    h.runtime.registerHandler('mine', handler);
    for (const name of ['mine', 'delegate_async']) {
      expect(() => h.runtime.registerHandler(name, handler)).toThrow(
        expect.objectContaining({ code: 'conflict' }),
      );
    }
    const tool = { name: 'mine', description: '', input: z.strictObject({}), run: () => 1 };
    expect(() => h.runtime.registerTool(tool)).toThrow(expect.objectContaining({ code: 'conflict' }));
    for (const name of ['', 'with space', 'ä', 'x'.repeat(65)])
      expect(() => h.runtime.registerHandler(name, handler)).toThrow(
        expect.objectContaining({ code: 'bad_request' }),
      );
  });
});

test('a submission whose tape is reset after its agent was found is tried again, on the agent’s current tape', async () => {
  const made = (await submit('provision_agent', { action: 'create', profile_name: 'expert' })) as {
    agent_id: string;
    output_box_id: string;
  };
  const gate = await h.database.pool.connect();
  const waiting = (count: number) =>
    waitFor(
      async () => {
        const { rowCount } = await h.database.pool.query(
          "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
        );
        return rowCount === count;
      },
      { message: `${count} wait for the tape` },
    );
  let work: Promise<unknown>;
  try {
    await gate.query('begin');
    await gate.query('select from boxcar.boxes where id = $1 for update', [made.output_box_id]);
    const reset = (await h.runtime.tape({ agent: made.agent_id })).reset();
    await waiting(1);
    const reuse = { target_strategy: 'reuse', target_ref: made.agent_id, instruction: 'go' };
    work = Promise.all([reset, submit('delegate_async', reuse)]);
    await waiting(2);
    await gate.query('commit');
  } finally {
    gate.release();
  }
  await work;
  expect(
    await h.rows(
      'select b.incarnation from boxcar.turns t join boxcar.boxes b on b.id = t.output_box_id where t.agent_id = $1',
      [made.agent_id],
    ),
  ).toEqual([{ incarnation: 2 }]);
});

describe('the number of statements of a submission', () => {
  // The window has room, so that no turn is queued and no background check runs.
  const openWindow = () =>
    registerWorker(h.database.pool, {
      id: newId<'worker'>(),
      lockKey: '1',
      targets: [''],
      concurrency: 1_000,
      leaseMs: 3_600_000,
      info: {},
    });
  const cost = async (work: () => Promise<unknown>): Promise<number> =>
    (await statementsOf(h.database, work)).length;
  const boxes = async (n: number, cards: number): Promise<string[]> => {
    const ids: string[] = [];
    for (let i = 0; i < n; i++) {
      const made = await submit('create_box', {
        cards: Array.from({ length: cards }, (_none, index) => ({
          type: 't',
          content: { kind: 'text', text: `${i} ${index}` },
        })),
      });
      ids.push((made as { box_id: string }).box_id);
    }
    return ids;
  };

  test('does not grow with its boxes and cards', async () => {
    await openWindow();
    const [few, many] = [await boxes(1, 1), await boxes(30, 20)];
    const launchWith = (context_box_id?: string[]) => () =>
      submit('launch_principal', { ...launch, ...(context_box_id === undefined ? {} : { context_box_id }) });
    // This first submission fills the cache of caller facts.
    await launchWith()();
    expect(await cost(launchWith())).toBe(1);
    expect(await cost(launchWith(few))).toBe(2);
    expect(await cost(launchWith(many))).toBe(2);
    const cards = (n: number) => () =>
      submit('create_box', {
        cards: Array.from({ length: n }, () => ({ type: 't', content: { kind: 'text', text: 'x' } })),
      });
    expect(await cost(cards(500))).toBe(await cost(cards(1)));
  });

  test('does not grow with the history of the agent that is reused or cloned', async () => {
    const agentOf = async (turns: number): Promise<string> => {
      const { agent_id, turn_id } = await receiptOf();
      const ids = [turn_id];
      for (let i = 1; i < turns; i++) {
        const next = await submit('delegate_async', {
          target_strategy: 'reuse',
          target_ref: agent_id,
          instruction: 'x',
        });
        ids.push((next as unknown as Receipt).turn_id);
      }
      for (const id of ids) await h.runtime.waitForTurn(id, { timeoutMs: 60_000 });
      return agent_id;
    };
    const worker = await h.worker({ sweepMs: 3_600_000, heartbeatMs: 3_600_000, leaseMs: 7_200_000 });
    const [young, old] = [await agentOf(1), await agentOf(8)];
    await worker.close();
    await openWindow();
    const delegate = (target_strategy: string, target_ref: string) => () =>
      submit('delegate_async', { target_strategy, target_ref, instruction: 'x' });
    expect(await cost(delegate('reuse', old))).toBe(await cost(delegate('reuse', young)));
    expect(await cost(delegate('clone', old))).toBe(await cost(delegate('clone', young)));
  });
});
