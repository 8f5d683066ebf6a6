import { INVARIANTS, inspectInvariants } from '@boxcar/store/report';
import { waitFor } from '@boxcar/testkit';
import pg from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, it, test } from 'vitest';
import { newId } from '../lib/new-id.js';
import type { TurnResult } from '../queue/turn-result.js';
import type { Worker } from '../worker/worker.js';
import { type Harness, harness } from './harness.js';
import { checkInvariants } from './invariants.js';

let h: Harness;
let worker: Worker;
/** A connection on which triggers and foreign keys are disabled. */
let vandal: pg.Client;

beforeAll(async () => {
  h = await harness();
  const ANYONE = { delegation_policy: { target_profiles: null } };
  await h.profile('writer', [{ say: 'written' }]);
  await h.profile('absent', [{ say: 'never' }], { worker_target: 'nowhere' });
  const box = {
    tool: 'create_box',
    arguments: { cards: [{ type: 'note', role: 'user', content: { kind: 'text', text: 'A fact.' } }] },
  };
  const ask = (target: string) => ({
    tool: 'delegate_async',
    arguments: {
      target_strategy: 'new',
      target_ref: target,
      instruction: 'go',
      context_box_id: '{{results/create_box/box_id}}',
      wait: true,
    },
  });
  const tools = ['create_box', 'delegate_async'];
  await h.profile('boss', [{ calls: [box] }, { calls: [ask('writer')] }, { say: 'done' }], {
    tools,
    ...ANYONE,
  });
  await h.profile('waiter', [{ calls: [box] }, { calls: [ask('absent')] }, { say: 'done' }], {
    tools,
    ...ANYONE,
  });
  worker = await h.worker();
  vandal = new pg.Client({ connectionString: h.database.url });
  await vandal.connect();
  await vandal.query('set session_replication_role = replica');
});
afterAll(async () => {
  await vandal.end();
  await h[Symbol.asyncDispose]();
});

interface Family {
  readonly parent: string;
  readonly child: string;
}

/** A parent that delegated with a box that it made itself, and its child. */
async function family(profile: 'boss' | 'waiter'): Promise<Family> {
  const receipt = (await h.runtime.submit('launch_principal', {
    profile_name: profile,
    instruction: 'go',
  })) as unknown as TurnResult;
  const parent = receipt.turn_id;
  if (profile === 'boss') await h.runtime.waitForTurn(parent, { timeoutMs: 60_000 });
  const child = await waitFor(
    async () => {
      const [row] = await h.rows<{ id: string }>(
        `select c.id from boxcar.turns c join boxcar.turns p on p.id = c.parent_turn_id
         where p.id = $1 and ($2 = 'boss' or p.status = 'suspended')`,
        [parent, profile],
      );
      return row?.id;
    },
    { message: 'the child is there, and its parent waits' },
  );
  return { parent, child };
}

test('an undisturbed run violates no invariant, ended or under way', async () => {
  await family('boss');
  await checkInvariants(h.database.pool);
  await family('waiter');
  await checkInvariants(h.database.pool, { isSettled: false });
  await expect(checkInvariants(h.database.pool)).rejects.toThrow(/all-ended: .* is suspended/);
});

test('an end that was not reported, or a notice that was not read, is found once all turns have ended', async () => {
  const { parent } = await family('boss');
  // No sweep notifies in the meantime.
  for (const statement of IDLE.slice(1)) await vandal.query(statement);
  for (const [left, said] of [
    ['notifies = true', 'has ended without a report'],
    ['unseen_position = 3', 'has left position 3 unread'],
  ] as const) {
    const find = async () => {
      // A sweep may run first and do the remaining work.
      await vandal.query(`update boxcar.turns set ${left} where id = $1`, [parent]);
      const findings = await checkInvariants(h.database.pool, { tellMs: 0 }).catch(
        ({ message }: Error) => message,
      );
      return findings?.includes(`: ${parent} ${said}`);
    };
    await waitFor(find, { message: `${parent} ${said}` });
    await vandal.query('update boxcar.turns set notifies = null, unseen_position = null');
  }
});

test('a limited number of violations is listed, and a check that takes too long is reported as unchecked', async () => {
  await family('waiter');
  const [all] = await inspectInvariants(h.database.pool, { isSettled: true, limit: 1 });
  expect(all).toMatchObject({ name: 'all-ended', state: 'broken', hasMore: true });
  expect(all?.broken).toHaveLength(1);
  await vandal.query('begin; lock table boxcar.turns in access exclusive mode');
  try {
    const reports = await inspectInvariants(h.database.pool, { turns: 10, timeoutMs: 20 });
    expect(reports.map((report) => report.state)).toEqual(reports.map(() => 'unchecked'));
    expect(reports.some((report) => report.name === 'one-result-card')).toBe(false);
  } finally {
    await vandal.query('rollback');
  }
});

test('a limit that Postgres would not accept is cut, and a limit that is not a duration is refused', async () => {
  const longest = await inspectInvariants(h.database.pool, { turns: 10, timeoutMs: 30 * 86_400_000 });
  expect(longest.some(({ state }) => state === 'unchecked')).toBe(false);
  for (const timeoutMs of [Number.NaN, 0, -1, 31 * 86_400_000])
    await expect(inspectInvariants(h.database.pool, { turns: 10, timeoutMs })).rejects.toMatchObject({
      code: 'bad_request',
      details: { field: 'timeoutMs' },
    });
});

test('a pool of the caller gets one statement at a time', async () => {
  await using pool = plainPool(h.database.url);
  for (const options of [{}, { turns: 10, timeoutMs: 60_000 }]) {
    const reports = await inspectInvariants(pool.pool, options);
    expect(reports.filter(({ state }) => state !== 'holds')).toEqual([]);
  }
  expect(pool.most).toBe(1);
});

/** A pool whose connections accept one statement at a time, the default of pg. Counts the statements in progress. */
function plainPool(connectionString: string) {
  const pool = new pg.Pool({ connectionString, max: 1 });
  const counted = { pool, most: 0, [Symbol.asyncDispose]: () => pool.end() };
  let underWay = 0;
  pool.on('connect', (client) => {
    const query = client.query.bind(client) as (config: pg.QueryConfig) => Promise<unknown>;
    const count = (config: pg.QueryConfig): Promise<unknown> => {
      underWay += 1;
      counted.most = Math.max(counted.most, underWay);
      return query(config).finally(() => {
        underWay -= 1;
      });
    };
    Object.assign(client, { query: count });
  });
  return counted;
}

type Break = readonly [
  what: string,
  profile: 'boss' | 'waiter',
  sql: (of: Family) => readonly string[],
  names: readonly string[],
];

/** A batch of one turn that has ended with success, except for the differences in `change`. */
const insertBatch = (turn: string, change: string): string => `
  with made as (
    insert into boxcar.batches (id, project_id, primitive, kind, turn_ids, remaining, succeeded, failed, fail_fast, status, is_due)
    select '${newId()}', project_id, 'collect', 'collect', array[id], 0, 1, 0, false, 'running', false from boxcar.turns where id = '${turn}' returning id
  )
  select set_config('boxcar.made', id::text, false) from made;
  update boxcar.batches set ${change} where id = current_setting('boxcar.made')::uuid`;

const STRAY = newId();
const outputOf = (turn: string): string => `(select output_box_id from boxcar.turns where id = '${turn}')`;
const contextOf = (turn: string): string => `(select context_box_id from boxcar.turns where id = '${turn}')`;
const callOf = (turn: string): string =>
  `(select id from boxcar.tool_calls where turn_id = '${turn}' order by step desc limit 1)`;
const deliverableOf = (turn: string): string =>
  `(select deliverable_card_id from boxcar.turns where id = '${turn}')`;
/** The worker has been alive for a long time, and no sweep repairs the rows that are broken here. */
const IDLE = [
  `update boxcar.workers set started_at = now() - interval '1 hour', lease_until = now() + interval '1 hour'`,
  `update boxcar.sweeper set lease_until = now() + interval '1 hour'`,
];
const settleLast = (turn: string): string =>
  `update boxcar.tool_calls set status = 'failed' where id = ${callOf(turn)}`;
const waitOf = (turn: string, what: string): string =>
  `insert into boxcar.waits (turn_id, project_id, kind, due_at, detail) select id, project_id, ${what} from boxcar.turns where id = '${turn}'`;
const setTurn = (id: string, what: string): string => `update boxcar.turns set ${what} where id = '${id}'`;
/** A further entry at the head of a turn's tape, similar to the entry of this card. */
const appendAgain = (turn: string, card: string): string[] => [
  `update boxcar.boxes set head_position = head_position + 1 where id = ${outputOf(turn)}`,
  `insert into boxcar.tape_entries (box_id, position, kind, card_id, turn_id, author_id)
   select e.box_id, b.head_position, e.kind, e.card_id, e.turn_id, e.author_id from boxcar.tape_entries e join boxcar.boxes b on b.id = e.box_id
   where e.box_id = ${outputOf(turn)} and e.card_id = ${card}`,
];
const setManifest = (turn: string, path: string, value: string): string =>
  `update boxcar.steps set manifest = jsonb_set(manifest, '${path}', '${value}') where turn_id = '${turn}' and step = 1`;
const setSegment = (turn: string, path: string, value: string): string =>
  `update boxcar.boxes set segments = jsonb_set(segments, '${path}', '${value}') where id = ${contextOf(turn)}`;
const inheritedBy = (turn: string): string =>
  `(select (s.value->>'source')::uuid from boxcar.boxes b, jsonb_array_elements(b.segments) s(value) where b.id = ${contextOf(turn)} and s.value ? 'source')`;
/** The box that the turn has inherited loses its owner and its maker. */
const hideBox = (turn: string): string =>
  `update boxcar.boxes set maker_agent_id = null, owner_agent_id = null where id = ${inheritedBy(turn)}`;

/** An account for one turn, with this number of allotted tokens. */
const budgetOf = (turn: string, account: string, allotted: number): string[] => [
  `insert into boxcar.budgets (id, project_id, run_id, top_depth, ${account.split(' = ')[0]}) select '${turn}', project_id, run_id, depth, ${account.split(' = ')[1]} from boxcar.turns where id = '${turn}'`,
  setTurn(turn, `budget_id = id, is_settled = false, allotted_tokens = ${allotted}, spent_tokens = 0`),
];

/** A handoff that this turn serves, in the state of a running turn, with one of two events. `change` names the differences. */
const handoffOf = (turn: string, change: string): string[] => {
  const id = newId();
  return [
    `insert into boxcar.handoffs (id, project_id, phase, source_agent, source_agent_id, target_agent, platform, context_box_id, task_card_id, turn_id, root_handoff_id, timeout_ms, retry, request_hash, ended_at, event_count)
     select '${id}', project_id, case when ended_at is null then 'queued' else 'completed' end, 'main', '${id}', 'child', 'agdd', context_box_id, '${id}', id, '${id}', 1000, '{}', repeat('0', 64), ended_at, case when ended_at is null then 1 else 2 end
     from boxcar.turns where id = '${turn}'`,
    `insert into boxcar.handoff_events (handoff_id, seq, type) select id, n, case n when 1 then 'handoff.requested' else 'handoff.completed' end from boxcar.handoffs h cross join lateral generate_series(1, h.event_count) n where id = '${id}'`,
    `update boxcar.handoffs set ${change} where id = '${id}'`,
  ];
};

/** A session on the tape of this turn, with this number of messages and no entries. */
const clientSessionOf = (turn: string, messages: number): string =>
  `insert into boxcar.handoff_sessions (id, project_id, session_key, tape_box_id, maker_agent_id, agent_from, retention_policy, message_count, file_count, tool_call_count, system_count, line_sessions)
   select gen_random_uuid(), project_id, 'session', output_box_id, agent_id, 'x', 'standard', ${messages}, 0, 0, 0, '{}' from boxcar.turns where id = '${turn}'`;
const sessionEntryOf = (entry: {
  readonly sequence_number: number;
  readonly position: number;
  readonly message_count: number;
}): string =>
  `insert into boxcar.handoff_session_entries (session_id, sequence_number, position, type, message_count, file_count, tool_call_count, system_count)
   select id, ${entry.sequence_number}, ${entry.position}, 'message', ${entry.message_count}, 0, 0, 0 from boxcar.handoff_sessions`;

/** A ticket of a request from outside. */
const insertTicket = (id: string, status: string, consumed: string): string =>
  `insert into boxcar.approvals (id, project_id, run_id, agent, tool_name, card_id, args_hash, context_hash, payload_hash, policy_version, status, created_at, expires_at, resolved_at, resolved_by, consumed_at, metadata)
   select '${id}', id, 'run', 'main', 'handoff', gen_random_uuid(), repeat('0', 64), '', '', '', '${status}', now(), now(), now(), 'x', ${consumed}, '{}' from boxcar.projects limit 1`;
const TICKET = newId();

const BREAKS: readonly Break[] = [
  ['a handoff that its turn serves', 'boss', (f) => handoffOf(f.child, 'attempts = 0'), []],
  [
    'a handoff that has begun without the required approval',
    'boss',
    (f) => handoffOf(f.child, `decision = '{"level": "require_approval"}'`),
    ['handoff-approved'],
  ],
  [
    'a handoff that has begun before its ticket was consumed',
    'boss',
    (f) => [insertTicket(TICKET, 'approved', 'null'), ...handoffOf(f.child, `ticket_id = '${TICKET}'`)],
    ['handoff-approved'],
  ],
  [
    'two handoffs that have begun after one ticket',
    'boss',
    (f) => [
      insertTicket(TICKET, 'approved', 'now()'),
      ...handoffOf(f.child, `ticket_id = '${TICKET}'`),
      ...handoffOf(f.parent, `ticket_id = '${TICKET}'`),
    ],
    ['handoff-approved'],
  ],
  [
    'a handoff that was rejected, and has begun',
    'boss',
    (f) => handoffOf(f.child, `phase = 'rejected'`),
    ['handoff-approved'],
  ],
  [
    'a handoff whose turn has ended and was reported',
    'boss',
    (f) => [
      ...handoffOf(f.child, `phase = 'queued', ended_at = null, event_count = 1`),
      `delete from boxcar.handoff_events where seq = 2`,
    ],
    ['handoff-ended'],
  ],
  [
    'two handoffs that one turn serves',
    'boss',
    (f) => [...handoffOf(f.child, 'attempts = 0'), ...handoffOf(f.child, 'attempts = 0')],
    ['handoff-ended'],
  ],
  [
    'a log with a gap',
    'boss',
    (f) => [
      ...handoffOf(f.child, 'event_count = 3'),
      `update boxcar.handoff_events set seq = 3 where seq = 2`,
    ],
    ['handoff-log'],
  ],
  [
    'a callback for which nothing was sent',
    'boss',
    (f) => handoffOf(f.child, "callback_url = 'http://a.example/'"),
    ['handoff-callback'],
  ],
  [
    'a delivery that was not requested',
    'boss',
    (f) => [
      ...handoffOf(f.child, 'attempts = 0'),
      `insert into boxcar.webhook_deliveries (project_id, handoff_id, event_handoff_id, event_seq, url, host) select project_id, id, id, 2, 'http://a.example/', 'a.example' from boxcar.handoffs`,
    ],
    ['handoff-callback'],
  ],
  [
    'a delivery of an event that is not the end',
    'boss',
    (f) => [
      ...handoffOf(f.child, "callback_url = 'http://a.example/'"),
      `insert into boxcar.webhook_deliveries (project_id, handoff_id, event_handoff_id, event_seq, url, host) select project_id, id, id, 1, 'http://a.example/', 'a.example' from boxcar.handoffs`,
    ],
    ['handoff-callback'],
  ],
  [
    'a task whose end is sent to no address',
    'boss',
    (f) => [
      ...handoffOf(f.child, 'attempts = 0'),
      `insert into boxcar.push_configs (handoff_id, id, url, version) select id, 'inbox', 'http://a.example/', '1.0' from boxcar.handoffs`,
      'delete from boxcar.webhook_deliveries',
    ],
    ['handoff-pushed'],
  ],
  [
    'parts of two rounds that are mixed',
    'boss',
    (f) => [
      ...handoffOf(f.child, 'attempts = 0'),
      `insert into boxcar.turn_parts (turn_id, seq, round, n, text) values ('${f.child}', 1, '1.1', 1, 'a'), ('${f.child}', 2, '1.2', 1, 'b'), ('${f.child}', 3, '1.1', 2, 'c')`,
    ],
    ['handoff-parts'],
  ],
  [
    'parts with a gap',
    'boss',
    (f) => [
      ...handoffOf(f.child, 'attempts = 0'),
      `insert into boxcar.turn_parts (turn_id, seq, round, n, text) values ('${f.child}', 1, '1.1', 1, 'a'), ('${f.child}', 3, '1.1', 2, 'c')`,
    ],
    ['handoff-parts'],
  ],
  [
    'a question that is open although its handoff does not wait',
    'boss',
    (f) => [
      ...handoffOf(f.child, 'attempts = 0'),
      `insert into boxcar.handoff_messages (handoff_id, seq, card_id, ask_key, expires_at) select h.id, 1, h.task_card_id, 'k', now() from boxcar.handoffs h`,
    ],
    ['handoff-messages'],
  ],
  [
    'a reply whose question is open',
    'boss',
    (f) => [
      ...handoffOf(f.child, 'attempts = 0, asking_since = now()'),
      `insert into boxcar.handoff_messages (handoff_id, seq, card_id, ask_key, expires_at) select h.id, 1, h.task_card_id, 'k', now() from boxcar.handoffs h`,
      `insert into boxcar.handoff_messages (handoff_id, seq, card_id, replies_to, author) select h.id, 2, h.task_card_id, 1, 'x' from boxcar.handoffs h`,
    ],
    ['handoff-messages'],
  ],
  ['a session without its first entry', 'boss', (f) => [clientSessionOf(f.child, 1)], ['session-counts']],
  [
    'a session whose numbers have a gap',
    'boss',
    (f) => [
      clientSessionOf(f.child, 2),
      sessionEntryOf({ sequence_number: 2, position: 3, message_count: 2 }),
    ],
    ['session-counts', 'session-entries'],
  ],
  [
    'a context entry without a tape',
    'boss',
    (f) => [
      clientSessionOf(f.child, 1),
      sessionEntryOf({ sequence_number: 1, position: 9_999, message_count: 1 }),
    ],
    ['session-entries'],
  ],
  [
    'context entries in another order than their tape',
    'boss',
    (f) => [
      clientSessionOf(f.child, 2),
      sessionEntryOf({ sequence_number: 1, position: 2, message_count: 1 }),
      sessionEntryOf({ sequence_number: 2, position: 1, message_count: 2 }),
    ],
    ['session-entries'],
  ],
  [
    'a session that is handed on without an anchor, and to no agent that may read it',
    'boss',
    (f) => [
      ...handoffOf(f.child, 'attempts = 0'),
      clientSessionOf(f.child, 1),
      sessionEntryOf({ sequence_number: 1, position: 2, message_count: 1 }),
      `update boxcar.handoffs set session_id = (select id from boxcar.handoff_sessions), session_request = 'context_transfer', session_head = 2`,
    ],
    ['session-handoffs'],
  ],
  [
    'a completed session that is frozen before its last entry',
    'boss',
    (f) => [
      clientSessionOf(f.child, 1),
      sessionEntryOf({ sequence_number: 1, position: 2, message_count: 1 }),
      `update boxcar.handoff_sessions set status = 'completed', ended_at = now(), frozen_head = 1`,
    ],
    ['session-counts'],
  ],
  [
    'a hop after a hop that has not completed',
    'boss',
    (f) =>
      handoffOf(f.child, `attempts = 0, parent_handoff_id = '00000000-0000-7000-8000-00000000000c', hop = 2`),
    ['handoff-chain'],
  ],
  [
    'a hop that is undone although no later one has failed',
    'boss',
    (f) =>
      handoffOf(
        f.child,
        `attempts = 0, parent_handoff_id = '00000000-0000-7000-8000-00000000000c', hop = 1, mode = 'compensate'`,
      ),
    ['handoff-chain'],
  ],
  [
    'an attempt that is missing in the log',
    'boss',
    (f) => handoffOf(f.child, 'attempts = 1'),
    ['handoff-log'],
  ],
  [
    'an account that has reserved amounts that no turn was allotted',
    'boss',
    (f) => budgetOf(f.child, "limits, turns_used, tokens_reserved = '{}', 1, 20", 10),
    ['budget-sums'],
  ],
  [
    'an account that has granted more than it had',
    'boss',
    (f) => budgetOf(f.child, `limits, turns_used, tokens_reserved = '{"tokens": 5}', 1, 10`, 10),
    ['budget-limit'],
  ],
  [
    'a missing profile',
    'boss',
    (f) => [setTurn(f.child, 'profile_id = gen_random_uuid()')],
    ['references-exist'],
  ],
  [
    'a missing context',
    'boss',
    (f) => [setTurn(f.child, 'context_box_id = gen_random_uuid()')],
    ['references-exist', 'prompt-has-manifest'],
  ],
  [
    'a step without a turn',
    'boss',
    (f) => [
      `insert into boxcar.steps select (jsonb_populate_record(s, jsonb_build_object('turn_id', gen_random_uuid()))).* from boxcar.steps s where turn_id = '${f.parent}' and step = 1`,
    ],
    ['nothing-orphaned'],
  ],
  [
    'an agent without its tape',
    'boss',
    (f) => [
      `update boxcar.agents set tape_box_id = gen_random_uuid() where id = (select agent_id from boxcar.turns where id = '${f.child}')`,
    ],
    ['nothing-orphaned'],
  ],
  [
    'a box without its maker',
    'boss',
    (f) => [`update boxcar.boxes set maker_agent_id = gen_random_uuid() where id = ${outputOf(f.parent)}`],
    ['nothing-orphaned'],
  ],
  ...['owner_agent_id', 'derived_from'].map(
    (column): Break => [
      `an agent whose ${column} is gone`,
      'boss',
      (f) => [
        `update boxcar.agents set ${column} = gen_random_uuid() where id = (select agent_id from boxcar.turns where id = '${f.child}')`,
      ],
      ['nothing-orphaned'],
    ],
  ),
  [
    'a final turn without an end',
    'boss',
    (f) => [setTurn(f.parent, 'ended_at = null')],
    ['end-is-whole', 'one-deliverable'],
  ],
  [
    'a running turn without a holder',
    'waiter',
    (f) => [setTurn(f.parent, "status = 'running'")],
    ['end-is-whole'],
  ],
  [
    'a second deliverable',
    'boss',
    (f) => appendAgain(f.parent, deliverableOf(f.parent)),
    ['one-deliverable'],
  ],
  [
    'a deliverable that is a different card',
    'boss',
    (f) => [setTurn(f.parent, `deliverable_card_id = ${deliverableOf(f.child)}`)],
    ['one-deliverable'],
  ],
  [
    'a call that has succeeded before it was approved',
    'boss',
    (f) => [
      `insert into boxcar.approvals (id, project_id, run_id, turn_id, tool_call_id, agent, tool_name, card_id, args_hash, expires_at)
       select '${newId()}'::uuid, k.project_id, 'r', k.turn_id, k.id, 'a', k.name, k.result_card_id, repeat('0', 64), now() + interval '1 hour'
       from boxcar.tool_calls k where k.turn_id = '${f.parent}' and k.status = 'success' limit 1`,
    ],
    ['decided-before-begun'],
  ],
  [
    'a deliverable without a tape',
    'boss',
    () => [
      `insert into boxcar.cards (id, project_id, type, content, content_hash, size_bytes, token_estimate, author_id)
       select '${newId()}', project_id, type, content, content_hash, size_bytes, token_estimate, author_id from boxcar.cards where type = 'task.deliverable' limit 1`,
    ],
    ['no-stray-deliverable'],
  ],
  [
    'a submission that made a turn which no longer exists',
    'boss',
    (f) => [
      `update boxcar.operations set made = array['${newId()}'::uuid] where made = array['${f.parent}'::uuid]`,
    ],
    ['operation-names-turn'],
  ],
  ['a child at the wrong depth', 'boss', (f) => [setTurn(f.child, 'depth = 5')], ['family']],
  [
    'a child without its parent',
    'boss',
    (f) => [setTurn(f.child, `parent_turn_id = '${newId()}'`)],
    ['family'],
  ],
  [
    'a child of another turn’s call',
    'boss',
    (f) => [setTurn(f.child, `parent_tool_call_id = '${newId()}'`)],
    ['family'],
  ],
  [
    'a second start',
    'boss',
    (f) => [
      `update boxcar.boxes set head_position = head_position + 1 where id = ${outputOf(f.parent)}`,
      `insert into boxcar.tape_entries (box_id, position, kind, payload, turn_id, author_id)
     select e.box_id, b.head_position, e.kind, e.payload, e.turn_id, e.author_id from boxcar.tape_entries e join boxcar.boxes b on b.id = e.box_id
     where e.box_id = b.id and e.turn_id = '${f.parent}' and e.kind = 'event'`,
    ],
    ['starts-once'],
  ],
  ['a start at another position', 'boss', (f) => [setTurn(f.parent, 'start_position = 1')], ['starts-once']],
  [
    'a gap on a tape',
    'boss',
    (f) => [
      `update boxcar.tape_entries set position = position + 100 where box_id = ${outputOf(f.parent)} and card_id = ${deliverableOf(f.parent)}`,
    ],
    ['tape-gapless'],
  ],
  [
    'a head that is too far',
    'boss',
    (f) => [`update boxcar.boxes set head_position = head_position + 1 where id = ${outputOf(f.parent)}`],
    ['tape-gapless'],
  ],
  [
    'an anchor elsewhere',
    'boss',
    (f) => [`update boxcar.boxes set last_anchor_position = 2 where id = ${outputOf(f.parent)}`],
    ['tape-gapless', 'view-begins'],
  ],
  [
    'a wrong count of anchors',
    'boss',
    (f) => [`update boxcar.boxes set anchor_count = 2 where id = ${outputOf(f.parent)}`],
    ['tape-gapless'],
  ],
  [
    'a view that begins with an entry that is not an anchor',
    'boss',
    (f) => [`update boxcar.boxes set view_anchor_position = 2 where id = ${outputOf(f.parent)}`],
    ['tape-gapless', 'view-begins'],
  ],
  [
    'a view that leaves out its anchor',
    'boss',
    (f) => [`update boxcar.boxes set view_position = 2 where id = ${outputOf(f.parent)}`],
    ['view-begins'],
  ],
  [
    'a tape that replaces a tape still in use',
    'boss',
    (f) => [
      `update boxcar.boxes set previous_box_id = ${outputOf(f.parent)}, incarnation = 2 where id = ${outputOf(f.child)}`,
    ],
    ['tape-gapless'],
  ],
  [
    'a turn that continues to write to an archived tape',
    'waiter',
    (f) => [`update boxcar.boxes set archived_at = now() where id = ${outputOf(f.parent)}`],
    ['archived-is-left'],
  ],
  [
    'a tape that is not its agent’s own',
    'boss',
    (f) => [`update boxcar.boxes set owner_agent_id = null where id = ${outputOf(f.child)}`],
    ['archived-is-left'],
  ],
  [
    'a fork that reads less than its parent has',
    'boss',
    (f) => [forkOf(f.parent, 'array[2]')],
    ['fork-line'],
  ],
  [
    'a fork of a tape that does not exist',
    'boss',
    (f) => [forkOf(f.parent, 'array[3]').replace('b.id, 3', "'00000000-0000-7000-8000-00000000dead', 3")],
    ['fork-line'],
  ],
  [
    'a fork whose box lacks its end',
    'boss',
    (f) => [endedForkOf(f.parent, 'open', 'discarded')],
    ['fork-ended'],
  ],
  [
    'a merge that is not on the parent',
    'boss',
    (f) => [endedForkOf(f.parent, 'merged', 'merged')],
    ['fork-ended'],
  ],
  [
    'a merge of entries that the fork does not have',
    'boss',
    (f) => [
      endedForkOf(f.parent, 'merged', 'merged').replace(
        "'merged', 1, 'first', 4, 'last', 4, 'event', 5",
        "'merged', 1, 'first', 4, 'last', 4, 'event', 3",
      ),
      `update boxcar.tape_entries e set dedup_key = case e.position when 3 then 'fork/merge:' || f.id else 'fork:' || f.id || ':4' end
       from boxcar.forks f where e.box_id = f.parent_box_id and f.parent_box_id = ${outputOf(f.parent)} and e.position in (3, 4)`,
    ],
    ['fork-ended'],
  ],
  ['a session without its agent', 'boss', (f) => [sessionOf(f.child, `'${newId()}'`)], ['session-whole']],
  [
    'a session whose agent has another name',
    'boss',
    (f) => [sessionOf(f.child, 't.agent_id')],
    ['session-whole'],
  ],
  [
    'words of an entry that does not exist',
    'boss',
    (f) => [
      `insert into boxcar.tape_words (box_id, position, words) values (${outputOf(f.child)}, 99, 'words')`,
    ],
    ['words-of-entries'],
  ],
  [
    'words of another card',
    'boss',
    (f) => [
      `insert into boxcar.tape_words (box_id, position, card_id, words) values (${outputOf(f.child)}, 1, ${deliverableOf(f.child)}, 'words')`,
    ],
    ['words-of-entries'],
  ],
  [
    'words of an erased entry',
    'boss',
    (f) => [
      `insert into boxcar.tape_words (box_id, position, card_id, words)
       select box_id, position, card_id, 'words' from boxcar.tape_entries where box_id = ${outputOf(f.child)} and card_id = ${deliverableOf(f.child)}`,
      `update boxcar.cards set erased_at = now() where id = ${deliverableOf(f.child)}`,
    ],
    ['words-of-entries'],
  ],
  [
    'words of an instruction without its turn',
    'boss',
    () => [`insert into boxcar.tape_words (box_id, position, words) values ('${newId()}', 0, 'words')`],
    ['words-of-entries'],
  ],
  [
    'words of an instruction of another turn',
    'boss',
    (f) => [
      `insert into boxcar.tape_words (box_id, position, card_id, words) values ('${f.child}', 0, ${deliverableOf(f.child)}, 'words')`,
    ],
    ['words-of-entries'],
  ],
  [
    'words of an erased instruction',
    'boss',
    (f) => [
      `insert into boxcar.tape_words (box_id, position, card_id, words)
       select t.id, 0, b.card_ids[1], 'words' from boxcar.turns t join boxcar.boxes b on b.id = t.context_box_id where t.id = '${f.child}'`,
      `update boxcar.cards set erased_at = now() where id = (select card_id from boxcar.tape_words where box_id = '${f.child}')`,
    ],
    ['words-of-entries'],
  ],
  ...(
    [
      ['of nobody', `'${newId()}', 'read', null, 'turn:${newId()}'`],
      ['beyond the head', "t.agent_id, 'read', 999, t.agent_id::text"],
      ['by who knows whom', "t.agent_id, 'read', null, 'somebody'"],
    ] as const
  ).map(
    ([what, grant]): Break => [
      `a right ${what}`,
      'boss',
      (f) => [
        `insert into boxcar.grants (project_id, box_id, agent_id, mode, upto_position, source)
         select t.project_id, ${outputOf(f.parent)}, ${grant} from boxcar.turns t where t.id = '${f.child}'`,
      ],
      ['grant-fits'],
    ],
  ),
  [
    'a missing card',
    'boss',
    (f) => [
      `delete from boxcar.cards where id = (select thought_card_id from boxcar.steps where turn_id = '${f.parent}' and step = 1)`,
    ],
    // The answer had no text, so its card is the card of its first call.
    ['entry-has-card', 'one-result'],
  ],
  [
    'a missing card of an entry without a turn',
    'boss',
    (f) => [
      `update boxcar.boxes set head_position = head_position + 1 where id = ${outputOf(f.parent)}`,
      `insert into boxcar.tape_entries (box_id, position, kind, card_id, author_id)
       select id, head_position, 'message', gen_random_uuid(), 'outside' from boxcar.boxes where id = ${outputOf(f.parent)}`,
    ],
    ['entry-has-card'],
  ],
  [
    'a missing card of a tape without an agent',
    'boss',
    (f) => [
      `insert into boxcar.boxes (id, project_id, kind, incarnation, head_position, last_anchor_position, view_position, anchor_count)
       select '${STRAY}', project_id, 'tape', 1, 1, 0, 1, 0 from boxcar.turns where id = '${f.parent}'`,
      `insert into boxcar.tape_entries (box_id, position, kind, card_id, author_id) values ('${STRAY}', 1, 'message', gen_random_uuid(), 'outside')`,
    ],
    ['entry-has-card'],
  ],
  [
    'a result without its card',
    'boss',
    (f) => [`update boxcar.tool_calls set result_card_id = '${newId()}' where id = ${callOf(f.parent)}`],
    ['one-result'],
  ],
  [
    'a result that occurs twice',
    'boss',
    (f) =>
      appendAgain(f.parent, `(select result_card_id from boxcar.tool_calls where id = ${callOf(f.parent)})`),
    ['one-result'],
  ],
  [
    'a second result card',
    'boss',
    (f) => [
      `insert into boxcar.cards (id, project_id, type, content, content_hash, size_bytes, token_estimate, author_id, tool_call_id)
       select '${newId()}', project_id, type, content, content_hash, size_bytes, token_estimate, author_id, tool_call_id from boxcar.cards
       where type = 'tool.result' and tool_call_id = ${callOf(f.parent)}`,
    ],
    ['one-result-card'],
  ],
  [
    'a wrong count of open calls',
    'waiter',
    (f) => [setTurn(f.parent, 'pending_calls = 7')],
    ['open-calls-counted'],
  ],
  [
    'a turn that waits for nothing',
    'waiter',
    (f) => [
      setTurn(f.parent, 'pending_calls = 0'),
      `update boxcar.tool_calls set status = 'success', ended_at = now() where id = ${callOf(f.parent)}`,
    ],
    ['waits-with-cause', 'one-result'],
  ],
  [
    'a call that would wait forever',
    'waiter',
    (f) => [`update boxcar.tool_calls set deadline_at = null where id = ${callOf(f.parent)}`],
    ['waits-with-cause'],
  ],
  [
    'a call whose awaited turn has ended',
    'waiter',
    (f) => [setTurn(f.child, "status = 'failed', ended_at = now(), deliverable_card_id = gen_random_uuid()")],
    ['waits-with-cause', 'one-deliverable'],
  ],
  [
    'a wait of a turn that has ended',
    'boss',
    (f) => [
      `insert into boxcar.waits (turn_id, project_id, kind, due_at) select id, project_id, 'retry', now() + interval '1 hour' from boxcar.turns where id = '${f.child}'`,
    ],
    ['wait-is-of-turn'],
  ],
  [
    'a wait that no sweep would find',
    'waiter',
    (f) => [
      `delete from boxcar.tool_calls where turn_id = '${f.parent}' and status = 'pending'`,
      setTurn(f.parent, 'pending_calls = 0'),
      `insert into boxcar.waits (turn_id, project_id, kind) select id, project_id, 'retry' from boxcar.turns where id = '${f.parent}'`,
    ],
    // Its child answers a call that no longer exists.
    ['wait-is-of-turn', 'family'],
  ],
  [
    'a turn that continues below a canceled turn',
    'waiter',
    (f) => [
      setTurn(f.parent, "status = 'canceled', ended_at = now(), deliverable_card_id = gen_random_uuid()"),
    ],
    ['canceled-below', 'one-deliverable', 'open-calls-counted'],
  ],
  [
    'a turn that started long after the turn above it was canceled',
    'boss',
    (f) => [setTurn(f.parent, "status = 'canceled', ended_at = now() - interval '1 hour'")],
    ['canceled-below'],
  ],
  ['a queued turn that was dispatched', 'waiter', (f) => [setTurn(f.child, 'epoch = 3')], ['epochs']],
  ['a turn that waits and never started', 'waiter', (f) => [setTurn(f.parent, 'epoch = 0')], ['epochs']],
  [
    'a step of a later epoch',
    'boss',
    (f) => [`update boxcar.steps set epoch = 99 where turn_id = '${f.parent}' and step = 1`],
    ['epochs'],
  ],
  [
    'a call of a step that was not committed',
    'boss',
    (f) => [`update boxcar.tool_calls set step = 99 where id = ${callOf(f.parent)}`],
    ['epochs'],
  ],
  [
    'a step that is committed twice',
    'boss',
    (f) => [
      `insert into boxcar.steps select * from (select (jsonb_populate_record(s, '{"attempt": 9}')).* from boxcar.steps s where turn_id = '${f.parent}' and step = 1) again`,
    ],
    ['steps-counted'],
  ],
  [
    'a turn that the sweep has set aside',
    'waiter',
    (f) => [
      `insert into boxcar.sweep_failures (kind, row_id, attempts, last_error, next_try_at, is_dead) values ('overdue_turns', '${f.parent}', 5, 'x', now(), true)`,
    ],
    ['live-cause'],
  ],
  [
    'a call without an answer long after its deadline, while a worker lives',
    'waiter',
    (f) => [
      ...IDLE,
      `update boxcar.tool_calls set deadline_at = now() - interval '1 hour' where id = ${callOf(f.parent)}`,
    ],
    ['live-cause'],
  ],
  [
    'a batch without an end long after its deadline, while a worker lives',
    'waiter',
    (f) => [
      ...IDLE,
      `${insertBatch(f.child, "remaining = 1, succeeded = 0, deadline_at = now() - interval '1 hour'")}`,
      setTurn(f.child, "batch_ids = array[current_setting('boxcar.made')::uuid]"),
    ],
    ['live-cause'],
  ],
  [
    'a batch without its answer, while a worker lives',
    'boss',
    (f) => [
      ...IDLE,
      insertBatch(f.child, 'remaining = 0, is_due = true'),
      setTurn(f.child, "ended_at = now() - interval '1 hour'"),
    ],
    ['live-cause'],
  ],
  [
    'a turn that was not woken although its time has come',
    'waiter',
    (f) => [
      ...IDLE,
      settleLast(f.parent),
      setTurn(f.parent, 'pending_calls = 0'),
      waitOf(f.parent, "'retry', now() - interval '1 hour', '{}'"),
    ],
    ['one-result', 'live-cause'],
  ],
  [
    'a pause for a budget that was raised',
    'waiter',
    (f) => [
      settleLast(f.parent),
      setTurn(f.parent, 'pending_calls = 0'),
      waitOf(f.parent, "'budget', null, '{}'"),
    ],
    ['one-result', 'live-cause'],
  ],
  [
    'a call that waits for a batch without this call',
    'waiter',
    (f) => [`update boxcar.tool_calls set batch_id = gen_random_uuid() where id = ${callOf(f.parent)}`],
    ['batch-answered'],
  ],
  ['a step that is not counted', 'boss', (f) => [setTurn(f.parent, 'step_count = 9')], ['steps-counted']],
  [
    'two active turns of an agent',
    'waiter',
    (f) => [
      setTurn(
        f.child,
        `agent_id = (select agent_id from boxcar.turns where id = '${f.parent}'), status = 'suspended', epoch = 1`,
      ),
    ],
    ['one-active-turn', 'epochs', 'waits-with-cause'],
  ],
  [
    'a turn that was overtaken',
    'waiter',
    (f) => [
      `insert into boxcar.turns select (jsonb_populate_record(t, jsonb_build_object('id', left(m.hex, 8) || '-' || right(m.hex, 4) || '-7000-8000-' || right(t.id::text, 12), 'created_at', t.created_at - interval '1 second', 'agent_id', (select agent_id from boxcar.turns where id = '${f.parent}')))).*
       from boxcar.turns t cross join lateral (select lpad(to_hex((extract(epoch from t.created_at) * 1000)::bigint - 1000), 12, '0') as hex) m where id = '${f.child}'`,
    ],
    ['agent-order', 'operation-names-turn'],
  ],
  [
    'a segment with too high a count of cards',
    'boss',
    (f) => [setSegment(f.child, '{0,count}', '7')],
    ['segments-add-up'],
  ],
  ['a segment beyond its source', 'boss', (f) => [setSegment(f.child, '{1,to}', '70')], ['segments-add-up']],
  [
    'a box that counts wrongly',
    'boss',
    (f) => [`update boxcar.boxes set token_estimate = token_estimate + 1 where id = ${contextOf(f.child)}`],
    ['segments-add-up'],
  ],
  [
    'a missing card of a box',
    'boss',
    (f) => [
      `delete from boxcar.cards where id = any (select unnest(card_ids) from boxcar.boxes where id = ${contextOf(f.child)})`,
    ],
    ['box-has-cards'],
  ],
  [
    'a missing card of a box without a turn',
    'boss',
    (f) => [
      `insert into boxcar.boxes (id, project_id, kind, card_ids, card_tokens, segments, card_count, token_estimate)
       select '${STRAY}', project_id, 'context', array[gen_random_uuid()], '{1}', '[]', 1, 1 from boxcar.turns where id = '${f.parent}'`,
    ],
    ['box-has-cards'],
  ],
  [
    'a box that its reader never got',
    'boss',
    (f) => [
      `update boxcar.boxes set maker_agent_id = null, owner_agent_id = null
       where id in (select (s.value->>'source')::uuid from boxcar.boxes b, jsonb_array_elements(b.segments) s(value) where b.id = ${contextOf(f.child)})`,
    ],
    ['readable-by-grant'],
  ],
  [
    'a box with a grant that another build wrote at an end',
    'boss',
    (f) => [
      hideBox(f.child),
      `insert into boxcar.grants (project_id, agent_id, box_id, mode, source) select project_id, maker_agent_id, ${inheritedBy(f.child)}, 'read', 'turn:${f.parent}' from boxcar.boxes where id = ${contextOf(f.child)}`,
    ],
    ['readable-by-grant'],
  ],
  [
    'a box that a clone shows and its maker may not read',
    'boss',
    (f) => [hideBox(f.child), setSegment(f.child, '{1,rule}', '"snapshot"')],
    ['readable-by-grant'],
  ],
  [
    'a part of a tape after the end of a grant',
    'boss',
    (f) => [
      `update boxcar.boxes set owner_agent_id = null, maker_agent_id = null where id = ${outputOf(f.parent)}`,
      `update boxcar.boxes set segments = jsonb_set(segments, '{1,source}', to_jsonb(${outputOf(f.parent)})) where id = ${contextOf(f.child)}`,
      setSegment(f.child, '{1,to}', '2'),
      `insert into boxcar.grants (project_id, agent_id, box_id, mode, source, upto_position) select project_id, maker_agent_id, ${outputOf(f.parent)}, 'read', 'card:' || id, 1 from boxcar.boxes where id = ${contextOf(f.child)}`,
    ],
    ['archived-is-left', 'readable-by-grant'],
  ],
  [
    'a step without a manifest',
    'boss',
    (f) => [`update boxcar.steps set manifest = null where turn_id = '${f.parent}' and step = 1`],
    ['prompt-has-manifest'],
  ],
  [
    'a manifest that leaves a message out',
    'boss',
    (f) => [setManifest(f.parent, '{messages,1,first}', '5')],
    ['prompt-has-manifest'],
  ],
  [
    'a manifest that names the context of another tape',
    'boss',
    (f) => [
      `update boxcar.steps set manifest = replace(manifest::text, ${contextOf(f.parent)}::text, ${contextOf(f.child)}::text)::jsonb where turn_id = '${f.parent}' and step = 1`,
    ],
    ['prompt-has-manifest'],
  ],
  ['a batch that counts wrongly', 'boss', (f) => [insertBatch(f.child, 'remaining = 1')], ['batch-counted']],
  [
    'a batch that its member does not name',
    'waiter',
    (f) => [insertBatch(f.child, 'remaining = 1, succeeded = 0')],
    ['batch-counted'],
  ],
  [
    'a batch whose members have all ended, without an end',
    'boss',
    (f) => [insertBatch(f.child, 'remaining = 0')],
    ['batch-answered'],
  ],
  [
    'a batch that ended without an answer',
    'boss',
    (f) => [insertBatch(f.child, "status = 'success', ended_at = now()")],
    ['batch-answered'],
  ],
];

/** A fork of the turn's tape at its third entry, whose line has the given ends. */
const forkOf = (turnId: string, ends: string): string => `
  insert into boxcar.boxes (id, project_id, kind, maker_agent_id, incarnation, head_position, last_anchor_position, view_position, parent_box_id, fork_position, line_boxes, line_ends)
  select gen_random_uuid(), b.project_id, 'tape', b.maker_agent_id, 1, 3, 1, 1, b.id, 3, array[b.id], ${ends} from boxcar.boxes b where b.id = ${outputOf(turnId)}`;

const sessionOf = (turnId: string, agent: string): string => `
  insert into boxcar.sessions (id, project_id, name, agent_id, parent_box_id, parent_session_id, from_position, notifies)
  select t.output_box_id, t.project_id, t.id::text, ${agent}, t.output_box_id, 'parent', 1, false from boxcar.turns t where t.id = '${turnId}'`;

/** A fork of three entries, with one status in its box and one in its end. */
const endedForkOf = (turnId: string, boxStatus: string, status: string): string => `
  with made as (${forkOf(turnId, 'array[3]').replace('line_ends)', 'line_ends, fork_status)').replace('array[3] from', `array[3], '${boxStatus}' from`)} returning id, project_id, parent_box_id)
  insert into boxcar.forks (id, project_id, box_id, parent_box_id, opened_by, fork_key, status, merge_back, on_error, receipt, ended_at)
  select id, project_id, id, parent_box_id, id, 'fork', '${status}', true, 'merge',
    jsonb_build_object('parent', parent_box_id, 'merged', 1, 'first', 4, 'last', 4, 'event', 5, 'replaced', false), now() from made`;

const look = async (): Promise<string[]> =>
  (await inspectInvariants(h.database.pool, { limit: 1_000 })).flatMap(({ name, broken }) =>
    broken.map(({ id, what }) => `${name}: ${id} ${what}`),
  );

/** The text of statements that restore all rows to their current state. */
async function keepRows(): Promise<string> {
  const tables = await h.rows<{ name: string }>(
    "select relname as name from pg_class where relnamespace = 'boxcar'::regnamespace and relkind = 'r'",
  );
  const [kept = {}] = await h.rows<Record<string, string | null>>(
    `select ${tables.map(({ name }) => `(select json_agg(t)::text from boxcar.${name} t) as ${name}`).join(', ')}`,
  );
  const statements = tables.flatMap(({ name }) => [
    `delete from boxcar.${name}`,
    ...(kept[name] == null
      ? []
      : [
          `insert into boxcar.${name} select * from json_populate_recordset(null::boxcar.${name}, ${vandal.escapeLiteral(kept[name])})`,
        ]),
  ]);
  return `begin; ${statements.join('; ')}; commit`;
}

describe('for an ended run and a run under way', () => {
  const families = new Map<'boss' | 'waiter', Family>();
  let putBack: string;

  beforeAll(async () => {
    await vandal.query(`
      do $$ declare c record; begin
        for c in select conrelid::regclass as of, conname from pg_constraint where contype = 'c' and connamespace = 'boxcar'::regnamespace loop
          execute format('alter table %s drop constraint %I', c.of, c.conname);
        end loop;
      end $$;
      drop index if exists boxcar.turns_one_active;
      alter table boxcar.tool_calls alter deadline_at drop not null`);
    for (const profile of ['boss', 'waiter'] as const) families.set(profile, await family(profile));
    putBack = await keepRows();
    // From here on, no other process changes anything. The row of the worker stays, as if it were alive.
    await worker.close();
  });
  // The number of rows stays small: with a hundred families, and statistics from before them, some statements take seconds.
  beforeEach(async () => {
    await vandal.query(putBack);
  });

  it('no violation is reported', async () => {
    expect(await look()).toEqual([]);
  });

  it.each(BREAKS)('%s is reported', async (_what, profile, sql, names) => {
    const of = families.get(profile);
    if (of === undefined) throw new Error(`there is no family of ${profile}`);
    for (const statement of sql(of)) await vandal.query(statement);
    const found = new Set((await look()).map((line) => line.split(':')[0]));
    expect([...found].sort()).toEqual([...names].sort());
  });
});

test('each invariant is violated by a test above', () => {
  const broken = new Set(BREAKS.flatMap(([, , , names]) => names));
  const missing = INVARIANTS.filter(({ name }) => !broken.has(name)).map(({ name }) => name);
  // These concern only ended turns and handoffs. They are tested above, and in the tests of notifications about handoffs.
  expect(missing).toEqual(['all-ended', 'told', 'handoff-told']);
});
