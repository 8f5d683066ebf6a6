/** Tools of an MCP server, through the port: one runs once, one may run again, one waits for a person. */
import { z } from 'zod';
import type { Scenario } from './scenario.js';
import { decide } from './scenarios-approvals.js';

export const servedTools: Scenario = {
  name: 'served tools',
  profiles: [
    {
      name: 'clerk',
      mcp: ['desk'],
      requires_approval: ['desk.file'],
      script: [
        { calls: [{ tool: 'desk.find', arguments: { what: '{{instruction}}' } }] },
        {
          calls: [
            { tool: 'desk.stamp', arguments: { page: 1 } },
            { tool: 'desk.find', arguments: { what: 'both' } },
          ],
        },
        { calls: [{ tool: 'desk.file', arguments: { page: 2 } }] },
        { say: 'done {{instruction}}' },
      ],
    },
  ],
  served: [
    {
      name: 'desk.find',
      description: 'Finds a form.',
      input: z.strictObject({ what: z.string() }),
      retry: 'safe',
      answer: (input) => ({ found: JSON.stringify(input) }),
    },
    {
      name: 'desk.stamp',
      description: 'Stamps a page.',
      input: z.strictObject({ page: z.number() }),
      retry: 'never',
      answer: () => ({ stamped: true }),
    },
    {
      name: 'desk.file',
      description: 'Files a page away.',
      input: z.strictObject({ page: z.number() }),
      retry: 'never',
      answer: () => ({ filed: true }),
    },
  ],
  drive: async (client, watcher) => {
    const answer = await client.submit('launch_principal', { profile_name: 'clerk', instruction: 'go' });
    const { id } = await watcher.until(`
      select id
      from boxcar.approvals
      where tool_name = 'desk.file' and voided_at is null
      order by created_at desc
      limit 1`);
    await decide(client, String(id), 'approve');
    return answer;
  },
};
