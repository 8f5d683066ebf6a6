/** Handoffs of a model and of a program: to an agent, to functions, and after an approval. */
import { type HandoffPart, type JsonObject, type JsonValue, KernelError } from '@boxcar/kernel';
import { PermissionEvaluator } from '@boxcar/policy';
import type { PublicTask } from '@boxcar/store';
import { DEFAULT_PROJECT } from '../../approval/index.js';
import { HandoffTool } from '../../handoff/handoff-tool.js';
import type { KeyPrincipal } from '../../key/index.js';
import { type AgentDoor, openAgentDoor } from '../../public-agent/index.js';
import { openReceiver } from '../receiver.js';
import type { Scenario, ScenarioAgent } from './scenario.js';
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

const lookup: ScenarioAgent = { name: 'lookup', retry: 'safe', answer: () => ({ found: 3 }) };

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
  agents: [lookup],
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
      // Workers of the pool serve the handoff, not the tool.
      const tool = new HandoffTool({ runtime, concurrency: 0 });
      const { status, result } = await tool.waitForHandoff(handoff_id);
      return { status, result };
    });
  },
};

/** A function that may not run again. When its process dies during the run, the outcome is unknown. */
export const handoffOnce: Scenario = {
  name: 'a handoff to an agent that may run only once',
  policy,
  profiles: [
    { name: 'sender', ...HANDS_OFF, script: [{ calls: [handing('post')] }, { say: 'done {{instruction}}' }] },
  ],
  agents: [{ name: 'post', retry: 'never', answer: () => ({ posted: true }) }],
  drive: (client) => client.submit('launch_principal', { profile_name: 'sender', instruction: 'go' }),
};

/** One chain completes, after an approval; the other fails, and its hops are undone in reverse. */
export const handoffChains: Scenario = {
  name: 'chains of handoffs',
  policy,
  profiles: [{ name: 'guarded', script: [{ say: 'allowed' }] }],
  agents: [
    { name: 'book', retry: 'safe', answer: (input) => ({ booked: input }) },
    { name: 'cancel', retry: 'safe', answer: () => 'canceled' },
    {
      name: 'full',
      retry: 'safe',
      answer: () => {
        throw new KernelError('platform_failed', { message: 'no room', next: '' });
      },
    },
  ],
  drive: async (client, watcher) => {
    const begin = async (hops: readonly JsonObject[]): Promise<string> => {
      const answer = await client.submit('handoff_chain', { source_agent: 'program', hops });
      return (answer as { handoff_id: string }).handoff_id;
    };
    const undo = { target_agent: 'cancel', task: 'give back' };
    const failing = await begin([
      { target_agent: 'book', task: 'a flight', payload: { to: 'LIS' }, compensate: undo },
      { target_agent: 'book', task: 'a hotel', compensate: undo },
      { target_agent: 'full', task: 'a car' },
    ]);
    const whole = await begin([
      { target_agent: 'book', task: 'a flight' },
      { target_agent: 'guarded', task: 'look at it' },
      { target_agent: 'book', task: 'a hotel', compensate: undo },
    ]);
    const { id } = await watcher.until(
      "select id from boxcar.approvals where tool_name = 'handoff' and voided_at is null",
    );
    await decide(client, String(id), 'approve');
    return client.use(async (runtime) => {
      const tool = new HandoffTool({ runtime, concurrency: 0 });
      const ends: JsonValue[] = [];
      for (const chain of [failing, whole]) {
        const { phase, result } = await tool.waitForHandoff(chain);
        const hops = (await tool.getChain(chain)).map((one) => `${one.mode} ${one.hop} ${one.phase}`);
        ends.push({ phase, result, hops });
      }
      return ends;
    });
  },
};

/** Two questions, each answered once, however often and in whichever process they are asked. */
export const handoffQuestions: Scenario = {
  name: 'handoffs whose agents ask questions',
  policy,
  profiles: [],
  agents: [{ name: 'asker', retry: 'safe', asks: ['one?', 'two?'], answer: () => null }],
  drive: async (client, watcher) => {
    const { handoff_id } = (await client.submit('handoff', {
      source_agent: 'program',
      target_agent: 'asker',
      task: 'ask',
      wait: false,
    })) as { handoff_id: string };
    const answered =
      'exists (select from boxcar.handoff_messages a where a.handoff_id = q.handoff_id and a.replies_to = q.seq)';
    for (const seq of [1, 3]) {
      // A question whose process has died is closed until another process asks it again. After a lost answer the question already has its
      // reply.
      for (let isAnswered = false; !isAnswered; ) {
        await watcher.until(`
          select 1 as one
          from boxcar.handoff_messages q
          where q.seq = ${seq} and q.replies_to is null and (q.closed_at is null or ${answered})`);
        isAnswered = await client.use(async (runtime) => {
          const tool = new HandoffTool({ runtime, concurrency: 0 });
          await tool.reply(handoff_id, `reply ${seq}`, { question: seq }).catch((error: unknown) => {
            if ((error as KernelError).code !== 'question_closed') throw error;
          });
          const messages = await tool.messages(handoff_id);
          return messages.some(({ replies_to }) => replies_to === seq);
        });
      }
    }
    return client.use(async (runtime) => {
      const tool = new HandoffTool({ runtime, concurrency: 0 });
      const { status, result } = await tool.waitForHandoff(handoff_id);
      const messages = (await tool.messages(handoff_id)).map(
        ({ seq, text, state }) => `${seq} ${text} ${state}`,
      );
      return { status, result, messages };
    });
  },
};

/** Three identical requests, in any order: the first one that runs may die, and the others still get its result. */
export const handoffCache: Scenario = {
  name: 'handoffs that have a cached result',
  policy,
  profiles: [],
  agents: [{ name: 'counter', retry: 'safe', answer: () => ({ counted: 3 }) }],
  drive: async (client) => {
    const ask = async (): Promise<JsonValue> => {
      const answer = await client.submit('handoff', {
        source_agent: 'program',
        target_agent: 'counter',
        task: 'count',
        cache: { ttl_seconds: 3600 },
        wait: false,
      });
      return (answer as { handoff_id: string }).handoff_id;
    };
    const ids = [await ask(), await ask(), await ask()];
    return client.use(async (runtime) => {
      const tool = new HandoffTool({ runtime, concurrency: 0 });
      const ends = await Promise.all(ids.map((id) => tool.waitForHandoff(String(id))));
      return ends.map(({ status, result, cached }) => ({ status, result, cached }));
    });
  },
  judge: ({ driven }) => {
    const ends = driven as unknown as readonly { status: string; result: JsonValue; cached: boolean }[];
    const right = (end: (typeof ends)[number]): boolean =>
      end.status === 'completed' && JSON.stringify(end.result) === '{"counted":3}';
    return ends.length === 3 && ends.every(right) && ends.filter(({ cached }) => !cached).length === 1
      ? []
      : [`the handoffs ended as ${JSON.stringify(ends)}`];
  },
};

/** A reader whose connections break continues after the last part that it saw, whichever process writes the rest. */
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

/**
 * A program hands off in the name of an agent. The end is sent to a receiver, which refuses it at first. The agent is notified too, and
 * gets a turn for the notification.
 */
export const handoffEnds: Scenario = {
  name: 'handoffs with callbacks and notices',
  policy,
  profiles: [{ name: 'asker', script: [{ say: 'ready' }] }],
  agents: [lookup],
  drive: async (client, watcher) => {
    await using receiver = await openReceiver([500]);
    const { agent_id } = (await client.submit('launch_principal', {
      profile_name: 'asker',
      instruction: 'go',
    })) as { agent_id: string };
    await watcher.until('select id from boxcar.turns where ended_at is not null');
    const { handoff_id } = (await client.submit('handoff', {
      source_agent: agent_id,
      target_agent: 'lookup',
      task: 'count',
      callback: { url: receiver.url },
      notify: true,
      wait: false,
    })) as { handoff_id: string };
    await watcher.until("select id from boxcar.webhook_deliveries where status = 'delivered'");
    await watcher.until(
      `select id from boxcar.turns where agent_id = '${agent_id}' and ended_at is not null offset 1`,
    );
    const { received } = receiver;
    const ids = new Set(received.map(({ id }) => id));
    const isRight = received.every(({ isGenuine, body }) => isGenuine && body.handoff_id === handoff_id);
    if (ids.size !== 1 || !isRight) throw new Error(`was sent: ${JSON.stringify(received)}`);
    return { isSent: true };
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

/** A conversation of another platform: messages, one of which waits for an approval, and another of which is canceled while it waits. */
export const publicTasks: Scenario = {
  name: 'tasks from another platform',
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

/** A task that asks a question. Its caller is notified of the question and of the end through a receiver that refuses at first. */
export const publicPushes: Scenario = {
  name: 'tasks with push notifications',
  policy,
  profiles: [
    {
      name: 'porter',
      public: true,
      ...HANDS_OFF,
      script: [{ calls: [handing('inquirer')] }, { say: 'done' }],
    },
  ],
  agents: [{ name: 'inquirer', retry: 'safe', asks: ['one?'], answer: () => null }],
  drive: async (client, watcher) => {
    await using receiver = await openReceiver([500]);
    const atDoor = <T>(work: (door: AgentDoor) => Promise<T>): Promise<T> =>
      client.use(async (runtime) => work(await openAgentDoor(runtime, 'porter', caller)));
    const config = {
      id: 'inbox',
      url: receiver.url,
      token: 't',
      scheme: null,
      credentials: null,
      version: '1.0',
    };
    const { handoff_id } = await atDoor(async (door) => {
      const sent = await door.send({ messageId: 'one', task: 'one' });
      await door.pushes.set(sent, config);
      return sent;
    });
    const sent = (count: number) =>
      watcher.until(
        `select id from boxcar.webhook_deliveries where status = 'delivered' offset ${count - 1}`,
      );
    await sent(1);
    // A question whose process has died is closed until another process asks it again.
    for (let isAnswered = false; !isAnswered; ) {
      await watcher.until(
        'select 1 as one from boxcar.handoff_messages q where q.closed_at is null or q.replies_to is not null',
      );
      isAnswered = await atDoor(async (door) => {
        const task = await door.get(handoff_id);
        return (
          task !== undefined && (await door.reply(task, { messageId: 'two', text: 'yes' })) !== undefined
        );
      });
    }
    await watcher.until(`
      select id
      from boxcar.handoffs h
      where h.id = '${handoff_id}'
        and h.ended_at is not null
        and not exists (select from boxcar.webhook_deliveries w where w.status = 'pending')`);
    const { received } = receiver;
    const ids = new Set(received.map(({ id }) => id));
    // The same question is reported again when another attempt has asked it, unless that was before the receiver was set.
    const told = await watcher.until(`
      select count(*)::int as count
      from boxcar.handoff_events
      where type in ('handoff.question', 'handoff.completed')
        and (type = 'handoff.question' or handoff_id = '${handoff_id}')`);
    if (ids.size < 2 || ids.size > Number(told.count) || !received.every(({ isGenuine }) => isGenuine))
      throw new Error(`was sent: ${JSON.stringify(received)}`);
    const { phase, result } = (await atDoor((door) => door.get(handoff_id))) ?? {};
    return { phase: phase ?? null, result: result ?? null };
  },
};
