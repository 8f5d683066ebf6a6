import { buildCard, type NewCard, type ProjectId } from '@boxcar/kernel';
import { claimWithViews, loadViews } from '@boxcar/store';
import { describe, expect, test } from 'vitest';
import { z } from 'zod';
import { newId } from '../lib/new-id.js';
import { toRows } from '../pack/context-rows.js';
import { checkPrompts } from '../testing/check-prompts.js';
import { statementsOf } from '../testing/count-statements.js';
import { type Harness, harness } from '../testing/harness.js';
import { KeptViews } from './kept-views.js';
import { TurnLoader } from './loader.js';
import { INLINE_VIEW_BYTES, TurnView } from './turn-view.js';
import { ViewRoom } from './view-room.js';

const text = (length: number): string => 'x'.repeat(length);

describe('the rows of a view in memory', () => {
  /** A claimed turn with its view, and the room that the view uses. */
  async function claimed(h: Harness) {
    await h.profile('writer', [{ say: 'x' }]);
    const { turn_id: turnId } = (await h.runtime.submit('launch_principal', {
      profile_name: 'writer',
      instruction: 'go',
    })) as { turn_id: string };
    await h.rows("update boxcar.turns set status = 'dispatched', epoch = 1, dispatched_at = now()");
    const [claim] = await claimWithViews(h.database.pool, [{ turnId: turnId as never, epoch: 1 }], {
      holderId: newId<'worker'>(),
      maxViewBytes: INLINE_VIEW_BYTES,
    });
    if (claim?.outcome !== 'claimed') throw new Error('the turn was not to be had');
    const kept = new KeptViews();
    const room = new ViewRoom(1_000_000, () => kept.dropOldest());
    const host = { loader: new TurnLoader(h.database.pool), room, kept };
    const view = new TurnView(host, claim.turn, claim.view);
    const apart = async () =>
      toRows((await loadViews(h.database.pool, [claim.turn])).get(claim.turn.turnId) as never);
    return { view, room, apart, projectId: claim.turn.projectId };
  }
  const cardOf = (projectId: ProjectId, words: string): NewCard =>
    buildCard(
      { type: 'agent.thought', role: 'assistant', content: { kind: 'text', text: words }, authorId: 'a' },
      { id: newId<'card'>(), projectId },
    );
  const thought = (card: NewCard) => [{ kind: 'message' as const, card }];

  test('are read by the claim, and are not read again', async () => {
    await using h = await harness();
    const { view, room, apart } = await claimed(h);
    const before = await apart();
    expect(await statementsOf(h.database, async () => expect(await view.rows()).toEqual(before))).toEqual([]);
    expect(room.usedBytes).toBeGreaterThan(0);
    view.drop();
    expect(room.usedBytes).toBe(0);
    expect(await view.rows()).toEqual(before);
  });

  test('grow by the entries that the turn writes after the known head', async () => {
    await using h = await harness();
    const { view, room, projectId } = await claimed(h);
    const { entries } = await view.rows();
    const head = entries.at(-1)?.position ?? 0;
    const used = room.usedBytes;
    const card = cardOf(projectId, 'thought');
    view.append(head, 1, thought(card));
    expect((await view.rows()).entries.at(-1)).toMatchObject({
      position: head + 1,
      card: { id: card.id },
      step: 1,
    });
    expect(room.usedBytes).toBe(used + card.sizeBytes);
  });

  test.each<[string, (head: number) => number | null]>([
    ['another writer has written in between', (head) => head + 1],
    ['it is unknown whether another writer has written in between', () => null],
  ])('are forgotten when %s', async (_name, base) => {
    await using h = await harness();
    const { view, room, apart, projectId } = await claimed(h);
    const head = (await view.rows()).entries.at(-1)?.position ?? 0;
    view.append(base(head), 1, thought(cardOf(projectId, 'thought')));
    expect(room.usedBytes).toBe(0);
    // Read again: entries that were not written are absent.
    expect(await view.rows()).toEqual(await apart());
  });
});

test('a worker with little memory for views still runs every turn, however large its context', async () => {
  await using h = await harness();
  h.runtime.registerTool({
    name: 'look',
    description: 'Looks.',
    input: z.strictObject({}),
    isReadOnly: true,
    run: () => text(300_000),
  });
  await h.profile('reader', [{ calls: [{ tool: 'look', arguments: {} }] }, { say: 'read' }], {
    tools: ['look'],
  });
  const { box_id } = (await h.runtime.submit('create_box', {
    cards: [{ type: 't', content: { kind: 'text', text: text(400_000) } }],
  })) as { box_id: string };
  await h.worker({ concurrency: 10, viewBytes: 1_000 });
  const turns = await Promise.all(
    Array.from({ length: 20 }, (_none, index) =>
      h.runtime.submit('launch_principal', {
        profile_name: 'reader',
        instruction: 'go',
        ...(index % 2 === 0 ? { context_box_id: box_id } : {}),
        wait: true,
      }),
    ),
  );
  for (const turn of turns) expect(turn).toMatchObject({ status: 'success', result: 'read' });
  await checkPrompts(h.database.pool);
});

test('the names of agents in memory belong to one project, and all are found when more are requested than are kept', async () => {
  await using h = await harness();
  await h.profile('lead', [{ say: 'x' }]);
  const ada = { action: 'create', agent_id: 'ada', profile_name: 'lead' };
  const { agent_id: id } = (await h.runtime.submit('provision_agent', ada)) as { agent_id: string };
  const [own] = await h.rows<{ id: ProjectId }>("select id from boxcar.projects where name = 'default'");
  const projectId = own?.id as ProjectId;
  const other = newId<'project'>() as ProjectId;
  const ids = new Set([id]);
  const named = new Map([[id, 'ada']]);
  const loader = new TurnLoader(h.database.pool);
  // A card of any project may contain an id of this agent.
  expect(await loader.names(other, ids)).toEqual(new Map());
  expect(await loader.names(projectId, ids)).toEqual(named);
  expect(await loader.names(other, ids)).toEqual(new Map());
  const others = Array.from({ length: 10_000 }, () => newId<'agent'>() as string);
  expect(await loader.names(projectId, new Set([id, ...others]))).toEqual(named);
});
