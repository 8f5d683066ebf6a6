/** Summaries by a model: the input of the model, and the handoff when the model fails. */
import { ModelError, type ModelRequest } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { findHandoffSession } from '@boxcar/store';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { InProcessDoorbell } from '../queue/doorbell-in-process.js';
import { Runtime } from '../runtime.js';
import { type Harness, harness } from '../testing/harness.js';
import { type HandoffSessions, openHandoffSessions, requestHandoff } from './index.js';
import { summarizeByModel } from './model-summary.js';

let h: Harness;
let runtime: Runtime;
let sessions: HandoffSessions;
let asked: ModelRequest[] = [];
let answer: () => Promise<string>;
let n = 0;

beforeAll(async () => {
  h = await harness();
  const router = createModelRouter({});
  runtime = new Runtime({
    pool: h.database.pool,
    directUrl: h.database.url,
    doorbell: new InProcessDoorbell(),
    model: {
      generate: async (request, options) => {
        if (request.model !== 'small') return router.generate(request, options);
        asked.push(request);
        const text = await answer();
        return { text, toolCalls: [], finishReason: 'stop', usage: { inputTokens: 7, outputTokens: 3 } };
      },
    },
    summaryModel: 'small',
    log: (level, event, fields) => h.log.push({ level, event, ...fields } as never),
  });
  sessions = await openHandoffSessions(runtime);
});
afterAll(async () => {
  await runtime.close();
  await h[Symbol.asyncDispose]();
});
beforeEach(() => {
  asked = [];
});

const says = (content: string) => ({ context_type: 'message', content });
async function hand(contents: readonly string[]): Promise<string> {
  const session_key = `m-${++n}`;
  await sessions.register({ session_key, agent_from: 'claude' });
  await sessions.update({ session_key, entries: contents.map(says) });
  const handed = await requestHandoff(runtime, { session_key, target_agent: 'far' });
  if (handed.outcome !== 'handed_on') throw new Error(handed.outcome);
  return handed.context_summary;
}
const events = (name: string) => h.log.filter(({ event }) => event === name);

test('the model gets the newest entries that fit, and its summary is part of the handoff', async () => {
  answer = async () => ' They build a bridge.\n';
  const long = 'word '.repeat(10_000);
  expect(await hand(['first', long, long, 'last'])).toBe('They build a bridge.');
  const shown = JSON.stringify(asked[0]?.messages);
  expect(shown).toContain('[message] last');
  expect(shown).toContain(long);
  expect(shown).not.toContain('first');
  expect(asked).toHaveLength(1);
  expect(events('session.summarized')).toMatchObject([{ model: 'small', input_tokens: 7, output_tokens: 3 }]);
});

test.each([
  ['fails', () => Promise.reject(new ModelError('model_unavailable', 'down'))],
  ['says nothing', async () => ' '],
])('the summary consists of counts when the model %s', async (_how, give) => {
  answer = give;
  expect(await hand(['one'])).toContain('Total of 2 context entries');
});

test('a model that never answers is not waited for', async () => {
  answer = () => new Promise(() => undefined);
  const session_key = `m-${++n}`;
  await sessions.register({ session_key, agent_from: 'claude' });
  const { project_id: projectId, operator_agent_id: actorId } = (
    await h.rows<{ project_id: never; operator_agent_id: never }>(
      'select id as project_id, operator_agent_id from boxcar.projects',
    )
  )[0] as { project_id: never; operator_agent_id: never };
  const session = await findHandoffSession(h.database.pool, { projectId, actorId }, session_key);
  if (session === undefined) throw new Error('no session');
  expect(await summarizeByModel(runtime, session, { model: 'small', timeoutMs: 1 })).toBeUndefined();
  expect(events('session.summary_failed').at(-1)).toMatchObject({ error: 'it took too long' });
});

test('the model is asked once for each request, and not for a refused request', async () => {
  answer = async () => 'They build a bridge.';
  const session_key = `m-${++n}`;
  const request = { session_key, target_agent: 'far', idempotency_key: session_key };
  expect(await requestHandoff(runtime, request)).toMatchObject({ outcome: 'not_found' });
  await sessions.register({ session_key, agent_from: 'claude' });
  await expect(requestHandoff(runtime, { ...request, request_type: 'gift' })).rejects.toThrow('request_type');
  expect(asked).toHaveLength(0);
  const first = await requestHandoff(runtime, request);
  expect(first).toMatchObject({ outcome: 'handed_on', context_summary: 'They build a bridge.' });
  expect(await requestHandoff(runtime, request)).toEqual(first);
  expect(asked).toHaveLength(1);
});

test('the words of the model are stored only in cards', async () => {
  answer = async () => 'They build a viaduct.';
  await hand(['one']);
  const tables = await h.rows<{ name: string }>(
    "select table_name as name from information_schema.tables where table_schema = 'boxcar' and table_type = 'BASE TABLE'",
  );
  const having: string[] = [];
  for (const { name } of tables)
    if ((await h.rows(`select from boxcar.${name} t where t::text like '%viaduct%'`)).length > 0)
      having.push(name);
  expect(having).toEqual(['cards']);
});
