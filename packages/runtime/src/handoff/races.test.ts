/** Decisions that meet each other, from two runtimes on one database: one of them counts, and the handoff runs once or never. */
import { createModelRouter } from '@boxcar/llm';
import { PermissionEvaluator } from '@boxcar/policy';
import { createPool } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { ApprovalGate } from '../approval/index.js';
import { InProcessDoorbell } from '../queue/doorbell-in-process.js';
import { Runtime } from '../runtime.js';
import { checkWire } from '../testing/check-wire.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { HandoffTool } from './handoff-tool.js';

const ROUNDS = 200;
/** Rounds at once: more of them meet, and the machine is busy. */
const AT_ONCE = 20;

const permissionEvaluator = new PermissionEvaluator({
  text: 'tools:\n  handoff: { permission: REQUIRE_APPROVAL }\n',
  environment: 'production',
});

let h: Harness;
let gates: readonly [ApprovalGate, ApprovalGate];
let tool: HandoffTool;
const closers: (() => Promise<unknown>)[] = [];

beforeAll(async () => {
  h = await harness({ connections: 8, permissionEvaluator });
  // Another process, as far as the rows can tell: it shares nothing with the first.
  const pool = createPool({ connectionString: h.database.url });
  const other = new Runtime({
    pool,
    directUrl: h.database.url,
    doorbell: new InProcessDoorbell(),
    model: createModelRouter({}),
    permissionEvaluator,
  });
  closers.push(
    () => other.close(),
    () => pool.end(),
  );
  gates = [new ApprovalGate({ runtime: h.runtime }), new ApprovalGate({ runtime: other })];
  tool = new HandoffTool({ runtime: h.runtime, concurrency: 0 });
  await h.profile('helper', [{ say: 'helped' }]);
  await h.worker();
});
afterAll(async () => {
  await checkInvariants(h.database.pool);
  await checkWire(h.runtime);
  for (const close of closers) await close();
  await h[Symbol.asyncDispose]();
});

type Round = (ticketId: string) => readonly Promise<unknown>[];

/** Meets in every round; returns how many rounds each ticket status had. */
async function rounds(name: string, meet: Round): Promise<Readonly<Record<string, number>>> {
  const run = async (round: number): Promise<{ readonly said: string[]; readonly handoffId: string }> => {
    const { handoff_id: handoffId, ticket_id: ticketId = '' } = await tool.handoff({
      source_agent: 'main',
      target_agent: 'helper',
      task: `do ${round}`,
      run_id: name,
      wait: false,
    });
    const settled = await Promise.allSettled(meet(ticketId));
    return { handoffId, said: settled.map(({ status }) => status) };
  };
  const all: Awaited<ReturnType<typeof run>>[] = [];
  for (let first = 0; first < ROUNDS; first += AT_ONCE)
    all.push(...(await Promise.all(Array.from({ length: AT_ONCE }, (_, n) => run(first + n)))));
  for (const { handoffId } of all) await tool.waitForHandoff(handoffId, { timeoutMs: 60_000 });
  const rows = await h.rows<{ id: string; ticket: string; phase: string; consumed: boolean; turns: number }>(
    `select h.id, a.status as ticket, h.phase, a.consumed_at is not null as consumed, (select count(*)::int from boxcar.turns t where t.context_box_id = h.context_box_id) as turns
     from boxcar.handoffs h join boxcar.approvals a on a.id = h.ticket_id where h.run_id = $1`,
    [name],
  );
  expect(rows).toHaveLength(ROUNDS);
  const found = new Map(rows.map(({ id, ...rest }) => [id, rest]));
  for (const { handoffId } of all) {
    const row = found.get(handoffId);
    const isApproved = row?.ticket === 'approved';
    expect(row).toEqual({
      ticket: isApproved ? 'approved' : expect.stringMatching(/^(denied|expired)$/),
      phase: isApproved ? 'completed' : 'rejected',
      consumed: isApproved,
      turns: isApproved ? 1 : 0,
    });
  }
  const counts: Record<string, number> = {};
  for (const { ticket } of rows) counts[ticket] = (counts[ticket] ?? 0) + 1;
  // One of both decisions was heard each time, an expiry says nothing.
  expect(all.filter(({ said }) => !said.includes('fulfilled'))).toEqual([]);
  return { ...counts, winners: all.flatMap(({ said }) => said.filter((one) => one === 'fulfilled')).length };
}

const LIMIT = { timeout: 300_000 };
/** Each of both begins first in half of the rounds. */
const either = <T>(a: () => T, b: () => T): readonly T[] => {
  if (Math.random() < 0.5) return [a(), b()];
  const second = b();
  return [a(), second];
};

test('an approval and a refusal', LIMIT, async () => {
  const {
    approved = 0,
    denied = 0,
    winners,
  } = await rounds('approve-deny', (id) =>
    either(
      () => gates[0].approve(id),
      () => gates[1].deny(id, { reason: 'no' }),
    ),
  );
  expect([approved + denied, winners]).toEqual([ROUNDS, ROUNDS]);
  // They did meet: neither is always first.
  expect(Math.min(approved, denied)).toBeGreaterThan(0);
});

test('two approvals', LIMIT, async () => {
  const { approved, winners } = await rounds('approve-approve', (id) =>
    either(
      () => gates[0].approve(id),
      () => gates[1].approve(id),
    ),
  );
  expect([approved, winners]).toEqual([ROUNDS, ROUNDS]);
});

test('an approval and the end of the time', LIMIT, async () => {
  // Other tickets of the same moment are not due: each round ends the time of its own.
  const expire = async (id: string): Promise<void> => {
    await h.rows('update boxcar.approvals set expires_at = now() where id = $1 and status = $2', [
      id,
      'pending',
    ]);
    await gates[1].expireDue();
  };
  const { approved = 0, expired = 0 } = await rounds('approve-expiry', (id) =>
    either<Promise<unknown>>(
      () => gates[0].approve(id),
      () => expire(id),
    ),
  );
  expect(approved + expired).toBe(ROUNDS);
  expect(Math.min(approved, expired)).toBeGreaterThan(0);
});

test('no ticket was consumed twice, and no turn belongs to two handoffs', async () => {
  await waitFor(async () => (await h.rows('select from boxcar.turns where ended_at is null')).length === 0, {
    message: 'all turns have ended',
  });
  const [row] = await h.rows<{ consumed: number; turns: number; begun: number }>(
    `select (select count(*)::int from boxcar.approvals where consumed_at is not null) as consumed, (select count(*)::int from boxcar.turns) as turns,
       (select count(distinct turn_id)::int from boxcar.handoffs where turn_id is not null) as begun`,
  );
  expect(row?.consumed).toBeGreaterThan(ROUNDS);
  expect([row?.turns, row?.begun]).toEqual([row?.consumed, row?.consumed]);
});
