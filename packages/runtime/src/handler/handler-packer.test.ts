import { expect, expectTypeOf, test } from 'vitest';
import { z } from 'zod';
import { HandoverPacker } from '../pack/packer.js';
import { harness } from '../testing/harness.js';
import type { HandlerTools } from './handler.js';

test('a handler’s packer is a HandoverPacker, so both have the same methods', () => {
  expectTypeOf<HandlerTools['packer']>().toExtend<HandoverPacker>();
});

test('a handler that packs nothing gets nothing', async () => {
  await using h = await harness();
  h.runtime.registerHandler('none', {
    description: 'For tests.',
    input: z.strictObject({}),
    handle: async (_input, { packer }) => [
      packer instanceof HandoverPacker,
      (await packer.packMany([])).length,
    ],
  });
  expect(await h.runtime.submit('none', {})).toEqual([true, 0]);
});
