import type { JsonObject } from '@boxcar/kernel';
import { waitFor } from '@boxcar/testkit';
import { expect, test } from 'vitest';
import type { TurnResult } from '../queue/turn-result.js';
import { harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';

const CHILDREN = 500;
/** The model calls of this many children run when the cancel arrives, and as many other children never start. */
const HANGING = 10;

test('a batch of 500 that is canceled midway keeps the ended turns, ends the others once, and frees every slot', async () => {
  await using h = await harness();
  const ask = (tool: string, args: JsonObject): JsonObject => ({ calls: [{ tool, arguments: args }] });
  const task = (target_ref: string) => ({ target_strategy: 'new', target_ref, instruction: 'go' });
  const profiles = Array.from({ length: CHILDREN }, (_item, index) =>
    index % (CHILDREN / HANGING) === 0 ? 'hanging' : index % (CHILDREN / HANGING) === 1 ? 'absent' : 'quick',
  );
  const rest = { tools: ['fork_join', 'delegate_async'], delegation_policy: { target_profiles: null } };
  await h.profile('quick', [{ say: 'quick' }]);
  await h.profile('hanging', [{ say: 'never', delayMs: 600_000 }]);
  await h.profile('absent', [{ say: 'never' }], { worker_target: 'nowhere' });
  await h.profile('lead', [ask('fork_join', { tasks: profiles.map(task) })], rest);
  await h.profile(
    'chief',
    [ask('delegate_async', { ...task('lead'), wait: true }), { say: '{{results/delegate_async/status}}' }],
    rest,
  );
  await h.worker({ concurrency: HANGING + 5 });

  const chief = (await h.runtime.submit('launch_principal', {
    profile_name: 'chief',
    instruction: 'go',
  })) as unknown as TurnResult;
  const lead = await waitFor(
    async () => {
      const [row] = await h.rows<{ id: string; ended: number; hanging: number }>(
        `select l.id, (select count(*)::int from boxcar.turns c where c.parent_turn_id = l.id and c.status = 'success') as ended,
           (select count(*)::int from boxcar.turns c where c.parent_turn_id = l.id and c.status = 'running') as hanging
         from boxcar.turns l where l.parent_turn_id = $1`,
        [chief.turn_id],
      );
      return row !== undefined && row.ended >= CHILDREN / 5 && row.hanging >= HANGING ? row.id : undefined;
    },
    { message: 'a fifth of the children has ended, and others hang' },
  );
  const canceled = (await h.runtime.submit('cancel', { turn_id: lead, reason: 'enough' })) as {
    turn_count: number;
  };

  expect(await h.runtime.waitForTurn(chief.turn_id, { timeoutMs: 60_000 })).toMatchObject({
    status: 'success',
    result: 'canceled',
  });
  const children = await h.rows<{ status: string; n: number; delivered: number }>(
    `select c.status, count(*)::int as n, count(c.deliverable_card_id)::int as delivered
     from boxcar.turns c where c.parent_turn_id = $1 group by 1 order by 1`,
    [lead],
  );
  const of = (status: string): number => children.find((row) => row.status === status)?.n ?? 0;
  expect(children.map(({ status }) => status)).toEqual(['canceled', 'success']);
  expect(of('canceled') + of('success')).toBe(CHILDREN);
  // This one cancel ended each of them, and the lead.
  expect(canceled.turn_count).toBe(of('canceled') + 1);
  expect(children.map(({ n }) => n)).toEqual(children.map(({ delivered }) => delivered));
  await waitFor(
    async () => (await h.rows("select from boxcar.batches where status = 'running'")).length === 0,
    { message: 'the batch has ended' },
  );
  expect(
    await h.rows('select status, remaining, succeeded from boxcar.batches where turn_id = $1', [lead]),
  ).toEqual([{ status: 'canceled', remaining: 0, succeeded: of('success') }]);

  // The children that hung hold no slots any more: all turns below run at the same time.
  const again = Array.from({ length: HANGING + 5 }, () =>
    h.runtime.submit('launch_principal', { profile_name: 'quick', instruction: 'go', wait: true }),
  );
  for (const result of await Promise.all(again)) expect(result).toMatchObject({ status: 'success' });
  await checkInvariants(h.database.pool);
});
