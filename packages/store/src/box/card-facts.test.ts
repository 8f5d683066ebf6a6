import type { CardContent, CardId, JsonObject, ProjectId } from '@boxcar/kernel';
import { beforeEach, describe, expect, test } from 'vitest';
import { writeSubmission } from '../submit/submission.js';
import { emptySubmission } from '../submit/submission-rows.js';
import { card, DEFAULT_PROJECT, newId, World } from '../testing/world.js';
import { loadCardFacts, loadCards } from './card-facts.js';

let world: World;

beforeEach(async () => {
  world = await World.open();
  return () => world[Symbol.asyncDispose]();
});

async function write(content: CardContent, metadata: JsonObject = {}): Promise<CardId> {
  const made = { ...card(content), metadata };
  await writeSubmission(world.pool, { ...emptySubmission(), cards: [made] });
  return made.id;
}

const factsOf = async (id: CardId) => (await loadCardFacts(world.pool, [id], DEFAULT_PROJECT)).get(id);

const call = { tool_call_id: 'c-1', name: 'look' };

describe('the facts of a card', () => {
  test.each([
    [{ kind: 'text', text: 'words' }, 'words', null],
    [{ kind: 'json', data: { tool_call_id: 'x', text: 1 } }, '{"tool_call_id":"x","text":1}', null],
    [{ kind: 'json', data: null }, 'null', null],
    [{ kind: 'fields_schema', fields: [{ name: 'a' }] }, '[{"name":"a"}]', null],
    [{ kind: 'tool_call', ...call, provider_call_id: 'p', arguments: { at: 1 } }, 'look {"at":1}', 'c-1'],
    [{ kind: 'tool_result', ...call, status: 'success', result: 'seen' }, 'look seen', 'c-1'],
    [
      { kind: 'tool_result', ...call, status: 'failed', error: { code: 'e', message: 'm' } },
      'look {"code":"e","message":"m"}',
      'c-1',
    ],
    [{ kind: 'file', uri: 'file://a', checksum: 'x', preview: 'p' }, 'file://a', null],
  ] as const)('%j begin with the text %s', async (content, preview, toolCallId) => {
    expect(await factsOf(await write(content as unknown as CardContent))).toMatchObject({
      preview,
      toolCallId,
    });
  });

  test('have at most the first 200 characters of a text, and no part of a character', async () => {
    const id = await write({ kind: 'text', text: '😀'.repeat(300) });
    expect((await factsOf(id))?.preview).toBe('😀'.repeat(200));
  });

  test('have valid values of what the card summarizes and whether models see it, whatever its author wrote there', async () => {
    const text: CardContent = { kind: 'text', text: 'x' };
    const some = await write(text, { summarizes: ['a', 7, null, 'b'], context: false });
    expect(await factsOf(some)).toMatchObject({ summarizes: ['a', 'b'], isHidden: true });
    const other = await write(text, { summarizes: 'a', context: 'false' });
    expect(await factsOf(other)).toMatchObject({ summarizes: [], isHidden: false });
  });

  test('and its content are read only within its project', async () => {
    const id = await write({ kind: 'text', text: 'x' });
    const foreign = newId<'project'>() as ProjectId;
    expect((await loadCardFacts(world.pool, [id], foreign)).size).toBe(0);
    expect((await loadCards(world.pool, [id], foreign)).size).toBe(0);
    const loaded = (await loadCards(world.pool, [id], DEFAULT_PROJECT)).get(id);
    expect(loaded).toMatchObject({ id, content: { kind: 'text', text: 'x' }, sizeBytes: 26 });
    expect((await loadCardFacts(world.pool, [], DEFAULT_PROJECT)).size).toBe(0);
  });
});
