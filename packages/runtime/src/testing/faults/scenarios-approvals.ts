/** Calls that wait for a person: one is approved and one is denied, both in one step. */
import { KernelError } from '@boxcar/kernel';
import { z } from 'zod';
import { ApprovalGate } from '../../approval/approval-gate.js';
import type { Client, Scenario } from './scenario.js';

/** Decides like a persistent person: repeats until the decision is made. */
export const decide = (client: Client, ticketId: string, verb: 'approve' | 'deny') =>
  client.use(async (runtime) => {
    try {
      await new ApprovalGate({ runtime })[verb](ticketId, { reason: 'seen' });
    } catch (error) {
      const isDone =
        error instanceof KernelError &&
        error.code === 'approval_resolved' &&
        error.details.status === (verb === 'approve' ? 'approved' : 'denied');
      if (!isDone) throw error;
    }
  });

export const approvals: Scenario = {
  name: 'approvals',
  profiles: [
    {
      name: 'payer',
      tools: ['pay', 'wipe'],
      requires_approval: ['pay', 'wipe'],
      script: [
        {
          calls: [
            { tool: 'pay', arguments: { amount: 1 } },
            { tool: 'wipe', arguments: { disk: 'all' } },
          ],
        },
        { say: 'done {{instruction}}' },
      ],
    },
  ],
  tools: [
    {
      name: 'pay',
      description: 'Pays an amount.',
      input: z.strictObject({ amount: z.number() }),
      retry: 'never',
      answer: () => ({ paid: true }),
    },
    {
      name: 'wipe',
      description: 'Wipes a disk.',
      input: z.strictObject({ disk: z.string() }),
      retry: 'safe',
      answer: () => ({ wiped: true }),
    },
  ],
  drive: async (client, watcher) => {
    const answer = await client.submit('launch_principal', { profile_name: 'payer', instruction: 'go' });
    for (const [tool, verb] of [
      ['pay', 'approve'],
      ['wipe', 'deny'],
    ] as const) {
      const { id } = await watcher.until(`
        select id
        from boxcar.approvals
        where tool_name = '${tool}' and voided_at is null
        order by created_at desc
        limit 1`);
      await decide(client, String(id), verb);
    }
    return answer;
  },
};
