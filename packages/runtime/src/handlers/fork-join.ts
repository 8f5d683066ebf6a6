import { type ForkJoin, forkJoinSchema, KernelError } from '@boxcar/kernel';
import type { Handler, SubmitTurnRequest } from '../handler/index.js';
import { inMs } from './in-ms.js';
import { targetProfiles } from './target-profiles.js';
import { prepareTasks } from './tasks.js';

const pathOf = (index: number): string => `tasks.${index}.`;

/** Refuses two tasks for one agent: an agent works on one turn at a time, so they would not run in parallel. */
function checkReusedOnce(requests: readonly SubmitTurnRequest[]): void {
  const first = new Map<string, number>();
  requests.forEach(({ target }, index) => {
    if (target.kind !== 'reuse') return;
    const other = first.get(target.agent.agentId);
    if (other === undefined) {
      first.set(target.agent.agentId, index);
      return;
    }
    const field = `arguments.${pathOf(index)}target_ref`;
    throw new KernelError('bad_request', {
      message: `${field}: agent '${target.agent.name}' is named by tasks.${other} already; a reused agent can have one task of a fork_join.`,
      details: { field, agent_id: target.agent.agentId },
    });
  });
}

export const forkJoin: Handler<ForkJoin> = {
  description: 'Give tasks to several agents at once. One answer has all results in order.',
  input: forkJoinSchema,
  namesProfiles: true,
  outsideOnly: ['budget'],
  profileNames: ({ tasks }) => [...new Set(tasks.flatMap(targetProfiles))],
  handle: async (input, tools) => {
    tools.checkFanOut(input.tasks.length);
    const { priority } = input;
    const tasks = priority === undefined ? input.tasks : input.tasks.map((task) => ({ priority, ...task }));
    const requests = await prepareTasks(tasks, tools, { pathOf });
    checkReusedOnce(requests);
    const turns = await tools.submitTurns(requests, { runBudget: input.budget });
    const { batchId, turnIds } = await tools.joinTurns(
      turns.map((turn) => turn.turnId),
      {
        wait: input.wait ?? true,
        isFailFast: input.fail_fast ?? false,
        warmsCache: input.warm_cache ?? false,
        minSuccess: input.min_success,
        deadlineMs: inMs(input.deadline_seconds),
      },
    );
    return { status: 'accepted', batch_id: batchId, turn_ids: [...turnIds] };
  },
};
