import type { TurnId } from '@boxcar/kernel';
import { waitFor } from '@boxcar/testkit';
import { describe, expect, test } from 'vitest';
import { z } from 'zod';
import { statementsOf } from '../testing/count-statements.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';

interface Gate {
  readonly opened: Promise<void>;
  open(): void;
}

function gate(): Gate {
  let open = (): void => undefined;
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { opened, open: () => open() };
}

/** A turn that calls `slow` and `pay` in one step. `slow` returns when the gate opens. */
async function calling(h: Harness, slow: Gate) {
  const paid: string[] = [];
  const input = z.strictObject({});
  h.runtime.registerTool({
    name: 'slow',
    description: 'Takes its time.',
    input,
    retry: 'safe',
    run: async () => {
      await slow.opened;
      return 'slow';
    },
  });
  h.runtime.registerTool({
    name: 'pay',
    description: 'Pays.',
    input,
    retry: 'never',
    run: async (_input, { toolCallId }) => {
      paid.push(toolCallId);
      return 'paid';
    },
  });
  await h.profile(
    'payer',
    [{ calls: ['slow', 'pay'].map((tool) => ({ tool, arguments: {} })) }, { say: 'done' }],
    { tools: ['slow', 'pay'] },
  );
  const launch = async (): Promise<TurnId> =>
    (
      (await h.runtime.submit('launch_principal', { profile_name: 'payer', instruction: 'go' })) as {
        turn_id: TurnId;
      }
    ).turn_id;
  const callsOf = (turnId: TurnId) =>
    h.rows<{ name: string; status: string }>(
      'select name, status from boxcar.tool_calls where turn_id = $1 order by ordinal',
      [turnId],
    );
  const resultsOf = (turnId: TurnId) =>
    h.rows<{ name: string; result: string }>(
      `select c.content->>'name' as name, c.content->>'result' as result from boxcar.tape_entries e join boxcar.cards c on c.id = e.card_id
       where e.turn_id = $1 and e.kind = 'tool_result' order by e.position`,
      [turnId],
    );
  return { launch, callsOf, resultsOf, paid };
}

const PAID = [
  { name: 'slow', status: 'pending' },
  { name: 'pay', status: 'success' },
];
const RESULTS = [
  { name: 'slow', result: 'slow' },
  { name: 'pay', result: 'paid' },
];

describe('a result that arrives while another call of its step runs', () => {
  test('is recorded at once, and is on the tape in call order after the last result', async () => {
    await using h = await harness();
    const slow = gate();
    const { launch, callsOf, resultsOf } = await calling(h, slow);
    await h.worker();
    const turnId = await launch();
    await waitFor(async () => (await callsOf(turnId))[1]?.status === 'success', {
      message: 'the payment is recorded',
    });
    expect(await callsOf(turnId)).toEqual(PAID);
    expect(await resultsOf(turnId)).toEqual([]);
    slow.open();
    expect(await h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
    expect(await resultsOf(turnId)).toEqual(RESULTS);
    await checkInvariants(h.database.pool);
  });

  test('is kept when its worker ends before the other call returns', async () => {
    await using h = await harness();
    const slow = gate();
    const { launch, callsOf, resultsOf, paid } = await calling(h, slow);
    const first = await h.worker({ sweepMs: 3_600_000 });
    const turnId = await launch();
    await waitFor(async () => (await callsOf(turnId))[1]?.status === 'success', {
      message: 'the payment is recorded',
    });
    await first.close({ graceMs: 0 });
    slow.open();
    await h.worker();
    expect(await h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
    expect(await resultsOf(turnId)).toEqual(RESULTS);
    expect(paid).toHaveLength(1);
    await checkInvariants(h.database.pool);
  });
});

test('results that arrive together are recorded by the statement that opens the next step', async () => {
  await using h = await harness();
  const open = gate();
  open.open();
  const { launch } = await calling(h, open);
  await h.worker({ sweepMs: 3_600_000, heartbeatMs: 3_600_000, leaseMs: 3_600_000 });
  const runOne = async (): Promise<void> => {
    await h.runtime.waitForTurn(await launch(), { timeoutMs: 60_000 });
  };
  await runOne();
  const statements = await statementsOf(h.database, runOne);
  const recordings = statements.filter((text) => /update boxcar\.tool_calls/.test(text));
  expect(recordings).toHaveLength(1);
  expect(recordings[0]).toContain('insert into boxcar.steps');
});
