/** Questions about a turn whose prompts are too long to be kept all at once. */
import type { TurnId } from '@boxcar/kernel';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { z } from 'zod';
import { SLICE_CHARACTERS } from '../lib/in-slices.js';
import { statementsOf } from '../testing/count-statements.js';
import { type Harness, harness } from '../testing/harness.js';
import { TurnPrompts } from './turn-prompts.js';

const LOOKS = 48;

let h: Harness;
let turnId: TurnId;
let prompts: TurnPrompts;
/** Characters in the messages of all prompts. */
let characters: number;

beforeAll(async () => {
  h = await harness();
  h.runtime.registerTool({
    name: 'look',
    description: 'Looks.',
    input: z.strictObject({ at: z.number() }),
    isReadOnly: true,
    run: ({ at }) => ({ text: `At ${at} it says:\n${`line ${at} and no more\n`.repeat(220)}` }),
  });
  const looks = Array.from({ length: LOOKS }, (_none, at) => ({
    calls: [{ tool: 'look', arguments: { at } }],
  }));
  await h.profile('reader', [...looks, { say: 'ok' }], { tools: ['look'], limits: { max_steps: 60 } });
  const worker = await h.worker();
  const launched = await h.runtime.submit('launch_principal', {
    profile_name: 'reader',
    instruction: 'Read.',
  });
  turnId = (launched as { turn_id: TurnId }).turn_id;
  await h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });
  await worker.close();
  prompts = await TurnPrompts.load(h.database.pool, turnId, { project: 'default', allSteps: true });
  characters = prompts.steps
    .flatMap((step) => prompts.explain({ step }).messages)
    .reduce((sum, { content }) => sum + content.length, 0);
});
afterAll(() => h[Symbol.asyncDispose]());

/** Counts, until it is stopped, how often the process is free for other work. */
function countTurns(onTurn: (turns: number) => void = () => undefined) {
  const counted = { turns: 0, stop: () => clearImmediate(next) };
  const turn = (): void => {
    counted.turns += 1;
    onTurn(counted.turns);
    next = setImmediate(turn);
  };
  let next = setImmediate(turn);
  return counted;
}

test('a text that does not occur is searched for in slices, and the process does other work between slices', async () => {
  expect(characters).toBeGreaterThan(5_000_000);
  const counted = countTurns();
  const answer = await prompts.why('line 3 and no more of these');
  counted.stop();
  expect(answer).toMatchObject({
    outcome: 'not_found',
    searched_steps: { length: LOOKS + 1 },
    hints: [{ kind: 'nearest', step: 5, text: 'line 3 and no more' }],
  });
  // Each prompt is built and searched twice: exactly, and ignoring white space and escapes.
  expect(counted.turns).toBeGreaterThan((2 * characters) / SLICE_CHARACTERS);
});

test('a search also finds texts in prompts that were not kept, and gives the same answer again', async () => {
  for (const _time of [1, 2]) {
    expect(await prompts.why(`At ${LOOKS - 1} it says`)).toMatchObject({
      outcome: 'found',
      match: 'exact',
      step: LOOKS + 1,
      steps: [LOOKS + 1],
      verified: true,
      place_count: 1,
      places: [{ parts: [{ rule: 'result', card: { place: { kind: 'tape', step: LOOKS } } }] }],
    });
  }
  const often = await prompts.why('line 0 and');
  expect(often).toMatchObject({
    step: 2,
    steps: { length: LOOKS },
    place_count: 220,
    places: { length: 20 },
  });
});

test('a signal ends the search between two slices, with its reason', async () => {
  const stop = new AbortController();
  const reason = new Error('enough');
  const counted = countTurns((turns) => {
    if (turns === 5) stop.abort(reason);
  });
  await expect(prompts.why('a text that is nowhere', { signal: stop.signal })).rejects.toBe(reason);
  counted.stop();
  expect(counted.turns).toBeLessThan(10);
  await expect(h.runtime.why(turnId, 'line', { signal: stop.signal })).rejects.toBe(reason);
});

test('the turn is read in the same number of statements as a short turn', async () => {
  expect(await statementsOf(h.database, () => h.runtime.why(turnId, 'line 3'))).toHaveLength(12);
});
