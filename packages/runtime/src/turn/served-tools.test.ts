/**
 * Tools that MCP servers provide, tested through the port. The real implementation of the port is tested in
 * packages/mcp-client.
 */
import { type JsonValue, KernelError, type TurnId } from '@boxcar/kernel';
import { PermissionEvaluator } from '@boxcar/policy';
import { waitFor } from '@boxcar/testkit';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { ApprovalGate } from '../approval/approval-gate.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import type { Tool } from '../tool/tool.js';
import type { ToolServers } from '../tool/tool-servers.js';

let h: Harness;
let offered: Tool[];
let run: string[];
let away: KernelError | undefined;

const servers: ToolServers = {
  names: new Set(['box']),
  toolsOf: async () => [...offered],
  whyUnseen: () => away,
};

const tool = (name: string, rest: Partial<Tool> = {}): Tool => ({
  name: `box.${name}`,
  description: `Does ${name}.`,
  input: z.looseObject({}),
  parameters: { type: 'object', properties: { n: { type: 'integer' } } },
  run: () => {
    run.push(name);
    return { did: name };
  },
  ...rest,
});

const start = async (rest: Parameters<typeof harness>[0] = {}): Promise<void> => {
  h = await harness({ toolServers: servers, ...rest });
};
beforeEach(() => {
  offered = [tool('open'), tool('shut')];
  run = [];
  away = undefined;
});
afterEach(async () => {
  await checkInvariants(h.database.pool, { isSettled: false });
  await h[Symbol.asyncDispose]();
});

const call = (name: string, n = 1) => ({ calls: [{ tool: name, arguments: { n } }] });
const profile = (
  script: readonly JsonValue[] = [call('box.open'), { say: 'done' }],
  rest: Readonly<Record<string, unknown>> = {},
) => h.profile('porter', script, { mcp: ['box'], ...rest });
const launch = async (): Promise<TurnId> =>
  (
    (await h.runtime.submit('launch_principal', { profile_name: 'porter', instruction: 'go' })) as {
      turn_id: TurnId;
    }
  ).turn_id;
const end = (turnId: TurnId) => h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });
const callsOf = (turnId: TurnId) =>
  h.rows<{ name: string; route: string; retry: string; status: string; content: JsonValue }>(
    `select k.name, k.route, k.retry, k.status, c.content
     from boxcar.tool_calls k left join boxcar.cards c on c.id = k.result_card_id
     where k.turn_id = $1 order by k.step, k.ordinal`,
    [turnId],
  );
const toolsetsOf = (turnId: TurnId) =>
  h.rows<{ schemas: readonly { name: string; source: string; parameters: JsonValue }[] }>(
    `select t.schemas from boxcar.steps s join boxcar.toolsets t on t.hash = s.toolset_hash
     where s.turn_id = $1 order by s.step`,
    [turnId],
  );

describe('the tools of an MCP server that the profile names', () => {
  test('are offered, recorded as the server’s own, and called like every other tool', async () => {
    await start();
    await profile();
    await h.worker();
    const turn = await launch();
    expect(await end(turn)).toMatchObject({ status: 'success' });
    expect(run).toEqual(['open']);
    expect(await callsOf(turn)).toMatchObject([
      { name: 'box.open', route: 'function', retry: 'never', status: 'success' },
    ]);
    const [first] = await toolsetsOf(turn);
    expect(first?.schemas.map(({ name, source }) => [name, source])).toEqual([
      ['box.open', 'mcp'],
      ['box.shut', 'mcp'],
    ]);
    expect(first?.schemas[0]?.parameters).toEqual(offered[0]?.parameters);
  });

  test('are fixed for a step: a list that changes later changes the next step', async () => {
    await start();
    offered = [
      tool('open', {
        run: () => {
          run.push('open');
          offered = [tool('shut')];
          return null;
        },
      }),
    ];
    await profile([call('box.open'), call('box.open', 2), call('box.shut'), { say: 'done' }]);
    await h.worker();
    const turn = await launch();
    expect(await end(turn)).toMatchObject({ status: 'success' });
    expect(run).toEqual(['open', 'shut']);
    expect((await callsOf(turn)).map(({ route, status }) => [route, status])).toEqual([
      ['function', 'success'],
      ['none', 'failed'],
      ['function', 'success'],
    ]);
    const names = (await toolsetsOf(turn)).map(({ schemas }) => schemas.map(({ name }) => name));
    expect(names).toEqual([['box.open'], ['box.shut'], ['box.shut'], ['box.shut']]);
  });

  test('cannot be called by a profile that does not name the server', async () => {
    await start();
    await profile([call('box.open'), { say: 'done' }], { mcp: undefined });
    await h.worker();
    const turn = await launch();
    expect(await end(turn)).toMatchObject({ status: 'success' });
    expect(run).toEqual([]);
    expect(await callsOf(turn)).toMatchObject([
      { route: 'none', content: { error: { code: 'tool_unknown' } } },
    ]);
  });

  test('never take the name of a registered tool', async () => {
    await start();
    h.runtime.registerTool({ ...tool('open'), run: () => 'ours' });
    await profile([call('box.open'), { say: 'done' }], { tools: ['box.open'] });
    await h.worker();
    const turn = await launch();
    expect(await end(turn)).toMatchObject({ status: 'success' });
    expect([run, await callsOf(turn)]).toMatchObject([[], [{ content: { result: 'ours' } }]]);
  });

  test('can be the call that a turn must end with', async () => {
    await start();
    await profile([{ say: 'no' }, call('box.shut')], { must_end_with: ['box.shut'] });
    await h.worker();
    expect(await end(await launch())).toMatchObject({ status: 'success', result: { did: 'shut' } });
  });
});

describe('an MCP server that the worker does not know', () => {
  test('ends the turn with an error about it, and the profile is accepted with a finding', async () => {
    await start();
    const applied = await h.runtime.applyProfile({
      name: 'porter',
      instructions: 'Go.',
      model: 'scripted',
      script: [{ say: 'done' }],
      mcp: ['box', 'attic'],
      requires_approval: ['box.open'],
    });
    expect(applied.findings).toEqual([
      { tool: 'attic.*', message: expect.stringContaining("no MCP server 'attic' is defined here") },
    ]);
    await h.worker();
    const turn = await end(await launch());
    expect(turn).toMatchObject({
      status: 'failed',
      error: { code: 'tool_unknown', message: expect.stringContaining("MCP server 'attic'") },
    });
    expect(turn.error?.message).toContain('BOXCAR_MCP_SERVERS');
  });
});

describe('a call to an MCP server that needs an approval', () => {
  const wait = async (): Promise<{ turn: TurnId; ticket: string }> => {
    const turn = await launch();
    const ticket = await waitFor(
      async () =>
        (await h.rows<{ id: string }>('select id from boxcar.approvals where turn_id = $1', [turn]))[0]?.id,
      { message: 'there is a ticket' },
    );
    return { turn, ticket };
  };

  test.each<[string, Parameters<typeof harness>[0], Readonly<Record<string, unknown>>]>([
    ['the profile', {}, { requires_approval: ['box.open'] }],
    [
      'the policy',
      {
        permissionEvaluator: new PermissionEvaluator({
          text: 'tools: { box.open: { permission: REQUIRE_APPROVAL } }',
          environment: 'production',
        }),
      },
      {},
    ],
  ])('by its name in %s runs once it is approved', async (_what, options, rest) => {
    await start(options);
    await profile(undefined, rest);
    await h.worker();
    const { turn, ticket } = await wait();
    expect(run).toEqual([]);
    await new ApprovalGate({ runtime: h.runtime }).approve(ticket);
    expect(await end(turn)).toMatchObject({ status: 'success' });
    expect(run).toEqual(['open']);
  });

  const approvedLater = async (): Promise<JsonValue | undefined> => {
    await start();
    await profile(undefined, { requires_approval: ['box.open'] });
    await h.worker();
    const { turn, ticket } = await wait();
    offered = [];
    await new ApprovalGate({ runtime: h.runtime }).approve(ticket);
    expect(await end(turn)).toMatchObject({ status: 'success' });
    expect(run).toEqual([]);
    const [call] = await callsOf(turn);
    expect(call?.status).toBe('failed');
    return call?.content;
  };

  test('has a readable result when the server has lost the tool meanwhile', async () => {
    expect(await approvedLater()).toMatchObject({
      error: {
        code: 'tool_unknown',
        message: expect.stringContaining("'box.open' is not among the tools of its MCP server now."),
      },
    });
  });

  test('has a result that names the server when it is away and its tools were never seen here', async () => {
    away = new KernelError('tool_server_unavailable', { message: "The MCP server 'box' cannot be reached." });
    expect(await approvedLater()).toMatchObject({
      error: { code: 'tool_server_unavailable', message: expect.stringContaining("'box' cannot be reached") },
    });
  });
});
