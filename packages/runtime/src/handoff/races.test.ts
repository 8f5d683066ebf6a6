/** Races between decisions of two runtimes on one database: one decision counts, and the handoff runs once or never. */
import type { TicketId, TurnId } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { PermissionEvaluator } from '@boxcar/policy';
import { createPool } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { ApprovalGate } from '../approval/index.js';
import { InProcessDoorbell } from '../queue/doorbell-in-process.js';
import { Runtime } from '../runtime.js';
import { checkWire } from '../testing/check-wire.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { HandoffTool } from './handoff-tool.js';

const ROUNDS = 200;
/** Rounds that run at once: decisions overlap more often, and the machine is busy. */
const AT_ONCE = 20;

const permissionEvaluator = new PermissionEvaluator({
  text: 'tools:\n  handoff: { permission: REQUIRE_APPROVAL }\n',
  environment: 'production',
});

let h: Harness;
let gates: readonly [ApprovalGate, ApprovalGate];
let tool: HandoffTool;
let other: Runtime;
let otherPool: pg.Pool;
const closers: (() => Promise<unknown>)[] = [];

beforeAll(async () => {
  h = await harness({ connections: 8, permissionEvaluator, handoffs: { enabled: true } });
  // Another process, as far as the rows can tell: it shares nothing with the first runtime.
  otherPool = createPool({ connectionString: h.database.url });
  other = new Runtime({
    pool: otherPool,
    directUrl: h.database.url,
    doorbell: new InProcessDoorbell(),
    model: createModelRouter({}),
    permissionEvaluator,
  });
  closers.push(
    () => other.close(),
    () => otherPool.end(),
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

/** Runs the race in every round. Returns how many rounds ended with each ticket status. */
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
  // At least one of the two decisions was accepted each time. An expiry reports nothing.
  expect(all.filter(({ said }) => !said.includes('fulfilled'))).toEqual([]);
  return { ...counts, winners: all.flatMap(({ said }) => said.filter((one) => one === 'fulfilled')).length };
}

const LIMIT = { timeout: 300_000 };
/** Holds the next statement with this label. */
function holdNext(label: string): { readonly reached: Promise<void>; release(): void } {
  let release = (): void => undefined;
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  const { query } = pg.Client.prototype;
  const reached = new Promise<void>((resolve) => {
    pg.Client.prototype.query = function (this: pg.Client, ...args: unknown[]): unknown {
      const send = (): unknown => Reflect.apply(query, this, args);
      const text = typeof args[0] === 'string' ? args[0] : (args[0] as { text?: string } | undefined)?.text;
      if (text?.includes(`/* ${label} */`) !== true) return send();
      pg.Client.prototype.query = query;
      resolve();
      return released.then(send);
    } as typeof query;
  });
  return { reached, release: () => release() };
}

/** Each of the two begins first in about half of the rounds. */
const either = <T>(a: () => T, b: () => T): readonly T[] => {
  if (Math.random() < 0.5) return [a(), b()];
  const second = b();
  return [a(), second];
};

test('an approval and a refusal at once give one outcome', LIMIT, async () => {
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
  // The decisions did overlap: each of them was first at least once.
  expect(Math.min(approved, denied)).toBeGreaterThan(0);
});

test('two approvals at once give one outcome', LIMIT, async () => {
  const { approved, winners } = await rounds('approve-approve', (id) =>
    either(
      () => gates[0].approve(id),
      () => gates[1].approve(id),
    ),
  );
  expect([approved, winners]).toEqual([ROUNDS, ROUNDS]);
});

test('an approval and the end of the time at once give one outcome', LIMIT, async () => {
  // Other tickets of the same moment are not due: each round ends the time of its own ticket only.
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

test('no ticket is consumed twice, and no turn belongs to two handoffs', async () => {
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

test(
  'a refusal that arrives after another process has begun the handoff answers no call',
  LIMIT,
  async () => {
    const handing = { tool: 'handoff', arguments: { target_agent: 'helper', task: 'do it' } };
    await h.profile('boss', [{ calls: [handing] }, { say: 'done' }], {
      tools: ['handoff'],
      delegation_policy: { target_profiles: null },
    });
    const { turn_id } = (await h.runtime.submit('launch_principal', {
      profile_name: 'boss',
      instruction: 'go',
    })) as unknown as { turn_id: TurnId };
    const { ticket_id } = await waitFor(
      async () => (await gates[0].list({ status: 'pending' })).approvals[0],
      {
        message: 'the request of the call',
      },
    );
    await waitFor(
      async () =>
        (await h.rows("select from boxcar.turns where id = $1 and status = 'suspended'", [turn_id]))
          .length === 1,
      { message: 'the call waits' },
    );
    // The other process already forbids the handoff, and has not written its refusal yet.
    const forbids = new PermissionEvaluator({
      text: 'tools:\n  handoff: { permission: NEVER }\n',
      environment: 'production',
    });
    Object.assign(other.gate, { evaluator: forbids });
    const held = holdNext('tool-calls.record');
    await h.rows(
      `update boxcar.approvals set status = 'approved', resolved_at = now(), resolved_by = 'operator', principal = '{}' where id = $1`,
      [ticket_id],
    );
    const refusing = other.handoffs.decided(ticket_id as TicketId);
    await held.reached;
    await h.runtime.handoffs.decided(ticket_id as TicketId);
    held.release();
    await refusing;
    Object.assign(other.gate, { evaluator: permissionEvaluator });
    expect(await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 })).toMatchObject({ result: 'done' });
    expect(await h.rows('select k.status from boxcar.tool_calls k where k.turn_id = $1', [turn_id])).toEqual([
      { status: 'success' },
    ]);
  },
);
