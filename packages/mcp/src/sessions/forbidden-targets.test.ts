/**
 * A target that a policy forbids, under every spelling and through every tool that hands work over: it neither runs nor reads anything.
 */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Connection, openStage, type Stage } from '../testing/stage.js';

// The policy names the profile and one of its agents; the other agent belongs to the profile.
const POLICY = `
tools:
  handoff: { permission: ALWAYS }
rules:
  - { condition: { context: { target_agent: [secret, hidden] } }, permission: NEVER }
`;

let stage: Stage;
let connection: Connection;
let ids: readonly string[];
let n = 0;

beforeAll(async () => {
  stage = await openStage({ works: false, policy: POLICY, handsOff: true });
  await stage.profile('secret', [{ say: 'told' }], { worker_target: 'nowhere' });
  await stage.profile('open', [{ say: 'told' }], { worker_target: 'nowhere' });
  await stage.agent('sleeper', 'secret');
  await stage.agent('hidden', 'open');
  connection = await stage.connect();
  const { rows } = await stage.database.pool.query<{ id: string }>(
    "select id from boxcar.agents where name in ('sleeper', 'hidden') order by name",
  );
  ids = rows.map(({ id }) => id);
});
afterAll(() => stage[Symbol.asyncDispose]());

const KNOWN = ['secret', 'profile:secret', 'sleeper', 'agent:sleeper', 'hidden', 'agent:hidden'];
/**
 * Names without an agent here: the handoff is refused, or waits for an agent of exactly this name, which no agent can have by accident.
 */
const UNKNOWN = [
  'SECRET',
  'Hidden',
  'agent:secret',
  'profile:hidden',
  'profile:profile:secret',
  ...KNOWN.flatMap((name) => [` ${name}`, `${name} `, `${name}\n`, `\t${name}`]),
];

async function session(): Promise<string> {
  const session_key = `s-${++n}`;
  await connection.call('register_session', { session_key, agent_from: 'x' });
  return session_key;
}

/** Every row from which the target could run or read. */
async function traces(): Promise<unknown> {
  const { rows } = await stage.database.pool.query(
    `select (select count(*)::int from boxcar.turns) as turns, (select count(*)::int from boxcar.grants) as grants,
       (select count(*)::int from boxcar.agents a join boxcar.profiles p on p.id = a.profile_id where p.name = 'secret') as agents`,
  );
  return rows[0];
}

test('every spelling of a forbidden target is refused with a recorded row, and the session stays unchanged', async () => {
  const before = await traces();
  for (const target_agent of [...KNOWN, ...ids, ...ids.map((id) => `agent:${id}`)]) {
    const session_key = await session();
    const { body } = await connection.call('request_handoff', { session_key, target_agent });
    expect(body, target_agent).toMatchObject({ success: false, error_code: 'PERMISSION_DENIED' });
    const { handoff_id } = body.details as { readonly handoff_id: string };
    const { rows } = await stage.database.pool.query('select phase from boxcar.handoffs where id = $1', [
      handoff_id,
    ]);
    expect(rows).toEqual([{ phase: 'rejected' }]);
    expect((await connection.call('get_summary', { session_key })).body).toMatchObject({
      status: 'active',
      context_entries: 1,
    });
  }
  expect(await traces()).toEqual(before);
});

test('a similar name does not reach the forbidden target', async () => {
  const before = await traces();
  for (const target_agent of UNKNOWN) {
    const session_key = await session();
    await connection.call('request_handoff', { session_key, target_agent });
  }
  expect(await traces()).toEqual(before);
  for (const as of ['sleeper', 'hidden']) {
    await using target = await stage.connect({ as });
    for (let at = 1; at <= n; at += 1)
      expect((await target.call('get_context', { session_key: `s-${at}` })).body).toMatchObject({
        error_code: 'SESSION_NOT_FOUND',
      });
    const { body } = await target.call('list_handoffs', { target_agent: as });
    for (const { handoff_id } of body.handoffs as readonly { readonly handoff_id: string }[])
      expect((await target.call('accept_handoff', { handoff_id })).isError).toBe(true);
  }
});

test('an agent or a profile of this project that is named as such and does not exist is refused', async () => {
  for (const target_agent of ['agent:nobody', 'profile:nobody']) {
    const session_key = await session();
    const { body } = await connection.call('request_handoff', { session_key, target_agent });
    expect(body).toMatchObject({ success: false, error_code: 'NOT_FOUND' });
  }
});

test('the primitive `handoff` also refuses the forbidden target', async () => {
  const before = await traces();
  for (const target_agent of [...KNOWN, ...ids]) {
    const asked = { source_agent: 'x', target_agent, task: 'tell', wait: false };
    const { body } = await connection.call('handoff', asked);
    expect(body).toMatchObject({ success: false, error_code: 'PERMISSION_DENIED' });
  }
  expect(await traces()).toEqual(before);
});
