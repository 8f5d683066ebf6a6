/** A context box that several turns share. */
import { type BoxId, KernelError } from '@boxcar/kernel';
import { beforeEach, expect, test } from 'vitest';
import { z } from 'zod';
import type { TurnRef } from '../../handler/handler.js';
import { type Harness, harness } from '../../testing/harness.js';
import { checkInvariants } from '../../testing/invariants.js';

let h: Harness;

beforeEach(async () => {
  h = await harness();
  await h.profile('writer', [{ say: 'written' }]);
  return () => h[Symbol.asyncDispose]();
});

test.each([
  ['submitTurn', 'made by the same primitive', false, false],
  ['submitTurn', 'made by the same primitive, its transaction open', false, true],
  ['submitTurns', 'made by the same primitive', true, false],
  ['submitTurns', 'made by the same primitive, its transaction open', true, true],
])('every agent may read the context of its own turn (%s, %s)', async (_how, _when, isTogether, hasTx) => {
  let made: readonly TurnRef[] = [];
  h.runtime.registerHandler('share', {
    description: 'Starts three turns on one context.',
    input: z.strictObject({}),
    handle: async (_input, tools) => {
      const profile = await tools.findProfile('writer');
      const { contextBoxId } = await tools.packer.packContextWithInstruction({
        projectId: tools.ctx.projectId,
        toolSuffix: tools.ctx.primitive,
        sourceAgentId: tools.ctx.source.agentId,
        profileName: profile.name,
        instruction: 'go',
      });
      if (hasTx) await tools.tx.query({ text: 'select 1' });
      const requests = [1, 2, 3].map(() => ({ target: { kind: 'new', profile } as const, contextBoxId }));
      if (isTogether) made = await tools.submitTurns(requests);
      else {
        const single: TurnRef[] = [];
        for (const request of requests) single.push(await tools.submitTurn(request));
        made = single;
      }
      return null;
    },
  });
  await h.worker();
  await h.runtime.submit('share', {});
  const boxes: readonly BoxId[] = made.map(({ contextBoxId }) => contextBoxId);
  expect(new Set(boxes).size).toBe(1);
  for (const { turnId } of made)
    expect(await h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
  // Packing checks the rights of the reader.
  const read = (agentId: string): Promise<string> =>
    h.runtime.packer
      .packContextWithInstruction({
        projectId: 'default',
        toolSuffix: 'test',
        sourceAgentId: agentId,
        profileName: 'writer',
        instruction: 'go on',
        inputBoxIds: boxes.slice(0, 1),
      })
      .then(
        () => 'read',
        (error: unknown) => (error instanceof KernelError ? error.code : String(error)),
      );
  expect(await Promise.all(made.map(({ agentId }) => read(agentId)))).toEqual(['read', 'read', 'read']);
  await checkInvariants(h.database.pool);
});
