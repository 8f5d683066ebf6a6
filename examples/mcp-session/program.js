// Two MCP clients: the first one leaves its session, the second one fetches it and goes on. Needs no network: the server is started by the
// clients, the database is the embedded one or that of DATABASE_URL.
import { fileURLToPath } from 'node:url';
import { Client } from '@modelcontextprotocol/client';
import { getDefaultEnvironment, StdioClientTransport } from '@modelcontextprotocol/client/stdio';

const { DATABASE_URL } = process.env;

async function connect(name) {
  const client = new Client({ name, version: '1.0.0' });
  await client.connect(
    new StdioClientTransport({
      command: process.execPath,
      // In a project of yours: command 'npx', args ['boxcar', 'mcp'].
      args: [fileURLToPath(new URL('dist/server.js', import.meta.resolve('@boxcar/mcp/package.json')))],
      env: {
        ...getDefaultEnvironment(),
        BOXCAR_LOG_LEVEL: 'error',
        ...(DATABASE_URL === undefined ? {} : { DATABASE_URL }),
      },
    }),
  );
  const call = async (tool, args) => {
    const { isError, content, structuredContent } = await client.callTool({ name: tool, arguments: args });
    if (isError) throw new Error(content[0].text);
    return structuredContent;
  };
  return { call, close: () => client.close() };
}

const session_key = `trip-${process.pid}-${Date.now()}`;

const planner = await connect('planner');
await planner.call('register_session', { session_key, agent_from: 'planner' });
const { context_entries } = await planner.call('update_context', {
  session_key,
  entries: [
    { context_type: 'message', content: 'We go to Lisbon for four days in May.' },
    {
      context_type: 'message',
      content: 'By train, and the hotel must take dogs.',
      metadata: { user: 'guest' },
    },
    { context_type: 'file', content: 'Day 1: Alfama', metadata: { file_path: 'plan.md' } },
  ],
});
console.log(`planner  wrote ${context_entries.length} entries`);

const { handoff } = await planner.call('request_handoff', {
  session_key,
  target_agent: 'booker',
  request_type: 'full_handoff',
  request_data: { instructions: 'Book train and hotel.' },
});
console.log(
  `planner  handed ${handoff.context_entries} entries to ${handoff.target_agent}: ${handoff.status}`,
);
await planner.close();

// Another client, in another program as a rule.
const booker = await connect('booker');
const { handoffs } = await booker.call('list_handoffs', {
  target_agent: 'booker',
  status: 'pending',
  limit: 1,
});
const accepted = await booker.call('accept_handoff', { handoff_id: handoffs[0].handoff_id });
console.log(`booker   accepted: ${accepted.handoff.request_data.instructions}`);

const { entries } = await booker.call('get_context', { session_key });
for (const { sequence_number, context_type, content } of entries)
  console.log(`booker   ${sequence_number} ${context_type}: ${content}`);

// Nobody writes to a session that was handed over. It goes on in another one, with all that was said.
const mine = `${session_key}-booking`;
await booker.call('register_session', { session_key: mine, agent_from: 'booker', continues: session_key });
await booker.call('update_context', {
  session_key: mine,
  context_type: 'message',
  content: 'Both are booked.',
});
const { key_points } = await booker.call('get_summary', { session_key: mine });
console.log(`booker   ${key_points.find((point) => point.startsWith('Last message'))}`);

await booker.call('complete_handoff', {
  handoff_id: handoff.handoff_id,
  result: { booked: ['train', 'hotel'] },
});
const { handoffs: done } = await booker.call('list_handoffs', { target_agent: 'booker', limit: 1 });
console.log(`booker   ${done[0].status}: ${JSON.stringify(done[0].result)}`);
await booker.close();
