import { type BatchId, type CardId, checkMessages, type ProjectId, type TurnId } from '@boxcar/kernel';
import { type ErasedCard, eraseCards } from '@boxcar/store';
import { beforeEach, expect, test } from 'vitest';
import { z } from 'zod';
import { TurnPrompts } from './explain/turn-prompts.js';
import { checkPrompts } from './testing/check-prompts.js';
import { type Harness, harness } from './testing/harness.js';
import { checkInvariants } from './testing/invariants.js';
import { type RecordingModel, recordingModel } from './testing/recording-model.js';

const PROJECT = '00000000-0000-7000-8000-000000000001' as ProjectId;
let h: Harness;
let model: RecordingModel;
let onLook: () => Promise<unknown> = async () => 'the secret result';

beforeEach(async () => {
  model = recordingModel({});
  h = await harness({ model });
  h.runtime.registerTool({
    name: 'look',
    description: 'Looks.',
    input: z.looseObject({}),
    isReadOnly: true,
    run: () => onLook(),
  });
  await h.worker();
  return async () => {
    expect(model.findings()).toEqual([]);
    await checkInvariants(h.database.pool);
    await checkPrompts(h.database.pool);
    await h[Symbol.asyncDispose]();
  };
});

/** Erases all cards of a type. */
async function erase(...types: string[]): Promise<readonly ErasedCard[]> {
  const rows = await h.rows<{ id: CardId }>(
    'select id from boxcar.cards where type = any ($1) and erased_at is null',
    [types],
  );
  return eraseCards(
    h.database.pool,
    rows.map(({ id }) => id),
    { projectId: PROJECT, reason: 'asked for' },
  );
}

const call = { calls: [{ tool: 'look', arguments: { at: 'the secret place' } }] };

async function play(): Promise<TurnId> {
  const receipt = await h.runtime.submit('launch_principal', {
    profile_name: 'reader',
    instruction: 'the secret task',
  });
  const { turn_id } = z.object({ turn_id: z.string() }).parse(receipt);
  expect(await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
  return turn_id as TurnId;
}

test('an agent whose cards were erased goes on with a prompt of the same shape', async () => {
  await h.profile('reader', [call, { say: 'the secret answer' }], { tools: ['look'] });
  onLook = async () => 'the secret result';
  await play();
  const [agent] = await h.rows<{ id: string }>('select agent_id as id from boxcar.turns');
  await erase('tool.call', 'tool.result', 'task.instruction', 'agent.thought', 'task.deliverable');
  const receipt = await h.runtime.submit('delegate_async', {
    target_strategy: 'reuse',
    target_ref: agent?.id ?? '',
    instruction: 'go on',
  });
  const { turn_id } = z.object({ turn_id: z.string() }).parse(receipt);
  await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
  const sent = model.of(turn_id as TurnId)[0];
  expect(checkMessages(sent?.messages ?? [], sent?.tools ?? [])).toEqual([]);
  const messages = sent?.messages ?? [];
  expect(messages.find(({ role }) => role === 'tool')).toMatchObject({ name: 'look', content: '(erased)' });
  const calls = messages.flatMap((message) =>
    message.role === 'assistant' ? (message.toolCalls ?? []) : [],
  );
  expect(calls).toMatchObject([{ name: 'look', arguments: {} }]);
  expect(messages.filter(({ content }) => content === '(erased)').length).toBeGreaterThan(2);
  expect(JSON.stringify(messages)).not.toContain('secret');
});

test('explain and why say which cards are gone; nothing shows their words', async () => {
  await h.profile('reader', [call, { say: 'the secret answer' }], { tools: ['look'] });
  onLook = async () => 'the secret result';
  const turnId = await play();
  await erase('tool.call', 'tool.result', 'task.instruction', 'task.deliverable', 'agent.thought');
  const prompts = await TurnPrompts.load(h.database.pool, turnId, { project: 'default', allSteps: true });
  const explained = prompts.explain({ step: 2 });
  expect(explained).toMatchObject({ verified: false });
  expect(explained.findings[0]).toMatchObject({ code: 'card_erased' });
  expect(explained.messages.map(({ role }) => role)).toEqual(['system', 'user', 'user', 'assistant', 'tool']);
  expect(JSON.stringify(explained)).not.toContain('secret');
  const state = await h.runtime.getTurn(turnId);
  expect(state.result).toBe('(erased)');
  const calls = await h.rows('select arguments from boxcar.tool_calls');
  expect(calls).toEqual([{ arguments: {} }]);
});

interface BatchReceipt {
  readonly batch_id: BatchId;
  readonly turn_ids: readonly TurnId[];
}

/** A batch of two children that has ended, made from outside. */
async function fork(): Promise<BatchReceipt> {
  await h.profile('child', [{ say: 'the secret of {{instruction}}' }]);
  const tasks = ['one', 'two'].map((instruction) => ({
    target_strategy: 'new' as const,
    target_ref: 'child',
    instruction,
  }));
  const receipt = (await h.runtime.submit('fork_join', { tasks, wait: false })) as unknown as BatchReceipt;
  await h.runtime.waitForBatch(receipt.batch_id, { timeoutMs: 60_000 });
  return receipt;
}

const eraseDeliverable = async (turnId: TurnId | undefined): Promise<readonly ErasedCard[]> => {
  const [turn] = await h.rows<{ id: CardId }>(
    'select deliverable_card_id as id from boxcar.turns where id = $1',
    [turnId],
  );
  return eraseCards(h.database.pool, turn === undefined ? [] : [turn.id], {
    projectId: PROJECT,
    reason: 'asked for',
  });
};

test('every answer of a batch loses the summary of an erased deliverable, and says so when it is asked for again', async () => {
  const { batch_id, turn_ids } = await fork();
  const key = { idempotencyKey: 'collect-once' };
  const collect = () => h.runtime.submit('collect', { turn_ids: turn_ids.toReversed() }, key);
  const kept = { status: 'success', summary: 'the secret of two' };
  expect(await collect()).toMatchObject({ results: [kept, { summary: 'the secret of one' }] });
  await eraseDeliverable(turn_ids[0]);
  const gone = { status: 'success', turn_id: turn_ids[0], summary: '(erased)' };
  expect(await collect()).toMatchObject({ status: 'success', results: [kept, gone] });
  expect(await h.runtime.waitForBatch(batch_id)).toMatchObject({
    batch_id,
    status: 'success',
    results: [gone, kept],
  });
  expect(await h.rows("select from boxcar.batches where answer::text like '%secret of one%'")).toEqual([]);
});

test('a long deliverable, shown in part, is erased from the answers as well', async () => {
  await h.profile('child', [{ say: `the secret ${'x'.repeat(20_000)}` }]);
  const receipt = (await h.runtime.submit('fork_join', {
    tasks: [{ target_strategy: 'new', target_ref: 'child', instruction: 'go' }],
    wait: false,
  })) as unknown as BatchReceipt;
  const before = await h.runtime.waitForBatch(receipt.batch_id, { timeoutMs: 60_000 });
  expect(before).toMatchObject({ results: [{ is_cut: true }] });
  await eraseDeliverable(receipt.turn_ids[0]);
  const after = await h.runtime.waitForBatch(receipt.batch_id);
  expect(JSON.stringify(after)).not.toContain('secret');
  expect(JSON.stringify(after)).not.toContain('is_cut');
});
