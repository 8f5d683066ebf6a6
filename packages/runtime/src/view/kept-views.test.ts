import { type BoxId, type CardId, type ProjectId, PromptHasher } from '@boxcar/kernel';
import { eraseCards } from '@boxcar/store';
import { beforeEach, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { newId } from '../lib/new-id.js';
import { checkPrompts } from '../testing/check-prompts.js';
import { statementsOf } from '../testing/count-statements.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { type RecordingModel, recordingModel } from '../testing/recording-model.js';
import { type HeldView, KeptViews } from './kept-views.js';
import { ViewRoom } from './view-room.js';

const KIB = 1024;
const viewOf = (sizeBytes: number): HeldView => ({
  rows: { entries: [], contexts: new Map(), lastAnchorPosition: 1 },
  from: 1,
  erasures: 0,
  hasher: new PromptHasher(),
  sizeBytes,
});
const tapes = (count: number): BoxId[] => Array.from({ length: count }, () => newId<'box'>());

describe('kept views in memory', () => {
  test('make room for other views, the longest unused first', async () => {
    const kept = new KeptViews();
    const room = new ViewRoom(100 * KIB, () => kept.dropOldest());
    const [first, second] = tapes(2) as [BoxId, BoxId];
    for (const tape of [first, second]) {
      room.take(40 * KIB);
      room.leave(kept.keep(tape, viewOf(40 * KIB)));
    }
    await room.enter(30 * KIB);
    expect([...kept.known.keys()]).toEqual([second]);
    await room.enter(70 * KIB);
    expect(kept.known.size).toBe(0);
    expect(room.usedBytes).toBe(100 * KIB);
  });

  test('return the bytes of a view that a newer view of its tape replaces', () => {
    const kept = new KeptViews();
    const [tape, other] = tapes(2) as [BoxId, BoxId];
    expect([40, 50].map((size) => kept.keep(tape, viewOf(size * KIB)))).toEqual([0, 40 * KIB]);
    kept.keep(other, viewOf(60 * KIB));
    kept.keep(tape, viewOf(50 * KIB));
    // The replaced view counts as used.
    expect([kept.dropOldest(), kept.dropOldest(), kept.dropOldest()]).toEqual([60 * KIB, 50 * KIB, 0]);
  });

  test('are few large views, and are dropped when they are not used for a while', () => {
    const kept = new KeptViews();
    expect(kept.keep(newId<'box'>(), viewOf(KIB))).toBe(KIB);
    const freed = tapes(65).map((tape) => kept.keep(tape, viewOf(40 * KIB)));
    expect(freed.at(-1)).toBe(40 * KIB);
    expect(kept.known.size).toBe(64);
    expect(kept.expire()).toBe(0);
    expect(kept.expire(performance.now() + 600_000)).toBe(64 * 40 * KIB);
    expect(kept.known.size).toBe(0);
  });
});

describe('a conversation', () => {
  let h: Harness;
  let model: RecordingModel;
  let agentId: string | undefined;

  beforeEach(async () => {
    model = recordingModel();
    h = await harness({ model });
    agentId = undefined;
    h.runtime.registerTool({
      name: 'look',
      description: 'Looks.',
      input: z.strictObject({}),
      isReadOnly: true,
      run: () => 'seen',
    });
    await h.profile('talker', [{ calls: [{ tool: 'look', arguments: {} }] }, { say: 'yes' }], {
      tools: ['look'],
    });
    return () => h[Symbol.asyncDispose]();
  });

  /**
   * Runs a further turn of the same agent, with an instruction of this size. Returns the contents of its last prompt.
   */
  async function say(word: string, bytes = 100 * KIB): Promise<readonly string[]> {
    const instruction = word.repeat(bytes / word.length);
    const receipt = (await (agentId === undefined
      ? h.runtime.submit('launch_principal', { profile_name: 'talker', instruction })
      : h.runtime.submit('delegate_async', {
          target_strategy: 'reuse',
          target_ref: agentId,
          instruction,
        }))) as { turn_id: string; agent_id: string };
    agentId = receipt.agent_id;
    expect(await h.runtime.waitForTurn(receipt.turn_id)).toMatchObject({ status: 'success' });
    return (
      model
        .of(receipt.turn_id)
        .at(-1)
        ?.messages.map(({ content }) => content) ?? []
    );
  }

  test('reads only new rows, in the round trip of its claim, however long it has become', async () => {
    await h.worker();
    await say('one ');
    const reads: number[] = [];
    for (const word of ['two ', 'three ', 'four ', 'five ', 'six ']) {
      const statements = await statementsOf(h.database, () => say(word));
      reads.push(
        statements.filter((text) => text.startsWith('select') && text.includes('view_position')).length,
      );
    }
    // The read with the claim. Steps after the first know the entries that they wrote, or read the rest.
    expect(reads.at(-1)).toBeLessThanOrEqual(2);
    await checkPrompts(h.database.pool, model.requests);
  });

  test('has the same prompt on every worker, also without room to keep views', async () => {
    await h.worker({ concurrency: 1 });
    await h.worker({ concurrency: 1 });
    await h.worker({ concurrency: 1, viewBytes: KIB });
    for (let turn = 1; turn <= 10; turn += 1) await say(`${turn} `);
    await checkPrompts(h.database.pool, model.requests);
    await checkInvariants(h.database.pool);
  });

  test('keeps one line in its manifest for the content of earlier turns, which proves that content', async () => {
    await h.worker();
    for (let turn = 1; turn <= 10; turn += 1) await say('go ', KIB);
    const [last] = await h.rows<{ turn_id: string; kinds: string[] }>(
      `select turn_id, array(select m->>'kind' from jsonb_array_elements(manifest->'messages') m) as kinds
       from boxcar.steps where step = 2 order by turn_id desc limit 1`,
    );
    expect(last?.kinds).toEqual(['profile', 'earlier', 'context', 'context', 'tape']);
    await checkPrompts(h.database.pool, model.requests);
    await checkInvariants(h.database.pool);
    const findings = async (change: string) => {
      await h.rows(`update boxcar.steps set ${change} where step = 2 and turn_id = $1`, [last?.turn_id]);
      return (await h.runtime.explainStep(last?.turn_id ?? '')).findings;
    };
    expect(await findings("prompt_hash = sha256('x')")).toMatchObject([{ code: 'prompt_differs' }]);
    expect(await findings(`manifest = jsonb_set(manifest, '{messages,1,hash}', '"x"')`)).toMatchObject([
      { code: 'manifest_differs', message: expect.stringContaining('from message 2 on') },
    ]);
    const forged = `manifest = jsonb_set(manifest, '{messages,1,to}', '999')`;
    await findings(forged);
    await expect(checkInvariants(h.database.pool)).rejects.toThrow('prompt-has-manifest');
  });

  test('forgets erased content', async () => {
    await h.worker();
    for (const word of ['one ', 'two ', 'secret ']) await say(word);
    const cards = await h.rows<{ id: CardId; project_id: ProjectId }>(
      "select id, project_id from boxcar.cards where content::text like '%secret%'",
    );
    expect(cards).toHaveLength(1);
    const projectId = cards[0]?.project_id as ProjectId;
    await eraseCards(
      h.database.pool,
      cards.map(({ id }) => id),
      { projectId, reason: 'asked for' },
    );
    const contents = await say('four ');
    expect(contents.some((text) => text.includes('one '))).toBe(true);
    expect(contents).toContain('(erased)');
    expect(contents.some((text) => text.includes('secret'))).toBe(false);
  });
});
