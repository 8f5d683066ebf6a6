/** Tasks outlive the processes that accepted them, and two installations hand work to each other. */
import { TaskState } from '@a2a-js/sdk';
import type { ScriptedFunction } from '@boxcar/llm';
import { HandoffTool, type HandoffToolOptions } from '@boxcar/runtime';
import { type NodeChild, spawnNode, waitFor } from '@boxcar/testkit';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { gate, openClient, openStage, request, resultOf, type Stage, taskOf } from './testing/stage.js';

const STARTS = { deadlineMs: 90_000 };

afterEach(() => {
  vi.unstubAllEnvs();
});

async function startServer({ database }: Stage): Promise<NodeChild & { readonly url: string }> {
  const child = spawnNode(new URL('./testing/server-process.ts', import.meta.url), [database.url]);
  const line = await child.line(/^ready /, STARTS);
  return Object.assign(child, { url: line.replace(/^ready /, '') });
}

describe.each(['1.0', '0.3'] as const)('protocol %s', (version) => {
  test('a task can be read at another process after the process that accepted it was killed', async () => {
    const said = gate();
    const slow: ScriptedFunction = async (_request, { write }) => {
      write('Half ');
      await said.opened;
      write('done.');
      return { text: 'Half done.' };
    };
    await using stage = await openStage({ functions: { slow } });
    await stage.agent('slow', [], { model: 'scripted:slow', script: undefined });
    const key = await stage.key();
    const first = await startServer(stage);
    const client = await openClient(`${first.url}/a2a/slow`, key, version);
    const stream = client.sendMessageStream(request('go', { messageId: 'm', contextId: 'c' }));
    const opening = await stream.next();
    const id = opening.value?.payload?.$case === 'task' ? opening.value.payload.value.id : '';
    expect(id).not.toBe('');
    first.kill('SIGKILL');
    await first.exited;
    await expect(stream.next().then(async () => stream.next())).rejects.toThrow();

    const elsewhere = await stage.client('slow', key, version);
    expect((await elsewhere.getTask({ tenant: '', id })).status?.state).not.toBe(
      TaskState.TASK_STATE_COMPLETED,
    );
    const joined = elsewhere.resubscribeTask({ tenant: '', id });
    expect((await joined.next()).value?.payload?.$case).toBe('task');
    // The client cannot know that its message has arrived. It sends the message again and gets the same task.
    const again = elsewhere.sendMessage(request('go', { messageId: 'm', contextId: 'c' }));
    said.open();
    expect(taskOf(await again).id).toBe(id);
    let text = '';
    for await (const { payload } of joined)
      if (payload?.$case === 'artifactUpdate') text += payload.value.artifact?.parts[0]?.content?.value ?? '';
    expect(text).toBe('Half done.');
    expect(resultOf(await elsewhere.getTask({ tenant: '', id }))).toBe('Half done.');
  });
});

/** A tool whose targets are the public agents of another installation. */
async function toolTo(
  stage: Stage,
  { other, agent, keyEnv }: { readonly other: Stage; readonly agent: string; readonly keyEnv: string },
): Promise<HandoffTool> {
  const targets: HandoffToolOptions['targets'] = {
    [agent]: {
      platform: 'adk',
      card_url: `${other.url}/a2a/${agent}/.well-known/agent-card.json`,
      api_key_env: keyEnv,
    },
  };
  return new HandoffTool({ runtime: stage.opened.runtime, targets });
}

test('two installations hand work to each other, and each keeps its own row of it', async () => {
  vi.stubEnv('BOXCAR_TARGETS_ALLOW_PRIVATE', '127.0.0.1');
  await using north = await openStage({ functions: {} });
  await using south = await openStage({ functions: {} });
  await north.agent('crane', [{ say: 'The crane of the north lifts: {{instruction}}' }]);
  await south.agent('barge', [{ say: 'The barge of the south carries: {{instruction}}' }]);
  vi.stubEnv('NORTH_KEY', await north.key({ name: 'south' }));
  vi.stubEnv('SOUTH_KEY', await south.key({ name: 'north' }));
  for (const [from, to, agent, keyEnv] of [
    [north, south, 'barge', 'SOUTH_KEY'],
    [south, north, 'crane', 'NORTH_KEY'],
  ] as const) {
    await using tool = await toolTo(from, { other: to, agent, keyEnv });
    const asked = { source_agent: 'desk', target_agent: agent, task: 'ten tons', payload: { tons: 10 } };
    const { handoff_id, result } = await tool.handoff(asked);
    expect(result).toContain('ten tons');
    const parts = [];
    for await (const part of tool.stream(handoff_id)) parts.push(part);
    expect(parts.filter(({ type }) => type === 'text').length).toBeGreaterThan(0);
    const { rows } = await to.database.pool.query(
      'select source_agent, target_agent, phase, message_id from boxcar.handoffs where public_agent is not null',
    );
    const name = from === north ? 'north' : 'south';
    expect(rows).toMatchObject([{ source_agent: `a2a:${name}`, target_agent: agent, phase: 'completed' }]);
    expect(rows[0]?.message_id).toContain(handoff_id);
  }
});

test('a question of a remote agent’s function is a question of the local handoff, and the reply is sent back', async () => {
  vi.stubEnv('BOXCAR_TARGETS_ALLOW_PRIVATE', '127.0.0.1');
  await using here = await openStage();
  await using there = await openStage({
    handoffs: { enabled: true },
    agents: { clerk: async (_input, { ask }) => ask('Which quay?') },
  });
  const call = { tool: 'handoff', arguments: { target_agent: 'clerk', task: 'Find out.' } };
  await there.agent('porter', [{ calls: [call] }, { say: 'They say {{results/handoff}}' }], {
    tools: ['handoff'],
    delegation_policy: { target_profiles: null },
  });
  vi.stubEnv('THERE_KEY', await there.key());
  await using tool = await toolTo(here, { other: there, agent: 'porter', keyEnv: 'THERE_KEY' });
  const { handoff_id } = await tool.handoff({
    source_agent: 'desk',
    target_agent: 'porter',
    task: 'go',
    wait: false,
  });
  const question = await waitFor(async () => (await tool.messages(handoff_id))[0], {
    message: 'the question has come',
  });
  expect(question.text).toBe('Which quay?');
  await tool.reply(handoff_id, 'seven');
  const { result } = await tool.waitForHandoff(handoff_id);
  expect(String(result)).toContain('seven');
});

test('a handoff that is canceled here is also canceled at the other installation', async () => {
  vi.stubEnv('BOXCAR_TARGETS_ALLOW_PRIVATE', '127.0.0.1');
  const begun = gate();
  const slow: ScriptedFunction = async (_request, { signal }) => {
    begun.open();
    await new Promise((_resolve, reject) => {
      signal?.addEventListener('abort', () => reject(signal.reason), { once: true });
    });
    return { text: 'never' };
  };
  await using here = await openStage();
  await using there = await openStage({ functions: { slow } });
  await there.agent('slow', [], { model: 'scripted:slow', script: undefined });
  vi.stubEnv('THERE_KEY', await there.key());
  await using tool = await toolTo(here, { other: there, agent: 'slow', keyEnv: 'THERE_KEY' });
  const { handoff_id } = await tool.handoff({
    source_agent: 'desk',
    target_agent: 'slow',
    task: 'go',
    wait: false,
  });
  await begun.opened;
  const handoff = await waitFor(
    async () => {
      const seen = await tool.getHandoff(handoff_id);
      return seen?.turn_id == null ? undefined : seen;
    },
    { message: 'a turn serves it' },
  );
  await here.opened.runtime.submit('cancel', { turn_id: handoff.turn_id });
  await waitFor(
    async () => {
      const { rows } = await there.database.pool.query<{ phase: string }>(
        'select phase from boxcar.handoffs',
      );
      return rows[0]?.phase === 'canceled' ? true : undefined;
    },
    { message: 'the other installation has canceled it' },
  );
});
