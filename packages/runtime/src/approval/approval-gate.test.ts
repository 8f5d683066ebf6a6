/** Decisions, lists and waits, with invalid input and with a busy database. */
import { KernelError, type TurnId } from '@boxcar/kernel';
import { waitFor } from '@boxcar/testkit';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { z } from 'zod';
import { Sweeper } from '../sweep/sweeper.js';
import { type Harness, harness } from '../testing/harness.js';
import { ApprovalGate } from './approval-gate.js';

let h: Harness;
let gate: ApprovalGate;

beforeEach(async () => {
  h = await harness();
  gate = new ApprovalGate({ runtime: h.runtime });
  h.runtime.registerTool({
    name: 'pay',
    description: 'Pays.',
    requiresApproval: true,
    input: z.object({}),
    run: () => ({ paid: true }),
  });
  await h.profile('payer', [{ calls: [{ tool: 'pay', arguments: {} }] }, { say: 'done' }], {
    tools: ['pay'],
  });
});
afterEach(async () => {
  await h[Symbol.asyncDispose]();
});

/** A turn that waits for an approval, and its ticket. */
async function parked(): Promise<{ readonly turnId: TurnId; readonly ticketId: string }> {
  const { turn_id: turnId } = (await h.runtime.submit('launch_principal', {
    profile_name: 'payer',
    instruction: 'go',
  })) as { turn_id: TurnId };
  await waitFor(
    async () =>
      (await h.rows("select from boxcar.turns where id = $1 and status = 'suspended'", [turnId])).length ===
      1,
    { message: 'the turn waits' },
  );
  const [row] = await h.rows<{ id: string }>('select id from boxcar.approvals where turn_id = $1', [turnId]);
  return { turnId, ticketId: row?.id ?? '' };
}
const sweep = (): Promise<void> =>
  new Sweeper(h.runtime, {
    lostRingMs: 3_600_000,
    claimFromRows: async () => undefined,
    wakeProvider: async () => undefined,
  }).sweep();
/** Keeps the row of a turn locked while `work` runs. */
async function whileLocked(turnId: TurnId, work: () => Promise<void>): Promise<void> {
  const other = await h.database.pool.connect();
  try {
    await other.query('begin');
    await other.query('select from boxcar.turns where id = $1 for update', [turnId]);
    await work();
  } finally {
    await other.query('rollback');
    other.release();
  }
}

test('a decision counts although its turn cannot be woken, and a sweep wakes the turn later', async () => {
  await h.worker({ sweepMs: 3_600_000 });
  const { turnId, ticketId } = await parked();
  await whileLocked(turnId, async () => {
    expect(await gate.approve(ticketId)).toMatchObject({ status: 'approved' });
  });
  expect(h.log.map(({ event }) => event)).toContain('approval.not_woken');
  await h.rows("update boxcar.approvals set resolved_at = now() - interval '1 minute'");
  await sweep();
  expect(await h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
});

test('a locked turn does not prevent a sweep from waking other turns', async () => {
  const worker = await h.worker({ sweepMs: 3_600_000 });
  const [one, other] = [await parked(), await parked()];
  await worker.close();
  await h.rows(
    "update boxcar.approvals set status = 'denied', resolved_at = now() - interval '1 minute', resolved_by = 'x'",
  );
  await whileLocked(one.turnId, sweep);
  expect(await h.rows("select id from boxcar.turns where status = 'dispatched'")).toEqual([
    { id: other.turnId },
  ]);
});

test('a wait ends when the time of its ticket is over, even where no worker runs', async () => {
  const worker = await h.worker();
  const { turnId, ticketId } = await parked();
  await worker.close();
  await h.rows("update boxcar.approvals set expires_at = now() - interval '1 second'");
  expect(await gate.wait(ticketId)).toMatchObject({ status: 'expired' });
  expect(await h.rows('select status from boxcar.turns where id = $1', [turnId])).toEqual([
    { status: 'dispatched' },
  ]);
});

test('a wait ends with the reason of its signal', async () => {
  await h.worker();
  const { ticketId } = await parked();
  const reason = new KernelError('canceled', { message: 'enough' });
  await expect(gate.wait(ticketId, { signal: AbortSignal.abort(reason) })).rejects.toBe(reason);
  const controller = new AbortController();
  const waiting = gate.wait(ticketId, { signal: controller.signal });
  setImmediate(() => controller.abort(reason));
  await expect(waiting).rejects.toBe(reason);
});

test('a decision with invalid fields is refused, and decides nothing', async () => {
  await h.worker();
  const { ticketId } = await parked();
  const person = { id: 'chief', kind: 'person', scopes: ['approvals:write'] };
  for (const wrong of [
    { reason: 'a\0' },
    { reason: 5 },
    { reason: ' ' },
    { principal: null },
    { principal: { ...person, kind: 'robot' } },
    { principal: { ...person, scopes: 'approvals:write' } },
    { principal: { id: 'chief', kind: 'person' } },
    { principal: { ...person, id: 'a\0' } },
    { response: 'yes' },
    { response: { amount: 1n } },
    { response: { text: '\0' } },
    { because: 'x' },
  ])
    await expect(
      gate.approve(ticketId, wrong as never),
      JSON.stringify(Object.keys(wrong)),
    ).rejects.toMatchObject({
      code: 'bad_request',
    });
  expect(await gate.get(ticketId)).toMatchObject({ status: 'pending' });
  await gate.deny(ticketId, { principal: { ...person, api_key: 'sk' } as never });
  expect(await h.rows('select principal from boxcar.approvals')).toEqual([{ principal: person }]);
});

test.each([
  { cursor: `approvals:${'9'.repeat(27)}:01890a5d-ac96-774b-bcce-b302099a8057` },
  { cursor: 'approvals:2026-02-30T00:00:00.000000Z:01890a5d-ac96-774b-bcce-b302099a8057' },
  { cursor: `approvals:2026-01-01T00:00:00.000000Z:${'-'.repeat(36)}` },
  { run_id: 'a\0' },
  { agent: '\ud800' },
])('a list with the filter %j is refused', async (options) => {
  await expect(gate.list(options)).rejects.toMatchObject({ code: 'bad_request' });
});

test('a ticket names the card of its arguments, which an erasure can take', async () => {
  await h.worker();
  const { ticketId } = await parked();
  const { card_id } = (await gate.get(ticketId)).metadata;
  await h.rows("select boxcar.erase_cards(array[$1]::uuid[], 'asked for')", [card_id]);
  expect((await gate.get(ticketId)).tool_args).toEqual({ erased: true });
});
