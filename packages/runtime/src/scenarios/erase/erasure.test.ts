import {
  type BatchId,
  type BoxId,
  type CardId,
  checkMessages,
  type ProjectId,
  type TurnId,
} from '@boxcar/kernel';
import { type ErasedCard, eraseCards, findOwnCards } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import { beforeEach, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { TurnPrompts } from '../../explain/turn-prompts.js';
import { checkPrompts } from '../../testing/check-prompts.js';
import { type Harness, harness } from '../../testing/harness.js';
import { checkInvariants } from '../../testing/invariants.js';
import { type RecordingModel, recordingModel } from '../../testing/recording-model.js';

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

test('an agent whose cards were erased continues with a prompt of the same shape', async () => {
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

test('explain and why name the erased cards; nothing shows their words', async () => {
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

/** An ended batch of two children, made from outside. */
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

test('every answer of a batch loses the summary of an erased deliverable, and a repeated request says so', async () => {
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

test('a long deliverable that is shown in part is also erased from the answers', async () => {
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

test.each([
  { command: 'search', order: 'A-17' },
  { command: 'anchors', output: 'three of them', result: [] },
])("the answer %j of a program's own primitive stays", async (answer) => {
  h.runtime.registerHandler('robot', {
    description: 'Answers.',
    input: z.strictObject({}),
    handle: () => answer,
  });
  const ask = () => h.runtime.submit('robot', {}, { idempotencyKey: 'ask-once' });
  expect(await ask()).toEqual(answer);
  await h.runtime.submit('create_box', {
    cards: [{ type: 'note', content: { kind: 'text', text: 'the secret' } }],
  });
  expect(await erase('note')).toMatchObject([{ outcome: 'erased' }]);
  expect(await ask()).toEqual(answer);
});

describe('the cards of a tape', () => {
  interface Launched {
    readonly turn_id: TurnId;
    readonly agent_id: string;
    readonly output_box_id: BoxId;
  }
  const launch = async (profile_name: string): Promise<Launched> => {
    const launched = (await h.runtime.submit('launch_principal', {
      profile_name,
      instruction: 'go',
    })) as unknown as Launched;
    await h.runtime.waitForTurn(launched.turn_id, { timeoutMs: 60_000 });
    return launched;
  };
  /** The cards that entries of the tape refer to, and the results of the calls of its turn. */
  const cardsOf = async ({ turn_id, output_box_id }: Launched) => {
    const rows = await h.rows<{ id: CardId; is_erased: boolean }>(
      `select c.id, c.erased_at is not null as is_erased from boxcar.cards c where not exists (select from boxcar.projects p where p.bootstrap_card_id = c.id) and (
         c.id in (select e.card_id from boxcar.tape_entries e where e.box_id = $1) or c.id in (select k.result_card_id from boxcar.tool_calls k where k.turn_id = $2))`,
      [output_box_id, turn_id],
    );
    return { erased: rows.filter((row) => row.is_erased), kept: rows.filter((row) => !row.is_erased) };
  };
  const eraseBox = async ({ output_box_id }: Launched): Promise<void> => {
    const ids = await findOwnCards(h.database.pool, output_box_id, PROJECT);
    await eraseCards(h.database.pool, ids, { projectId: PROJECT, reason: 'asked for' });
  };

  beforeEach(async () => {
    await h.profile('writer', [{ say: 'done' }]);
    await h.profile('looker', [call, { say: 'the answer' }], { tools: ['look'] });
    onLook = async () => 'the secret result';
  });

  test.each(['an entry that names a turn of another agent', 'a merged fork with such an entry'])(
    'are erased, and no results on the tape of another agent, with %s present',
    async (which) => {
      const [looker, writer] = [await launch('looker'), await launch('writer')];
      const tape = await h.runtime.tape({ agent: writer.agent_id });
      const entry = { kind: 'message' as const, content: 'a note', turnId: looker.turn_id };
      if (which.includes('fork')) {
        const fork = await tape.forkTape();
        await fork.tape.append([entry]);
        await fork.merge();
      } else await tape.append([entry]);
      await eraseBox(writer);
      expect((await cardsOf(looker)).erased).toEqual([]);
      expect((await cardsOf(writer)).kept).toEqual([]);
      await eraseBox(looker);
      expect((await cardsOf(looker)).kept).toEqual([]);
    },
  );

  test('are erased together with results of its turns’ calls that have no entry', async () => {
    let settled: ((value: string) => void) | undefined;
    onLook = () =>
      new Promise<string>((resolve) => {
        settled = resolve;
      });
    const { turn_id, agent_id, output_box_id } = (await h.runtime.submit('launch_principal', {
      profile_name: 'looker',
      instruction: 'go',
    })) as unknown as Launched;
    await waitFor(() => settled !== undefined, { message: 'the tool runs' });
    await h.runtime.submit('cancel', { turn_id });
    settled?.('the secret result');
    await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
    const offTape = await h.rows(
      'select k.result_card_id from boxcar.tool_calls k where k.result_card_id is not null and not exists (select from boxcar.tape_entries e where e.card_id = k.result_card_id)',
    );
    expect(offTape).toHaveLength(1);
    await eraseBox({ turn_id, agent_id, output_box_id });
    expect((await cardsOf({ turn_id, agent_id, output_box_id })).kept).toEqual([]);
  });
});
