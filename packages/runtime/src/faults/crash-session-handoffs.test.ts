/**
 * Sessions are handed on, approved and fetched by processes that die, or lose a connection, at each of their statements. Each operation is
 * done as a whole or not at all, and the repeated request leads to one handoff with one anchor.
 */
import type { TicketId } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { PermissionEvaluator } from '@boxcar/policy';
import { createPool, isTransient } from '@boxcar/store';
import { type StatementFault, statementProxy } from '@boxcar/testkit';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { ApprovalGate } from '../approval/index.js';
import type { HandoffRuntime } from '../handoff/index.js';
import {
  acceptHandoff,
  completeHandoff,
  type HandoffSessions,
  openHandoffSessions,
  requestHandoff,
} from '../handoff-session/index.js';
import { InProcessDoorbell } from '../queue/doorbell-in-process.js';
import { Runtime } from '../runtime.js';
import { untilAborted } from '../testing/faults/client.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';

const POLICY = `
tools:
  handoff: { permission: ALWAYS }
rules:
  - { condition: { context: { target_agent: carol } }, permission: REQUIRE_APPROVAL }
`;

/** Statement by statement, the cuts take turns among these ways. With BOXCAR_FAULTS=all, each statement is cut in all of them. */
const MOMENTS: readonly Omit<StatementFault, 'at'>[] = [
  { scope: 'process', when: 'after' },
  { scope: 'connection', when: 'after' },
  { scope: 'process', when: 'before' },
  { scope: 'connection', when: 'before' },
];

let h: Harness;
let witness: HandoffSessions;
let n = 0;

beforeAll(async () => {
  h = await harness({ permissionEvaluator: new PermissionEvaluator({ text: POLICY }), approvalMs: 600_000 });
  await h.profile('idle', [{ say: 'done' }], { worker_target: 'nowhere' });
  for (const agent_id of ['bob', 'carol'])
    await h.runtime.submit('provision_agent', { action: 'create', profile_name: 'idle', agent_id });
  witness = await openHandoffSessions(h.runtime);
});
afterAll(async () => {
  await checkInvariants(h.database.pool, { isSettled: false });
  await h[Symbol.asyncDispose]();
});

type Work = (runtime: HandoffRuntime) => Promise<unknown>;

interface Life {
  readonly statements: readonly string[];
}

/** Runs the work in a process of its own, which is cut. */
async function live(work: Work, fault?: StatementFault): Promise<Life> {
  await using proxy = await statementProxy(h.database.url, fault);
  const pool = createPool({ connectionString: proxy.url, max: 1 });
  const runtime = new Runtime({
    pool,
    directUrl: h.database.url,
    doorbell: new InProcessDoorbell(),
    model: createModelRouter({}),
    permissionEvaluator: new PermissionEvaluator({ text: POLICY }),
    approvalMs: 600_000,
  });
  try {
    await untilAborted(work(runtime), proxy.life).catch((error: unknown) => {
      if (!proxy.isDead && !isTransient(error)) throw error;
    });
    return { statements: proxy.statements };
  } finally {
    await runtime.close();
    await pool.end();
  }
}

async function open(): Promise<string> {
  const session_key = `s-${++n}`;
  await witness.register({ session_key, agent_from: 'claude' });
  return session_key;
}

const ask = (session_key: string, target_agent: string) => ({
  session_key,
  target_agent,
  request_type: 'full_handoff',
  idempotency_key: session_key,
});

const requestTo =
  (target: string) =>
  (session_key: string): Work =>
  (runtime) =>
    requestHandoff(runtime, ask(session_key, target));

/** The state of the session and its handoff, to compare a cut run with an uncut run. */
async function made(session_key: string) {
  const [row] = await h.rows(
    `select s.status, s.system_count as entries, h.phase, h.session_head is not null as is_handed, h.turn_id is not null as has_turn, h.result_card_id is not null as has_result,
       (select count(*)::int from boxcar.handoffs o where o.session_id = s.id) as handoffs,
       (select count(*)::int from boxcar.tape_entries e where e.box_id = s.tape_box_id and e.kind = 'anchor') as anchors,
       (select count(*)::int from boxcar.grants g where g.box_id = s.tape_box_id) as grants
     from boxcar.handoff_sessions s left join boxcar.handoffs h on h.session_id = s.id where s.session_key = $1`,
    [session_key],
  );
  return row;
}

interface Case {
  readonly prepare?: (session_key: string) => Promise<void>;
  readonly work: (session_key: string) => Work;
  /** The work that continues after the cut. Default: the same work again. */
  readonly finish?: (session_key: string) => Work;
  /** The state before and after the work; no state between them is allowed. */
  readonly before: object;
  readonly after: object;
}

const NOTHING = { status: 'active', entries: 1, handoffs: 0, anchors: 1, grants: 0 };
const HANDED = { status: 'completed', entries: 2, handoffs: 1, anchors: 2, is_handed: true };
const idOf = async (session_key: string, column = 'id'): Promise<string> => {
  const [row] = await h.rows(
    `select h.${column} as id from boxcar.handoffs h join boxcar.handoff_sessions s on s.id = h.session_id where s.session_key = $1`,
    [session_key],
  );
  return String(row?.id);
};
const prepared =
  (target: string, ...more: readonly ((session_key: string) => Promise<unknown>)[]) =>
  async (session_key: string): Promise<void> => {
    await requestHandoff(h.runtime, ask(session_key, target));
    for (const step of more) await step(session_key);
  };
const accept = async (session_key: string): Promise<unknown> =>
  acceptHandoff(h.runtime, { handoff_id: await idOf(session_key) });

const CASES: Readonly<Record<string, Case>> = {
  'a request for an agent': {
    work: requestTo('bob'),
    before: NOTHING,
    after: { ...HANDED, grants: 1, has_turn: true, phase: 'pending' },
  },
  'a request for a target that does not exist': {
    work: requestTo('elsewhere'),
    before: NOTHING,
    after: { ...HANDED, grants: 0, has_turn: false, phase: 'pending' },
  },
  'an approval': {
    prepare: prepared('carol'),
    work: (session_key) => async (runtime) =>
      new ApprovalGate({ runtime }).approve(await idOf(session_key, 'ticket_id')),
    // A decision cannot be repeated. A sweep carries out the decision that was made.
    finish: (session_key) => async (runtime) => {
      const ticketId = (await idOf(session_key, 'ticket_id')) as TicketId;
      const [ticket] = await h.rows('select status from boxcar.approvals where id = $1', [ticketId]);
      if (ticket?.status === 'pending') await new ApprovalGate({ runtime }).approve(ticketId);
      else await runtime.handoffs.decided(ticketId);
    },
    before: { ...NOTHING, handoffs: 1, phase: 'awaiting_approval' },
    after: { ...HANDED, grants: 1, has_turn: true, phase: 'queued' },
  },
  'a package that is accepted': {
    prepare: prepared('elsewhere'),
    work: (session_key) => async (runtime) => acceptHandoff(runtime, { handoff_id: await idOf(session_key) }),
    before: { ...HANDED, phase: 'pending' },
    after: { ...HANDED, phase: 'in_progress' },
  },
  'a package that is completed': {
    prepare: prepared('elsewhere', accept),
    work: (session_key) => async (runtime) =>
      completeHandoff(runtime, { handoff_id: await idOf(session_key), result: { done: true } }),
    before: { ...HANDED, phase: 'in_progress', has_result: false },
    after: { ...HANDED, phase: 'completed', has_result: true },
  },
};

test.each(Object.entries(CASES))(
  '%s that is cut at any of its statements is done completely or not at all, and in the end once',
  async (_name, { prepare, work, finish, before, after }) => {
    const play = async (fault?: StatementFault): Promise<Life> => {
      const session_key = await open();
      await prepare?.(session_key);
      expect(await made(session_key)).toMatchObject(before);
      const life = await live(work(session_key), fault);
      const now = await made(session_key);
      expect([expect.objectContaining(before), expect.objectContaining(after)]).toContainEqual(now);
      await (finish ?? work)(session_key)(h.runtime);
      expect(await made(session_key)).toMatchObject(after);
      return life;
    };
    const { statements } = await play();
    expect(statements.length).toBeGreaterThan(5);
    const isAll = process.env.BOXCAR_FAULTS === 'all';
    for (const at of statements.keys())
      for (const moment of isAll ? MOMENTS : [MOMENTS[at % MOMENTS.length]])
        if (moment !== undefined) await play({ at: at + 1, ...moment });
  },
  180_000,
);
