/** Turns that custom handlers submit. */
import { type JsonValue, KernelError } from '@boxcar/kernel';
import { beforeEach, describe, expect, test } from 'vitest';
import { z } from 'zod';
import type { HandlerTools, SubmitTurnRequest } from '../handler.js';
import { type Harness, harness } from '../testing/harness.js';
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

  test.each(Object.keys(submits))('decides whom %s reaches, new or existing', async (name) => {
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
    // The policy reaches the profile, and the agent is another's.
    expect(await as('lead', 'reach')).toBe('delegation_denied');
    expect(await rowCounts(h.database.pool)).toEqual(before);
    await h.runtime.submit('provision_agent', { action: 'ensure', agent_id: 'waiting', shared: true });
    for (const primitive of ['launch', 'reach'])
      expect([await as('lead', primitive), await as('operator', primitive)]).toEqual(['done', 'done']);
    expect(await as('lone', 'decided')).toBe('done');
  });
});
