import type { AgentId, BoxId, RunId, TurnId } from '@boxcar/kernel';
import type { NewBatch, NewTurn, Submission } from '@boxcar/store';
import { describe, expect, test } from 'vitest';
import { newId } from '../lib/new-id.js';
import { SubmissionDraft } from './draft.js';

const projectId = newId<'project'>();
const author = newId<'agent'>();
const runId = newId<'run'>();
const start = (): SubmissionDraft => new SubmissionDraft({ projectId, agentId: author });

/** A box in the form that a packing makes. */
const box = (id: BoxId, tokens = 1): Submission['contextBoxes'][number] => ({
  id,
  projectId,
  ownerAgentId: null,
  makerAgentId: author,
  cardIds: [],
  cardTokens: [],
  segments: [],
  count: 0,
  tokens,
});
const pack = (draft: SubmissionDraft, ...ids: readonly BoxId[]): void =>
  draft.addPacked({
    answer: undefined,
    rows: { cards: [], contextBoxes: ids.map((id) => box(id)), grants: [] },
  });
const turn = (contextBoxId: BoxId, agentId: AgentId = newId<'agent'>()) => {
  const row = { id: newId<'turn'>(), agentId, contextBoxId } as NewTurn;
  return { row, made: { agentId, isReuse: false, argument: undefined, runId } };
};
const addTurns = (draft: SubmissionDraft, ...turns: readonly ReturnType<typeof turn>[]): void =>
  draft.addTurns({ agents: [], budgets: [], run: undefined, turns });
const batch = (turnIds: readonly TurnId[], remaining = turnIds.length): NewBatch =>
  ({ id: newId<'batch'>(), turnIds, remaining }) as NewBatch;

describe('the owner of a context box', () => {
  test('is the agent of its first turn; the agents of further turns get grants', () => {
    const draft = start();
    const id = newId<'box'>();
    const [first, second, third] = [turn(id), turn(id), turn(id)];
    pack(draft, id);
    addTurns(draft, first, second);
    addTurns(draft, third);
    expect(draft.rows.contextBoxes).toMatchObject([{ id, ownerAgentId: first.row.agentId }]);
    expect(draft.rows.grants).toMatchObject(
      [second, third].map(({ row }) => ({ agentId: row.agentId, boxId: id, mode: 'read', source: author })),
    );
  });

  test('stays the same for a box that was written before: the agent gets a grant', () => {
    const draft = start();
    const id = newId<'box'>();
    addTurns(draft, turn(id));
    expect(draft.rows.contextBoxes).toEqual([]);
    expect(draft.rows.grants).toMatchObject([{ boxId: id, mode: 'read' }]);
  });
});

describe('the early write of a draft', () => {
  test('includes everything but turns and batches, each row once', () => {
    const draft = start();
    const id = newId<'box'>();
    const made = turn(id);
    pack(draft, id);
    addTurns(draft, made);
    draft.addBatch({ batch: batch([made.row.id]), members: undefined, runIds: [runId] });
    expect(draft.takeEarly()).toMatchObject({ contextBoxes: [{ id }], turns: [], batches: [] });
    expect(draft.takeEarly()).toBeUndefined();
    expect(draft.rows).toMatchObject({ turns: [{ id: made.row.id }], batches: [{}] });
    expect(draft.isEmpty).toBe(false);
  });

  test('leaves out boxes that are held back until they are released', () => {
    const draft = start();
    const [held, free] = [newId<'box'>(), newId<'box'>()];
    pack(draft, held, free);
    const release = draft.holdBack([held]);
    expect(draft.takeEarly()?.contextBoxes).toMatchObject([{ id: free }]);
    expect(draft.takeEarly()).toBeUndefined();
    expect([...draft.boxTokens().keys()]).toEqual([held]);
    release();
    expect(draft.takeEarly()?.contextBoxes).toMatchObject([{ id: held }]);
  });
});

test('a batch has its new members that are made here, and is due when all of them have ended', () => {
  const draft = start();
  const turns = [turn(newId<'box'>()), turn(newId<'box'>())];
  addTurns(draft, ...turns);
  const ids = turns.map(({ row }) => row.id);
  const [open, due] = [batch(ids), batch([newId<'turn'>()], 0)];
  draft.addBatch({ batch: open, members: { isWaitedFor: true, warmTurnId: ids[0] }, runIds: [runId] });
  draft.addBatch({ batch: due, members: undefined, runIds: [runId, newId<'run'>()] });
  expect(draft.rows.turns).toMatchObject(
    ids.map((id) => ({ id, batchIds: [open.id], isWaitedFor: true, warmTurnId: ids[0] })),
  );
  expect(draft.outcome).toMatchObject({ turnIds: ids, dueBatchIds: [due.id] });
  expect(new Map<string, RunId>(draft.runs)).toEqual(
    new Map([...ids, open.id].map((id): [string, RunId] => [id, runId])),
  );
});
