import {
  type AgentId,
  type BoxId,
  buildView,
  isJsonObject,
  parseId,
  promptHash,
  type TurnId,
} from '@boxcar/kernel';
import { createWorker, newId } from '@boxcar/runtime';
import { toRows } from '@boxcar/runtime/internal';
import { loadViews } from '@boxcar/store';
import { PROFILE } from '../boxcar/system.js';
import { insertBox, readCards } from '../floor/rows.js';
import type { Bench, Figures } from '../suite.js';
import { ANSWER, PROMPT } from '../system.js';
import { type Boxes, benchSizes, type World } from './world.js';

/** The maximum number of messages around the inherited cards: instructions, parent line, instruction, answer, and its continuation. */
const AROUND = 5;

interface EndedTurn {
  readonly turnId: TurnId;
  readonly agentId: AgentId;
  readonly contextBoxId: BoxId;
}

/**
 * The work of a worker before each model call: it loads the rows of the view, builds the messages, and hashes the prompt. The floor reads
 * the same cards in one plain join.
 */
export const benchView = (bench: Bench): Promise<Figures> =>
  benchSizes(bench, 'view', async (world, boxes) => {
    const floorId = newId();
    await insertBox(world.pool, floorId, boxes.cardIds);
    const turn = await runTurn(world, boxes);
    const count = boxes.cardIds.length;
    return { boxcar: () => viewOnce(world, turn, count), floor: () => readBare(world, floorId, count) };
  });

/** An ended turn with all cards in its context: its tape and its context do not change any more. */
async function runTurn({ runtime }: World, boxes: Boxes): Promise<EndedTurn> {
  await using _worker = await createWorker(runtime);
  const turn = await runtime.submit('delegate_async', {
    target_strategy: 'new',
    target_ref: PROFILE.name,
    instruction: PROMPT,
    context_box_id: [...boxes.ids],
    wait: true,
  });
  if (!isJsonObject(turn) || turn.status !== 'success' || turn.result !== ANSWER)
    throw new Error(`a turn ended as ${JSON.stringify(turn)}`);
  return {
    turnId: parseId<'turn'>(String(turn.turn_id), 'turn_id'),
    agentId: parseId<'agent'>(String(turn.agent_id), 'agent_id'),
    contextBoxId: parseId<'box'>(String(turn.context_box_id), 'context_box_id'),
  };
}

async function viewOnce({ pool }: World, turn: EndedTurn, count: number): Promise<void> {
  const rows = (await loadViews(pool, [turn])).get(turn.turnId);
  if (rows === undefined) throw new Error(`turn ${turn.turnId} has no view`);
  const profile = { instructions: PROFILE.instructions, tools: [], must_end_with: [] };
  const { messages } = buildView({ ...toRows(rows), turn, profile });
  promptHash(messages, []);
  if (messages.length < count || messages.length > count + AROUND)
    throw new Error(`a view of ${count} cards has ${messages.length} messages`);
}

async function readBare({ pool }: World, boxId: string, count: number): Promise<void> {
  const rows = await readCards(pool, boxId);
  if (rows.length !== count) throw new Error(`read ${rows.length} cards instead of ${count}`);
}
