/** A program that works on a tape stops, and another program works on the same tape. */
import type { Runtime } from '../../runtime.js';
import type { Tape } from '../../tape/tape.js';
import { type Client, Refused, type Scenario } from '../faults/scenario.js';
import type { Beside, StopPlan } from './stop-plan.js';

const ADA = 'ada';

const ensure = (client: Client) =>
  client.submit('provision_agent', { action: 'ensure', agent_id: ADA, profile_name: 'writer' });

/** A step may be refused, because the other program may have changed the tape in the meantime. */
async function ifPossible(work: Promise<unknown>): Promise<void> {
  try {
    await work;
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
  }
}

const STEPS: readonly ((tape: Tape, runtime: Runtime) => Promise<unknown>)[] = [
  (tape) => tape.append([{ kind: 'message', content: 'mine' }], { dedupKey: 'mine' }),
  (tape) => tape.handoff('phase', { state: { n: 1 }, dedupKey: 'phase' }),
  async (tape) => {
    const fork = await tape.forkTape();
    await fork.tape.append([{ kind: 'message', content: 'within' }]);
    await fork.merge();
  },
  async (tape) => {
    const fork = await tape.forkTape();
    await fork.discard();
  },
  async (tape) => {
    if ((await tape.info()).incarnation === 1) await tape.reset({ archive: true });
  },
];

const tapeWork: Scenario = {
  name: 'a program that works on a tape',
  profiles: [{ name: 'writer', script: [{ say: 'written' }] }],
  drive: async (client) => {
    await ensure(client);
    for (const step of STEPS)
      await ifPossible(
        client.use(async (runtime) => {
          await step(await runtime.tape({ agent: ADA }), runtime);
        }),
      );
    return null;
  },
  judge: ({ turns }) =>
    turns.flatMap(({ profile, status }) => (status === 'success' ? [] : [`${profile} is ${status}`])),
};

/** Appends to the same tape, and delegates a turn to its agent. */
async function workBeside({ client, watcher }: Beside): Promise<void> {
  await ensure(client);
  await client.use(async (runtime) => {
    const tape = await runtime.tape({ agent: ADA });
    await tape.append([{ kind: 'message', content: 'beside' }], { dedupKey: 'beside' });
  });
  const receipt = await client.submit('delegate_async', {
    target_strategy: 'reuse',
    target_ref: ADA,
    instruction: 'go',
  });
  const { turn_id } = receipt as { readonly turn_id: string };
  await watcher.until(`select 1 as one from boxcar.turns where id = '${turn_id}' and ended_at is not null`);
}

export const TAPE_PLAN: StopPlan = { scenario: tapeWork, role: 'caller', beside: workBeside };
