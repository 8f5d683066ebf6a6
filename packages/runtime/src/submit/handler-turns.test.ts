/** Turns that custom handlers submit. */
import { type BoxId, type JsonValue, KernelError, type TurnId } from '@boxcar/kernel';
import { beforeEach, describe, expect, test } from 'vitest';
import { z } from 'zod';
import type { HandlerTools, SubmitTurnRequest } from '../handler/handler.js';
import { newId } from '../lib/new-id.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { rowCounts } from '../testing/row-counts.js';

let h: Harness;

beforeEach(async () => {
  h = await harness();
  await h.profile('writer', [{ say: 'written' }], { tags: ['prose'] });
  return () => h[Symbol.asyncDispose]();
});

function register(name: string, handle: (tools: HandlerTools) => Promise<JsonValue>): void {
  h.runtime.registerHandler(name, {
    description: 'For tests.',
    input: z.strictObject({}),
    handle: (_input, tools) => handle(tools),
  });
}

async function requestFor(
  tools: HandlerTools,
  rest: Partial<SubmitTurnRequest> = {},
): Promise<SubmitTurnRequest> {
  const profile = await tools.findProfile('writer');
  const { contextBoxId } = await tools.packer.packContextWithInstruction({
    projectId: tools.ctx.projectId,
    toolSuffix: tools.ctx.primitive,
    sourceAgentId: tools.ctx.source.agentId,
    profileName: profile.name,
    instruction: 'go',
  });
  return { target: { kind: 'new', profile }, contextBoxId, ...rest };
}

const agent = (name: string, profile: string): Promise<JsonValue> =>
  h.runtime.submit('provision_agent', { action: 'create', agent_id: name, profile_name: profile });

const codeOf = (error: unknown): string => (error instanceof KernelError ? error.code : String(error));

describe('the delegation policy of the caller', () => {
  const submits: Record<string, (tools: HandlerTools, request: SubmitTurnRequest) => Promise<unknown>> = {
    submitTurn: (tools, request) => tools.submitTurn(request),
    submitTurns: (tools, request) => tools.submitTurns([request]),
  };

  test.each(Object.keys(submits))(
    'decides which profiles %s reaches, for new and existing agents',
    async (name) => {
      await h.profile('lone', [{ say: 'x' }]);
      await h.profile('lead', [{ say: 'x' }], {
        delegation_policy: { target_profiles: null, target_tags: ['prose'] },
      });
      await h.profile('stranger', [{ say: 'x' }], {
        delegation_policy: { target_profiles: null, target_tags: ['verse'] },
      });
      for (const each of ['lone', 'lead', 'stranger']) await agent(each, each);
      await agent('waiting', 'writer');
      const submit = submits[name] as (typeof submits)[string];
      register('launch', async (tools) => {
        await submit(tools, await requestFor(tools));
        return 'done';
      });
      register('reach', async (tools) => {
        const target = { kind: 'reuse', agent: await tools.findAgent('waiting') } as const;
        await submit(tools, await requestFor(tools, { target }));
        return 'done';
      });
      register('decided', async (tools) => {
        await submit(tools, await requestFor(tools, { access: 'trusted' }));
        return 'done';
      });
      const as = (sourceAgentId: string, primitive: string): Promise<JsonValue> =>
        h.runtime.submit(primitive, {}, { sourceAgentId }).catch(codeOf);
      const before = await rowCounts(h.database.pool);
      for (const primitive of ['launch', 'reach'])
        expect([await as('lone', primitive), await as('stranger', primitive)]).toEqual([
          'delegation_denied',
          'delegation_denied',
        ]);
      // The policy allows the profile, but another agent made the target.
      expect(await as('lead', 'reach')).toBe('delegation_denied');
      expect(await rowCounts(h.database.pool)).toEqual(before);
      await h.runtime.submit('provision_agent', { action: 'ensure', agent_id: 'waiting', shared: true });
      for (const primitive of ['launch', 'reach'])
        expect([await as('lead', primitive), await as('operator', primitive)]).toEqual(['done', 'done']);
      expect(await as('lone', 'decided')).toBe('done');
    },
  );
});

test.each([
  ['submitTurn', (tools: HandlerTools, request: SubmitTurnRequest) => tools.submitTurn(request)],
  ['submitTurns', (tools: HandlerTools, request: SubmitTurnRequest) => tools.submitTurns([request])],
] as const)(
  '%s passes on a context that its caller may read, or for which the handler has decided',
  async (_name, submit) => {
    await h.profile('lead', [{ say: 'x' }], { delegation_policy: { target_profiles: null } });
    await agent('lead', 'lead');
    const { box_id } = (await h.runtime.submit('create_box', {
      cards: [{ type: 'task.context', role: 'user', content: { kind: 'text', text: 'private' } }],
    })) as { box_id: BoxId };
    for (const access of ['actor', 'trusted'] as const)
      register(access, async (tools) => {
        await submit(tools, await requestFor(tools, { access, contextBoxId: box_id }));
        return 'done';
      });
    const as = (sourceAgentId: string, primitive: string): Promise<JsonValue> =>
      h.runtime.submit(primitive, {}, { sourceAgentId }).catch(codeOf);
    const before = await rowCounts(h.database.pool);
    expect(await as('lead', 'actor')).toBe('box_not_authorized');
    expect(await rowCounts(h.database.pool)).toEqual(before);
    expect(await as('operator', 'actor')).toBe('done');
    expect(await as('lead', 'trusted')).toBe('done');
    await h.runtime.submit('grant_box', { box_id, grantee: 'lead' });
    expect(await as('lead', 'actor')).toBe('done');
  },
);

describe('a refused submitTurn that its handler catches', () => {
  type Broken = (tools: HandlerTools, request: SubmitTurnRequest) => Promise<unknown>;
  const refusals: Record<string, [string, Broken]> = {
    'a context box that does not exist': [
      'not_found',
      (tools, request) => tools.submitTurn({ ...request, contextBoxId: newId<'box'>() }),
    ],
    'a profile that does not exist': [
      'not_found',
      (tools, request) => {
        if (request.target.kind !== 'new') throw new Error('a new agent is asked for');
        const profile = { ...request.target.profile, profileId: newId<'profile'>() };
        return tools.submitTurn({ ...request, target: { kind: 'new', profile } });
      },
    ],
    'a budget that cannot be': [
      'budget_exceeded',
      (tools, request) => tools.submitTurns([request, request], { runBudget: { turns: 1 } }),
    ],
    'a deadline that is none': [
      'bad_request',
      async (tools, request) => tools.submitTurn({ ...request, deadlineMs: -1 }),
    ],
  };

  test.each(Object.keys(refusals).flatMap((why) => [true, false].map((hasTx) => [why, hasTx] as const)))(
    'leaves no change: %s (a transaction is open: %s)',
    async (why, hasTx) => {
      const [code, refused] = refusals[why] as [string, Broken];
      const met: string[] = [];
      register('tries', async (tools) => {
        const request = await requestFor(tools);
        if (hasTx) await tools.tx.query({ text: 'select 1' });
        await refused(tools, request).catch((error: unknown) => met.push(codeOf(error)));
        return 'went on';
      });
      const before = await rowCounts(h.database.pool);
      expect(await h.runtime.submit('tries', {})).toBe('went on');
      expect(met).toEqual([code]);
      const after = await rowCounts(h.database.pool);
      for (const table of ['agents', 'turns', 'runs', 'budgets', 'grants', 'tape_entries'] as const)
        expect([table, after[table]]).toEqual([table, before[table]]);
      expect(await h.rows("select id from boxcar.boxes where kind = 'tape'")).toEqual([]);
      await checkInvariants(h.database.pool);
    },
  );

  test('does not prevent a later accepted turn of the handler', async () => {
    register('tries', async (tools) => {
      const request = await requestFor(tools);
      await tools.submitTurn({ ...request, contextBoxId: newId<'box'>() }).catch(() => undefined);
      return { ...(await tools.submitTurn(request)) };
    });
    const { turnId } = (await h.runtime.submit('tries', {})) as { turnId: TurnId };
    await h.worker();
    expect(await h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
    await checkInvariants(h.database.pool);
  });
});

test('every try of a handler gets a new copy of its input', async () => {
  const seen: unknown[] = [];
  h.runtime.registerHandler('greedy', {
    description: 'Empties its input.',
    input: z.strictObject({ list: z.array(z.string()), rest: z.json() }),
    handle: async (input, { tx }) => {
      seen.push(structuredClone(input));
      input.list.splice(0);
      Object.assign(input.rest as object, { more: true });
      if (seen.length < 3)
        await tx.query({ text: "do $$ begin raise 'race' using errcode = '40001'; end $$" });
      return 'done';
    },
  });
  const args = { list: ['a', 'b'], rest: { n: 1 } };
  const options = { idempotencyKey: 'greedy-1' };
  expect(await h.runtime.submit('greedy', args, options)).toBe('done');
  expect(args).toEqual({ list: ['a', 'b'], rest: { n: 1 } });
  expect(seen).toEqual([args, args, args]);
  expect(await h.runtime.submit('greedy', args, options)).toBe('done');
  expect(seen).toHaveLength(3);
});

test('a handler is asked for its profiles only when the submission is well-formed', async () => {
  const asked: unknown[] = [];
  h.runtime.registerHandler('asked', {
    description: 'For tests.',
    input: z.strictObject({ name: z.string() }),
    profileNames: ({ name }) => {
      asked.push(name);
      throw new Error('no profile');
    },
    handle: () => 'done',
  });
  const submit = (args: unknown, idempotencyKey: string): Promise<unknown> =>
    h.runtime.submit('asked', args, { idempotencyKey }).catch(codeOf);
  expect(await submit({ name: 'x', more: 1 }, 'k')).toBe('bad_request');
  expect(await submit({ name: 'x' }, 'call:k')).toBe('bad_request');
  expect(await submit({ name: 'x' }, '')).toBe('bad_request');
  expect(asked).toEqual([]);
  expect(await submit({ name: 'x' }, 'k')).toBe('Error: no profile');
});
