/** Work that only a sweep finds: all of it is due when the worker that will stop starts. */
import type { TurnId } from '@boxcar/kernel';
import { claim, registerWorker } from '@boxcar/store';
import { newId } from '../../lib/new-id.js';
import type { Scenario } from '../faults/scenario.js';
import type { Beforehand, StopPlan } from './stop-plan.js';

interface Receipt {
  readonly turn_id: TurnId;
}

const HOUR_S = 3_600;

const endless = { name: 'endless', script: [{ say: 'never', delayMs: 86_400_000 }] };

const dueWork: Scenario = {
  name: 'work that a sweep finds',
  profiles: [
    {
      name: 'lead',
      tools: ['fork_join'],
      delegation_policy: { target_profiles: ['endless'] },
      script: [
        {
          calls: [
            {
              tool: 'fork_join',
              arguments: {
                tasks: [{ target_strategy: 'new', target_ref: 'endless', instruction: 'go' }],
                deadline_seconds: HOUR_S,
              },
            },
          ],
        },
        { say: 'went on' },
      ],
    },
    {
      name: 'asker',
      tools: [
        {
          name: 'fetch',
          description: 'Nobody answers it.',
          parameters: { type: 'object', properties: {} },
          target: 'nowhere',
          retry: 'safe',
        },
      ],
      script: [{ calls: [{ tool: 'fetch', arguments: {} }] }, { say: 'went on without it' }],
    },
    endless,
    ...['orphan', 'unrung'].map((name) => ({ name, script: [{ say: `${name} after all` }] })),
  ],
  drive: () => Promise.resolve(undefined),
};

/**
 * The turns that wait are suspended and the endless turns have begun, so the contents of their tapes do not depend on
 * timing.
 */
const READY = `
  select 1 as one
  from boxcar.turns t
  join boxcar.profiles p on p.id = t.profile_id
  where t.status = 'suspended' or (p.name = 'endless' and t.start_position is not null)
  having count(*) = 4`;

/** Moves deadlines, rings and leases into the past. */
const OVERDUE = `
  update boxcar.batches
  set deadline_at = now() - interval '1 second';
  update boxcar.tool_calls
  set deadline_at = now() - interval '1 second'
  where name = 'fetch';
  update boxcar.turns t
  set deadline_at = now() - interval '1 second'
  from boxcar.profiles p
  where p.id = t.profile_id and p.name = 'endless' and t.depth = 0;
  update boxcar.turns
  set dispatched_at = now() - interval '1 minute'
  where status = 'dispatched';
  update boxcar.workers
  set lease_until = now() - interval '30 days'`;

async function makeDue({ client, watcher, helper, backend }: Beforehand): Promise<void> {
  const { pool } = backend.database;
  const launch = (profile_name: string, rest: Readonly<Record<string, number>> = {}): Promise<Receipt> =>
    client.submit('launch_principal', {
      profile_name,
      instruction: 'go',
      ...rest,
    }) as unknown as Promise<Receipt>;
  await launch('lead');
  await launch('asker');
  await launch('endless', { deadline_seconds: HOUR_S });
  await helper.work();
  await watcher.until(READY);
  await helper.rest();
  const orphan = await launch('orphan');
  await launch('unrung');
  for (const name of ['boxcar-turns']) await backend.queue(name).obliterate({ force: true });
  const id = newId<'worker'>();
  await registerWorker(pool, {
    id,
    lockKey: '1',
    targets: [''],
    concurrency: 1,
    leaseMs: 1,
    info: { hostname: 'gone', pid: 1 },
  });
  await claim(pool, [{ turnId: orphan.turn_id, epoch: 1 }], id);
  await pool.query(OVERDUE);
}

export const SWEEP_PLAN: StopPlan = { scenario: dueWork, role: 'worker', before: makeDue };
