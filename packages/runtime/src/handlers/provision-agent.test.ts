import type { AgentId, BoxId, JsonValue, KernelError, TurnId } from '@boxcar/kernel';
import { KernelError as KernelErrorClass } from '@boxcar/kernel';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { newId } from '../lib/new-id.js';
import { statementsOf } from '../testing/count-statements.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { rowCounts } from '../testing/row-counts.js';

interface Provisioned {
  readonly status: string;
  readonly outcome: string;
  readonly agent_id: AgentId;
  readonly name: string;
  readonly profile_name: string;
  readonly profile_version: number;
  readonly output_box_id: BoxId;
}

let h: Harness;

beforeAll(async () => {
  h = await harness();
  await h.profile('expert', [{ say: 'one: {{instruction}}' }], { tags: ['a'] });
  await h.profile('expert', [{ say: 'two: {{instruction}}' }], { tags: ['b'] });
  await h.profile('other', [{ say: 'other' }]);
  await h.worker();
});

afterAll(async () => {
  await checkInvariants(h.database.pool);
  await h[Symbol.asyncDispose]();
});

const provision = async (args: object, options = {}): Promise<Provisioned> =>
  (await h.runtime.submit('provision_agent', args, options)) as unknown as Provisioned;
const counts = () => rowCounts(h.database.pool);
const agentRow = async (id: string) => (await h.rows('select * from boxcar.agents where id = $1', [id]))[0];

async function refusal(work: Promise<unknown>): Promise<KernelError> {
  const thrown: unknown = await work.then(
    () => undefined,
    (error: unknown) => error,
  );
  expect(thrown).toBeInstanceOf(KernelErrorClass);
  return thrown as KernelError;
}

/** Gives an agent a task and returns its answer. */
async function ask(agent: string, instruction = 'x', options = {}): Promise<JsonValue> {
  const args = { target_strategy: 'reuse', target_ref: agent, instruction, wait: true };
  const end = await h.runtime.submit('delegate_async', args, options);
  return (end as { result?: JsonValue }).result ?? null;
}

describe('ensure', () => {
  test('makes the agent once, without a turn, and the agent can then get a task', async () => {
    const before = await counts();
    const made = await provision({ action: 'ensure', agent_id: 'alice', profile_name: 'expert' });
    expect(made).toEqual({
      status: 'accepted',
      outcome: 'created',
      agent_id: expect.any(String),
      name: 'alice',
      profile_name: 'expert',
      profile_version: 2,
      output_box_id: expect.any(String),
      owner_agent_id: expect.any(String),
      shared: false,
    });
    expect(await counts()).toEqual({
      ...before,
      agents: before.agents + 1,
      boxes: before.boxes + 1,
      tape_entries: before.tape_entries + 2,
      operations: before.operations + 1,
    });
    for (const ref of ['alice', ' alice ', made.agent_id, made.agent_id.replaceAll('-', '')])
      expect(await provision({ action: 'ensure', agent_id: ref, profile_name: 'expert' })).toEqual({
        ...made,
        outcome: 'unchanged',
      });
    expect(await provision({ action: 'ensure', agent_id: 'alice' })).toEqual({
      ...made,
      outcome: 'unchanged',
    });
    expect(await counts()).toMatchObject({ agents: before.agents + 1, turns: before.turns });
    expect(await ask('alice', 'first')).toBe('two: first');
    expect(await ask(made.agent_id, 'second')).toBe('two: second');
  });

  test('makes one agent for twenty calls at once, and all calls get that agent', async () => {
    const all = await Promise.all(
      Array.from({ length: 20 }, () =>
        provision({ action: 'ensure', agent_id: 'crowd', profile_name: 'expert' }),
      ),
    );
    expect(new Set(all.map((one) => one.agent_id)).size).toBe(1);
    expect(all.filter((one) => one.outcome === 'created')).toHaveLength(1);
    expect(await h.rows("select from boxcar.agents where name = 'crowd'")).toHaveLength(1);
  });

  test('of another profile is refused, and the agent stays unchanged', async () => {
    const { agent_id } = await provision({ action: 'ensure', agent_id: 'bob', profile_name: 'expert' });
    const before = await counts();
    expect(
      await refusal(provision({ action: 'ensure', agent_id: 'bob', profile_name: 'other' })),
    ).toMatchObject({
      code: 'profile_mismatch',
      details: { agent_id, profile_name: 'expert', asked_profile_name: 'other' },
    });
    expect(await counts()).toEqual(before);
  });

  test('of an agent that cannot be made is refused with the reason', async () => {
    const before = await counts();
    expect(await refusal(provision({ action: 'ensure', agent_id: 'nobody' }))).toMatchObject({
      code: 'not_found',
      message: expect.stringContaining('give profile_name'),
    });
    expect(
      await refusal(provision({ action: 'ensure', agent_id: newId(), profile_name: 'expert' })),
    ).toMatchObject({ code: 'not_found', message: expect.stringContaining('made by the kernel') });
    expect(
      await refusal(provision({ action: 'ensure', agent_id: 'operator', profile_name: 'expert' })),
    ).toMatchObject({ code: 'bad_request', message: expect.stringContaining('the operator') });
    expect(
      await refusal(provision({ action: 'ensure', agent_id: 'carol', profile_name: 'nothing' })),
    ).toMatchObject({ code: 'not_found', details: { profile_name: 'nothing' } });
    expect(
      await refusal(
        provision({ action: 'ensure', agent_id: 'carol', profile_name: 'expert', profile_version: 9 }),
      ),
    ).toMatchObject({ code: 'not_found', details: { profile_name: 'expert', profile_version: 9 } });
    expect(await counts()).toEqual(before);
  });

  test('in another project makes a separate agent', async () => {
    const [project, operator] = [newId(), newId()];
    await h.rows(
      `insert into boxcar.projects (id, name, operator_agent_id, bootstrap_card_id)
       select $1, 'elsewhere', $2, bootstrap_card_id from boxcar.projects limit 1`,
      [project, operator],
    );
    await h.rows('insert into boxcar.agents (id, project_id, name) values ($1, $2, $3)', [
      operator,
      project,
      'operator',
    ]);
    const here = await provision({ action: 'ensure', agent_id: 'twin', profile_name: 'expert' });
    const options = { projectId: 'elsewhere' };
    expect(await refusal(provision({ action: 'ensure', agent_id: here.agent_id }, options))).toMatchObject({
      code: 'not_found',
    });
    expect(await refusal(provision({ action: 'derive', derived_from: 'twin' }, options))).toMatchObject({
      code: 'not_found',
    });
    await h.runtime.applyProfile(
      { name: 'expert', instructions: 'x', model: 'scripted', script: [{ say: 'x' }] },
      options,
    );
    const there = await provision({ action: 'ensure', agent_id: 'twin', profile_name: 'expert' }, options);
    expect(there).toMatchObject({ outcome: 'created', profile_version: 1 });
    expect(there.agent_id).not.toBe(here.agent_id);
  });
});

describe('the version of a profile', () => {
  test('stays with an agent until profile_version changes it, forward or back; accepted turns keep theirs', async () => {
    await h.profile('mover', [{ say: 'v1' }]);
    const { agent_id } = await provision({ action: 'ensure', agent_id: 'moves', profile_name: 'mover' });
    await h.profile('mover', [{ say: 'v2' }]);
    expect(await provision({ action: 'ensure', agent_id: 'moves', profile_name: 'mover' })).toMatchObject({
      outcome: 'unchanged',
      profile_version: 1,
    });
    expect(await ask('moves')).toBe('v1');
    const move = { action: 'ensure', agent_id: 'moves', profile_version: 'current' };
    expect(await provision(move)).toMatchObject({ outcome: 'updated', agent_id, profile_version: 2 });
    expect(await provision(move)).toMatchObject({ outcome: 'unchanged', profile_version: 2 });
    expect(await ask('moves')).toBe('v2');
    expect(await provision({ ...move, profile_version: 1 })).toMatchObject({
      outcome: 'updated',
      profile_version: 1,
    });
    expect(await ask('moves')).toBe('v1');
    expect((await refusal(provision({ ...move, profile_version: 3 }))).code).toBe('not_found');
    const versions = await h.rows<{ version: number }>(
      `select f.version from boxcar.turns t join boxcar.profiles f on f.id = t.profile_id
       where t.agent_id = $1 order by t.id`,
      [agent_id],
    );
    expect(versions.map((row) => row.version)).toEqual([1, 2, 1]);
  });

  test('of a queued turn is the version with which the turn was accepted', async () => {
    await h.profile('parked', [{ say: 'old' }], { worker_target: 'later' });
    await provision({ action: 'ensure', agent_id: 'waits', profile_name: 'parked' });
    const args = { target_strategy: 'reuse', target_ref: 'waits', instruction: 'x' };
    const first = (await h.runtime.submit('delegate_async', args)) as { turn_id: TurnId };
    await h.profile('parked', [{ say: 'new' }], { worker_target: 'later' });
    await provision({ action: 'ensure', agent_id: 'waits', profile_version: 'current' });
    const second = (await h.runtime.submit('delegate_async', args)) as { turn_id: TurnId };
    await h.worker({ targets: ['later'] });
    expect(await h.runtime.waitForTurn(first.turn_id, { timeoutMs: 60_000 })).toMatchObject({
      result: 'old',
    });
    expect(await h.runtime.waitForTurn(second.turn_id, { timeoutMs: 60_000 })).toMatchObject({
      result: 'new',
    });
  });
});

describe('create', () => {
  test('makes a new agent each time, with a generated or a given name, of the requested version', async () => {
    const first = await provision({ action: 'create', profile_name: 'expert' });
    const second = await provision({ action: 'create', profile_name: 'expert', profile_version: 1 });
    expect(first).toMatchObject({ outcome: 'created', name: expect.stringMatching(/^expert-[0-9a-f]{12}$/) });
    expect(second).toMatchObject({ profile_version: 1 });
    expect(second.agent_id).not.toBe(first.agent_id);
    const named = await provision({ action: 'create', profile_name: 'expert', agent_id: 'dora' });
    expect(named.name).toBe('dora');
    const before = await counts();
    for (const agent_id of ['dora', 'operator'])
      expect(await refusal(provision({ action: 'create', profile_name: 'expert', agent_id }))).toMatchObject({
        code: 'agent_exists',
        details: { agent: agent_id },
      });
    expect(await counts()).toEqual(before);
  });

  test('by several callers at once with one name succeeds for one, and the others get an error', async () => {
    const all = await Promise.allSettled(
      Array.from({ length: 8 }, () =>
        provision({ action: 'create', profile_name: 'expert', agent_id: 'race' }),
      ),
    );
    expect(all.filter((one) => one.status === 'fulfilled')).toHaveLength(1);
    for (const one of all) if (one.status === 'rejected') expect(one.reason.code).toBe('agent_exists');
  });

  test('with a key makes one agent, and the second call returns the first answer', async () => {
    const args = { action: 'create', profile_name: 'expert', agent_id: 'keyed' };
    const first = await provision(args, { idempotencyKey: 'k' });
    expect(await provision(args, { idempotencyKey: 'k' })).toEqual(first);
    expect(await refusal(provision({ ...args, agent_id: 'keyed-2' }, { idempotencyKey: 'k' }))).toMatchObject(
      { code: 'idempotency_conflict' },
    );
    expect(await h.rows("select from boxcar.agents where name = 'keyed-2'")).toHaveLength(0);
  });
});

describe('derive', () => {
  test('keeps version and lineage of its source, and starts with an empty tape', async () => {
    const source = await provision({
      action: 'create',
      profile_name: 'expert',
      profile_version: 1,
      agent_id: 'origin',
    });
    expect(await ask('origin', 'secret')).toBe('one: secret');
    const child = await provision({ action: 'derive', derived_from: 'origin', agent_id: 'offspring' });
    expect(child).toMatchObject({ outcome: 'created', name: 'offspring', profile_version: 1 });
    expect(await agentRow(child.agent_id)).toMatchObject({ derived_from: source.agent_id });
    expect(
      await h.rows('select from boxcar.tape_entries where box_id = $1', [child.output_box_id]),
    ).toHaveLength(2);
    const newer = await provision({
      action: 'derive',
      derived_from: source.agent_id,
      profile_version: 'current',
    });
    expect(newer).toMatchObject({ profile_name: 'expert', profile_version: 2 });
    const other = await provision({ action: 'derive', derived_from: 'origin', profile_name: 'other' });
    expect(other).toMatchObject({ profile_name: 'other', profile_version: 1 });
    expect(await agentRow(other.agent_id)).toMatchObject({ derived_from: source.agent_id });
    for (const [args, code] of [
      [{ derived_from: 'origin', agent_id: 'offspring' }, 'agent_exists'],
      [{ derived_from: 'nobody' }, 'not_found'],
      [{ derived_from: 'operator' }, 'not_found'],
    ] as const)
      expect((await refusal(provision({ action: 'derive', ...args }))).code).toBe(code);
  });
});

describe('a caller of provision_agent that is an agent', () => {
  test('can use only profiles that its policy allows, and a refusal leaves no change', async () => {
    await h.profile('boss', [{ say: 'x' }], {
      delegation_policy: { target_profiles: ['expert'], target_tags: ['b'] },
    });
    await h.profile('loner', [{ say: 'x' }]);
    const boss = await provision({ action: 'ensure', agent_id: 'boss', profile_name: 'boss' });
    await provision({ action: 'ensure', agent_id: 'loner', profile_name: 'loner' });
    const as = { sourceAgentId: 'boss' };
    const mine = await provision({ action: 'create', profile_name: 'expert', agent_id: 'mine' }, as);
    expect(await agentRow(mine.agent_id)).toMatchObject({ owner_agent_id: boss.agent_id });
    await provision({ action: 'create', profile_name: 'other', agent_id: 'foreign' });
    const before = await counts();
    for (const [args, options] of [
      [{ action: 'create', profile_name: 'expert' }, { sourceAgentId: 'loner' }],
      [{ action: 'create', profile_name: 'other' }, as],
      // Version 1 does not have the tag.
      [{ action: 'create', profile_name: 'expert', profile_version: 1 }, as],
      [{ action: 'ensure', agent_id: 'mine', profile_version: 1 }, as],
      [{ action: 'ensure', agent_id: 'fresh', profile_name: 'other' }, as],
      // Refused before the error can name the agent's profile.
      [{ action: 'ensure', agent_id: 'foreign', profile_name: 'expert' }, as],
      [{ action: 'derive', derived_from: 'foreign', profile_name: 'expert' }, as],
      [{ action: 'derive', derived_from: 'mine', profile_name: 'other' }, as],
    ] as const)
      expect((await refusal(provision(args, options))).code, JSON.stringify(args)).toBe('delegation_denied');
    expect(await counts()).toEqual(before);
    expect(await provision({ action: 'ensure', agent_id: 'mine', profile_name: 'expert' }, as)).toEqual({
      ...mine,
      outcome: 'unchanged',
    });
  });

  test('can call it as a tool in a turn and work with the agent in the next step', async () => {
    await h.profile(
      'manager',
      [
        {
          calls: [
            {
              tool: 'provision_agent',
              arguments: { action: 'ensure', agent_id: 'helper', profile_name: 'expert' },
            },
          ],
        },
        {
          calls: [
            {
              tool: 'delegate_async',
              arguments: {
                target_strategy: 'reuse',
                target_ref: '{{results/provision_agent/agent_id}}',
                instruction: 'help',
                wait: true,
              },
            },
          ],
        },
        { say: '{{results/delegate_async/result}}' },
      ],
      { tools: ['provision_agent', 'delegate_async'], delegation_policy: { target_profiles: ['expert'] } },
    );
    const end = await h.runtime.submit('launch_principal', {
      profile_name: 'manager',
      instruction: 'go',
      wait: true,
    });
    expect(end).toMatchObject({ status: 'success', result: 'two: help' });
  });
});

test.each([
  ['no action', {}, 'action'],
  ['an unknown action', { action: 'make' }, 'action'],
  ['an unknown key', { action: 'create', profile_name: 'expert', tags: [] }, 'tags'],
  ['ensure without agent_id', { action: 'ensure', profile_name: 'expert' }, 'agent_id'],
  ['create without profile_name', { action: 'create' }, 'profile_name'],
  ['derive without derived_from', { action: 'derive', profile_name: 'expert' }, 'derived_from'],
  [
    'create with derived_from',
    { action: 'create', profile_name: 'expert', derived_from: 'x' },
    'derived_from',
  ],
  ['a name that is an id', { action: 'create', profile_name: 'expert', agent_id: newId() }, 'agent_id'],
  ['a blank name', { action: 'create', profile_name: 'expert', agent_id: ' ' }, 'agent_id'],
  ['a long name', { action: 'create', profile_name: 'expert', agent_id: 'x'.repeat(201) }, 'agent_id'],
  [
    'a name with control characters of terminals',
    { action: 'create', profile_name: 'expert', agent_id: 'a\u001b[2J' },
    'agent_id',
  ],
  ['a name with a NUL', { action: 'create', profile_name: 'expert', agent_id: 'a\u0000' }, 'agent_id'],
  ['version 0', { action: 'create', profile_name: 'expert', profile_version: 0 }, 'profile_version'],
  [
    'a version that is too large',
    { action: 'create', profile_name: 'expert', profile_version: 2 ** 31 },
    'profile_version',
  ],
  [
    'a version that is not a number',
    { action: 'create', profile_name: 'expert', profile_version: 'newest' },
    'profile_version',
  ],
])('%s is refused on submission with the name of the field', async (_what, args, field) => {
  const before = await counts();
  const error = await refusal(provision(args));
  expect(error.code).toBe('bad_request');
  expect(error.message).toContain(field);
  expect(await counts()).toEqual(before);
});

test('provision_agent takes the same number of statements for any number of agents and versions', async () => {
  // Runs without a worker, because its statements would be counted too.
  await using quiet = await harness();
  await quiet.profile('expert', [{ say: 'x' }]);
  const cost = async (args: object): Promise<number> =>
    (await statementsOf(quiet.database, () => quiet.runtime.submit('provision_agent', args))).length;
  // This first call fills the cache of caller facts.
  await quiet.runtime.submit('provision_agent', { action: 'create', profile_name: 'expert' });
  const made = await cost({ action: 'ensure', agent_id: 'n1', profile_name: 'expert' });
  const kept = await cost({ action: 'ensure', agent_id: 'n1', profile_name: 'expert' });
  for (let n = 0; n < 20; n++)
    await quiet.runtime.submit('provision_agent', { action: 'create', profile_name: 'expert' });
  expect(await cost({ action: 'ensure', agent_id: 'n2', profile_name: 'expert' })).toBe(made);
  expect(await cost({ action: 'ensure', agent_id: 'n2', profile_name: 'expert' })).toBe(kept);
  // Two statements: one for the agent, one for the write, which has only the operation's row.
  expect(kept).toBe(2);
});

test('a custom handler makes an agent and gives it a turn in one transaction', async () => {
  h.runtime.registerHandler('hire', {
    description: 'Makes an agent and sets it to work.',
    input: z.strictObject({ name: z.string() }),
    handle: async ({ name }, { createAgent, findProfile, packer, submitTurn, ctx }) => {
      const agent = await createAgent({ profile: await findProfile('other', 1), name });
      const contextBoxId = await packer.createBox({
        projectId: ctx.projectId,
        sourceAgentId: ctx.source.agentId,
        cards: [{ type: 'task.instruction', content: { kind: 'text', text: 'start' } }],
      });
      const turn = await submitTurn({ target: { kind: 'reuse', agent }, contextBoxId, wait: true });
      return { turn_id: turn.turnId };
    },
  });
  expect(await h.runtime.submit('hire', { name: 'hired' })).toMatchObject({ status: 'success' });
  expect(await refusal(h.runtime.submit('hire', { name: 'hired' }))).toMatchObject({ code: 'agent_exists' });
  for (const name of ['', ' ', 'x'.repeat(201), newId()])
    expect(await refusal(h.runtime.submit('hire', { name }))).toMatchObject({ code: 'bad_request' });
});
