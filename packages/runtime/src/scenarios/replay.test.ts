/**
 * Every provider accepts every prompt that the test scenarios make. With `BOXCAR_KEEP_PROMPTS`, the prompts that other tests have kept in
 * that folder are checked too (docs/explanation/testing.md).
 */
import { waitFor } from '@boxcar/testkit';
import { expect, test } from 'vitest';
import { persistentClient } from '../testing/faults/client.js';
import { concludeScene, countUnfinished, watcherOf } from '../testing/faults/conclude.js';
import { Lane } from '../testing/faults/lane.js';
import { castOf, type Scenario } from '../testing/faults/scenario.js';
import { delegations, overflows, tapeCommands, tools } from '../testing/faults/scenarios.js';
import { retries } from '../testing/faults/scenarios-ends.js';
import { erasures } from '../testing/faults/scenarios-erasure.js';
import {
  collectLater,
  failFast,
  forkJoin,
  minSuccess,
  nestedForkJoin,
} from '../testing/faults/scenarios-joins.js';
import { oddPrompts } from '../testing/faults/scenarios-prompts.js';
import { handoffs } from '../testing/faults/scenarios-tape.js';
import { tapeFiles } from '../testing/faults/scenarios-tape-files.js';
import { notifyParent } from '../testing/faults/scenarios-tapes.js';
import { type KeptPrompt, keepingPrompts, readKeptPrompts } from '../testing/kept-prompts.js';
import { distinctPrompts, replayPrompts } from '../testing/replay-prompts.js';

const SCENARIOS: readonly Scenario[] = [
  oddPrompts,
  tools,
  delegations,
  tapeCommands,
  overflows,
  retries,
  forkJoin,
  nestedForkJoin,
  collectLater,
  failFast,
  minSuccess,
  handoffs,
  tapeFiles,
  notifyParent,
  erasures,
];

/** Runs a scenario to its end, without faults. */
async function play({ database, rescuer }: Lane, scenario: Scenario): Promise<void> {
  await scenario.drive(
    persistentClient(() => rescuer),
    watcherOf(database.pool),
  );
  await waitFor(
    async () => {
      await rescuer.sweep(60_000);
      return (await countUnfinished(database.pool)) === 0;
    },
    { message: `${scenario.name} has ended`, deadlineMs: 60_000 },
  );
  await concludeScene(database.pool, scenario);
}

const KEPT = readKeptPrompts();
const timeout = 120_000 + KEPT.length * 1_000;

test('every prompt of the scenarios is accepted by every provider', { timeout }, async () => {
  const prompts: KeptPrompt[] = [...KEPT];
  await using lane = await Lane.open({
    cast: castOf(SCENARIOS),
    model: (model) => keepingPrompts(model, (prompt) => prompts.push(prompt)),
  });
  for (const scenario of SCENARIOS) {
    await lane.reset(scenario);
    await play(lane, scenario);
  }
  const distinct = distinctPrompts(prompts);
  // Texts that must occur in the prompts; otherwise the test would prove nothing.
  const all = JSON.stringify(distinct);
  const expected = [
    '[Anchor created: auto_handoff',
    '[Anchor created: half',
    'I begin.',
    'called ',
    '9.page-turn',
    '{broken',
    'a picture',
  ];
  expect(expected.filter((words) => !all.includes(words))).toEqual([]);
  expect(distinct.length).toBeGreaterThan(80);
  expect(await replayPrompts(distinct)).toEqual([]);
});
