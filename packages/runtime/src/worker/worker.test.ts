import { waitFor } from '@boxcar/testkit';
import { describe, expect, test } from 'vitest';
import { z } from 'zod';
import { harness } from '../testing/harness.js';

describe('a turn', () => {
  test('runs from submit to deliverable', async () => {
    await using h = await harness();
    await h.profile('writer', [{ say: 'Hello {{instruction}}' }]);
    await h.worker();
    const receipt = (await h.runtime.submit('launch_principal', {
      profile_name: 'writer',
      instruction: 'world',
    })) as { turn_id: string };
    const end = await h.runtime.waitForTurn(receipt.turn_id, { timeoutMs: 10_000 });
    expect(end).toMatchObject({ status: 'success', result: 'Hello world' });
  });

  test('calls tools and primitives and ends with submit_result', async () => {
    await using h = await harness();
    h.runtime.registerTool({
      name: 'add',
      description: 'Adds.',
      input: z.strictObject({ a: z.number(), b: z.number() }),
      run: ({ a, b }) => ({ sum: a + b }),
    });
    await h.profile('expert', [{ say: 'The answer to {{instruction}} is 42' }]);
    await h.profile(
      'principal',
      [
        {
          calls: [
            { tool: 'add', arguments: { a: 1, b: 2 } },
            { tool: 'ask_expert', arguments: { expert_profile: 'expert', question: 'life' } },
          ],
        },
        {
          calls: [
            {
              tool: 'submit_result',
              arguments: { result: { sum: '{{results/add/sum}}', said: '{{results/ask_expert/result}}' } },
            },
          ],
        },
      ],
      { tools: ['add', 'ask_expert', 'submit_result'], delegation_policy: { target_profiles: ['expert'] } },
    );
    await h.worker();
    const answer = await h.runtime.submit('launch_principal', {
      profile_name: 'principal',
      instruction: 'go',
      wait: true,
    });
    expect(answer).toMatchObject({ status: 'success', result: { sum: 3, said: 'The answer to life is 42' } });
  });
});

test('a worker removes the rows of workers that died long ago', async () => {
  await using h = await harness();
  await h.rows(
    `insert into boxcar.workers (id, lock_key, lease_until, targets, concurrency)
     values (gen_random_uuid(), 1, now() - interval '2 days', '{""}', 1)`,
  );
  const worker = await h.worker();
  await waitFor(async () => (await h.rows('select id from boxcar.workers')).length === 1, {
    message: 'only the living worker is left',
  });
  expect(await h.rows('select id from boxcar.workers')).toEqual([{ id: worker.id }]);
});
