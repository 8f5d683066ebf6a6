import { argsHash, buildCard, type JsonObject, type Principal, type TicketId } from '@boxcar/kernel';
import type pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { transaction } from '../db/index.js';
import { createPool } from '../db/pool.js';
import { DEFAULT_PROJECT, newId, World } from '../testing/world.js';
import {
  APPROVALS_CHANNEL,
  consumeTicket,
  decideTicket,
  expireDueTickets,
  findTicket,
  keepPolicy,
  type NewTicket,
  requestApproval,
  voidTicket,
} from './tickets.js';

let world: World;
let other: pg.Pool;

beforeAll(async () => {
  world = await World.open();
  other = createPool({ connectionString: world.database.url });
});
afterAll(async () => {
  await other.end();
  await world[Symbol.asyncDispose]();
});

const REVIEWER: Principal = { id: 'reviewer', kind: 'person', scopes: ['approvals:write'] };
const later = (minutes: number) => ({ now: new Date(Date.now() + minutes * 60_000) });

function ticketOf(args: JsonObject, rest: Partial<NewTicket> = {}): NewTicket {
  return {
    id: newId<'ticket'>(),
    projectId: DEFAULT_PROJECT,
    runId: 'run-1',
    turnId: null,
    toolCallId: null,
    agent: 'main',
    toolName: 'handoff',
    card: buildCard(
      {
        type: 'approval.request',
        role: null,
        content: { kind: 'json', data: args },
        metadata: {},
        authorId: 'main',
      },
      { id: newId<'card'>(), projectId: DEFAULT_PROJECT },
    ),
    argsHash: argsHash(args),
    contextHash: '',
    payloadHash: '',
    policyVersion: '',
    timeoutMs: 60_000,
    callMs: null,
    metadata: {},
    ...rest,
  };
}
const request = (ticket: NewTicket, options = {}, pool: pg.Pool = world.pool) =>
  transaction(pool, (tx) => requestApproval(tx, ticket, options));
const decide = (
  ticketId: TicketId,
  status: 'approved' | 'denied' = 'approved',
  options = {},
  pool: pg.Pool = world.pool,
) =>
  decideTicket(
    pool,
    { ticketId, projectId: DEFAULT_PROJECT, status, principal: REVIEWER, reason: 'seen', response: null },
    options,
  );
const find = (ticketId: TicketId) => findTicket(world.pool, { ticketId, projectId: DEFAULT_PROJECT });
const consume = (ticket: NewTicket, ticketId = ticket.id, pool: pg.Pool = world.pool) =>
  consumeTicket(pool, { ...ticket, ticketId });

test('a ticket has the content of its request, and is decided, consumed and reported once', async () => {
  const client = await other.connect();
  const told: (string | undefined)[] = [];
  client.on('notification', ({ payload }) => told.push(payload));
  await client.query(`listen ${APPROVALS_CHANNEL}`);
  const ticket = ticketOf({ amount: 5 }, { metadata: { handoff: { target_agent: 'x' } } });
  expect(await request(ticket)).toEqual({ id: ticket.id, isNew: true });
  expect(await find(ticket.id)).toMatchObject({
    status: 'pending',
    args: { amount: 5 },
    agent: 'main',
    metadata: { handoff: { target_agent: 'x' } },
    resolved_at: null,
  });
  expect(await consume(ticket)).toBe(false);
  expect(await decide(ticket.id)).toMatchObject({ status: 'approved' });
  expect(await decide(ticket.id, 'denied')).toBeUndefined();
  expect(await find(ticket.id)).toMatchObject({
    status: 'approved',
    resolved_by: 'reviewer',
    decision_reason: 'seen',
  });
  expect(await consume({ ...ticket, argsHash: argsHash({ amount: 6 }) })).toBe(false);
  expect(await consume({ ...ticket, contextHash: argsHash({}) })).toBe(false);
  expect(await consume({ ...ticket, policyVersion: argsHash('v2') })).toBe(false);
  expect(await consume(ticket)).toBe(true);
  expect(await consume(ticket)).toBe(false);
  await client.query('select 1');
  expect(told).toEqual([ticket.id]);
  client.release(true);
});

test('identical requests share a pending ticket, and different requests do not', async () => {
  const first = ticketOf({ a: 1 });
  await request(first);
  expect(await request(ticketOf({ a: 1 }))).toEqual({ id: first.id, isNew: false });
  // The same request again, after a lost answer.
  expect(await request(first)).toEqual({ id: first.id, isNew: true });
  for (const rest of [
    { runId: 'run-2' },
    { toolName: 'pay' },
    { contextHash: argsHash({ c: 1 }) },
    { payloadHash: argsHash({ p: 1 }) },
    { policyVersion: argsHash('v2') },
  ])
    expect(await request(ticketOf({ a: 1 }, rest))).toMatchObject({ isNew: true });
  expect(await request(ticketOf({ a: 2 }))).toMatchObject({ isNew: true });
  await decide(first.id, 'denied');
  const next = ticketOf({ a: 1 });
  expect(await request(next)).toEqual({ id: next.id, isNew: true });
  // An unused card is not kept.
  const [cards] = await world.rows<{ n: number }>(
    "select count(*)::int as n from boxcar.cards c where c.type = 'approval.request' and not exists (select from boxcar.approvals a where a.card_id = c.id)",
  );
  expect(cards?.n).toBe(0);
});

test('a decision that arrives too late expires the ticket, and later requests do not share the ticket', async () => {
  const late = ticketOf({ late: 1 });
  await request(late);
  expect(await decide(late.id, 'approved', later(2))).toMatchObject({ status: 'expired' });
  expect(await find(late.id)).toMatchObject({
    status: 'expired',
    resolved_by: 'system:auto-expire',
    decision_reason: 'Approval request expired',
    response: { reason: 'expired' },
  });
  const unseen = ticketOf({ late: 2 });
  await request(unseen);
  const next = ticketOf({ late: 2 });
  expect(await request(next, later(2))).toEqual({ id: next.id, isNew: true });
  expect(await find(unseen.id)).toMatchObject({ status: 'expired' });
});

test('tickets expire on time, and no other tickets expire', async () => {
  const short = ticketOf({ due: 1 }, { timeoutMs: 1_000 });
  const long = ticketOf({ due: 2 }, { timeoutMs: 3_600_000 });
  await request(short);
  await request(long);
  const expired = await expireDueTickets(world.pool, { limit: 10, ...later(1) });
  expect(expired.map(({ id }) => id)).toContain(short.id);
  expect(await find(long.id)).toMatchObject({ status: 'pending' });
  expect(await decide(short.id)).toBeUndefined();
});

test('a void ticket approves nothing', async () => {
  const ticket = ticketOf({ void: 1 });
  await request(ticket);
  await decide(ticket.id);
  expect(await voidTicket(world.pool, { ticketId: ticket.id, projectId: DEFAULT_PROJECT })).toBe(true);
  expect(await consume(ticket)).toBe(false);
  const used = ticketOf({ void: 2 });
  await request(used);
  await decide(used.id);
  await consume(used);
  expect(await voidTicket(world.pool, { ticketId: used.id, projectId: DEFAULT_PROJECT })).toBe(false);
});

test('a policy is stored once', async () => {
  const policy = { version: argsHash({ tools: {} }), text: 'tools: {}' };
  await keepPolicy(world.pool, policy);
  await keepPolicy(world.pool, { ...policy, text: 'tools: {} # again' });
  expect(await world.rows('select content from boxcar.policies')).toEqual([{ content: 'tools: {}' }]);
});

test('of two processes that decide, expire or consume a ticket at the same moment, one succeeds, in 200 rounds each', async () => {
  const expire = () => expireDueTickets(other, { limit: 50, ...later(2) });
  const counts = { approved: 0, denied: 0, expired: 0 };
  for (let round = 0; round < 200; round += 1) {
    const [pair, lonely, twice] = [1, 2, 3].map((n) => ticketOf({ round, n })) as [
      NewTicket,
      NewTicket,
      NewTicket,
    ];
    await Promise.all([pair, lonely, twice].map((ticket) => request(ticket)));
    const decided = await Promise.all([decide(pair.id, 'approved'), decide(pair.id, 'denied', {}, other)]);
    expect(decided.filter((one) => one !== undefined)).toHaveLength(1);
    await decide(twice.id);
    expect(
      (await Promise.all([consume(twice), consume(twice, twice.id, other)])).filter(Boolean),
    ).toHaveLength(1);
    const [mine, theirs] = await Promise.all([decide(lonely.id), expire()]);
    expect(Number(mine !== undefined) + theirs.filter(({ id }) => id === lonely.id).length).toBe(1);
    for (const { id } of [pair, lonely]) {
      const { status = 'pending' } = (await find(id)) ?? {};
      if (status !== 'pending') counts[status] += 1;
    }
  }
  expect(counts.approved + counts.denied + counts.expired).toBe(400);
  // Concurrent identical requests make one ticket.
  for (let round = 0; round < 50; round += 1) {
    const made = await Promise.all(
      [world.pool, other, world.pool].map((pool) => request(ticketOf({ same: round }), {}, pool)),
    );
    expect(made.filter(({ isNew }) => isNew)).toHaveLength(1);
    expect(new Set(made.map(({ id }) => id)).size).toBe(1);
  }
});
