/** Handoffs of a model and of a program: to an agent, to functions, and after an approval. */
import type { HandoffPart, JsonValue } from '@boxcar/kernel';
import { PermissionEvaluator } from '@boxcar/policy';
import type { PublicTask } from '@boxcar/store';
import { DEFAULT_PROJECT } from '../../approval/index.js';
import { HandoffTool } from '../../handoff/handoff-tool.js';
import type { KeyPrincipal } from '../../key/index.js';
import { openAgentDoor } from '../../public-agent/index.js';
import type { Scenario } from './scenario.js';
import { decide } from './scenarios-approvals.js';

const policy = new PermissionEvaluator({
  text: `
tools:
  handoff: { permission: ALWAYS }
rules:
  - { condition: { context: { target_agent: guarded } }, permission: REQUIRE_APPROVAL }
`,
  environment: 'production',
});

const HANDS_OFF = { tools: ['handoff'], delegation_policy: { target_profiles: null } };
const handing = (target_agent: string) => ({
  tool: 'handoff',
  arguments: { target_agent, task: `work as ${target_agent}`, context: { from: 'chief' } },
});

/** One step hands off three times; a program waits for a fourth handoff. */
export const handoffs: Scenario = {
  name: 'handoffs',
  policy,
  profiles: [
    { name: 'helper', script: [{ say: 'helped' }] },
    { name: 'guarded', script: [{ say: 'allowed' }] },
    {
      name: 'chief',
      ...HANDS_OFF,
      script: [
        { calls: [handing('helper'), handing('lookup'), handing('guarded')] },
        { say: 'done {{instruction}}' },
      ],
    },
  ],
  agents: [{ name: 'lookup', retry: 'safe', answer: () => ({ found: 3 }) }],
  drive: async (client, watcher) => {
    await client.submit('launch_principal', { profile_name: 'chief', instruction: 'go' });
    const { id } = await watcher.until(
      "select id from boxcar.approvals where tool_name = 'handoff' and voided_at is null",
    );
    await decide(client, String(id), 'approve');
    const { handoff_id } = (await client.submit('handoff', {
      source_agent: 'program',
      target_agent: 'lookup',
      task: 'count again',
      payload: { of: 'program' },
      wait: false,
    })) as { handoff_id: string };
    return client.use(async (runtime) => {
      // Workers of the pool serve it, not the tool.
      const tool = new HandoffTool({ runtime, concurrency: 0 });
      const { status, result } = await tool.waitForHandoff(handoff_id);
      return { status, result };
    });
  },
};

/** A function that may not run again: where its process dies in the middle, nobody knows what came of it. */
export const handoffOnce: Scenario = {
  name: 'handoff to what may run once',
  policy,
  profiles: [
    { name: 'sender', ...HANDS_OFF, script: [{ calls: [handing('post')] }, { say: 'done {{instruction}}' }] },
  ],
  agents: [{ name: 'post', retry: 'never', answer: () => ({ posted: true }) }],
  drive: (client) => client.submit('launch_principal', { profile_name: 'sender', instruction: 'go' }),
};

/** A reader whose connections break goes on after the last part that it saw, whoever writes the rest. */
export const handoffStreams: Scenario = {
  name: 'handoffs that are read while they are written',
  policy,
  profiles: [
    { name: 'poet', script: [{ say: 'Roses are red, violets are blue.', chunks: 4, delayMs: 240 }] },
  ],
  agents: [
    { name: 'scribe', retry: 'safe', says: ['one ', 'two ', 'three'], answer: () => 'one two three, done' },
  ],
  drive: async (client) => {
    const read = async (target_agent: string): Promise<JsonValue> => {
      const { handoff_id } = (await client.submit('handoff', {
        source_agent: 'program',
        target_agent,
        task: 'write',
        wait: false,
      })) as { handoff_id: string };
      const seen: HandoffPart[] = [];
      await client.use(async (runtime) => {
        const tool = new HandoffTool({ runtime, concurrency: 0 });
        for await (const part of tool.stream(handoff_id, { afterSeq: seen.length })) seen.push(part);
      });
      const text = seen.reduce(
        (said, part) => (part.type === 'reset' ? '' : part.type === 'text' ? said + part.text : said),
        '',
      );
      return {
        text,
        last: seen.at(-1)?.type ?? null,
        isGapless: seen.every(({ seq }, at) => seq === at + 1),
      };
    };
    return [await read('poet'), await read('scribe')];
  },
};

/** A key that another platform uses. */
const caller: KeyPrincipal = {
  id: '00000000-0000-7000-8000-00000000d001',
  kind: 'key',
  scopes: ['a2a:call'],
  keyId: '00000000-0000-7000-8000-00000000d001' as KeyPrincipal['keyId'],
  name: 'outside',
  projectId: DEFAULT_PROJECT,
  agent: null,
  isLocal: false,
  noteUse: undefined,
};

/** A conversation of another platform: a message, one that waits for an approval, and one that is canceled while it waits. */
export const publicTasks: Scenario = {
  name: 'tasks that another platform gives',
  policy,
  profiles: [
    { name: 'helper', public: true, script: [{ say: 'helped {{instruction}}' }] },
    { name: 'guarded', public: true, script: [{ say: 'allowed {{instruction}}' }] },
  ],
  drive: async (client, watcher) => {
    const send = (agent: string, task: string, ends: boolean): Promise<PublicTask> =>
      client.use(async (runtime) => {
        const door = await openAgentDoor(runtime, agent, caller);
        const sent = await door.send({ messageId: task, conversation: 'talk', task });
        const rest = { timeoutMs: 60_000, signal: new AbortController().signal };
        return ends ? door.wait(sent, rest) : sent;
      });
    const results = [(await send('helper', 'one', true)).result, (await send('helper', 'two', true)).result];
    await send('guarded', 'three', false);
    const { id } = await watcher.until(
      "select id from boxcar.approvals where tool_name = 'handoff' and voided_at is null",
    );
    await decide(client, String(id), 'approve');
    results.push((await send('guarded', 'three', true)).result);
    const { handoff_id } = await send('guarded', 'four', false);
    const phase = await client.use(async (runtime) => {
      const door = await openAgentDoor(runtime, 'guarded', caller);
      const task = await door.get(handoff_id);
      if (task !== undefined) await door.cancel(task);
      return (await door.get(handoff_id))?.phase ?? null;
    });
    return { results, phase };
  },
};
