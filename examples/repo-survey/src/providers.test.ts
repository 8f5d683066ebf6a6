/** The survey with a model behind a real HTTP server: the same path as to a real provider with a key in the environment. */
import { fileURLToPath } from 'node:url';
import { createModelRouter, type ModelSettings } from '@boxcar/llm';
import { anthropicWire, chatWire, responsesWire, SERVER_KEY } from '@boxcar/llm/testing';
import { spawnNode, testDatabase } from '@boxcar/testkit';
import { describe, expect, test } from 'vitest';
import { loadConfig, registerSurvey, runSurvey } from './index.js';
import { openSurveyModel } from './testing/model-server.js';
import { copyFixture, openTestRuntime } from './testing/survey-harness.js';

const WAIT = { timeoutMs: 25_000 };
const MAIN = fileURLToPath(new URL('./main.ts', import.meta.url));

async function survey(root: string, model?: string, providers?: ModelSettings) {
  await using h = await openTestRuntime(createModelRouter(providers === undefined ? {} : { providers }));
  await registerSurvey(h.runtime, { root, model });
  const run = await runSurvey({ runtime: h.runtime, ...WAIT });
  const { rows } = await h.runtime.pool.query<{ model: string; estimated: boolean }>(
    `select distinct model, usage ? 'estimated' as estimated from boxcar.steps where committed_at is not null`,
  );
  return { run, models: rows };
}

describe('a survey over HTTP', () => {
  test('has the same report as the scripted survey, on each provider', async () => {
    await using tree = await copyFixture();
    const { run: scripted } = await survey(tree.root);
    expect(scripted).toMatchObject({ status: 'success', turns: 5, steps: 12 });
    for (const [setting, wire, name] of [
      ['openaiCompatible', chatWire, 'local'],
      ['openai', responsesWire, 'gpt-4.1'],
      ['anthropic', anthropicWire, 'claude-sonnet-4-5'],
    ] as const) {
      await using server = await openSurveyModel(wire);
      const model = `${wire.provider}:${name}`;
      const settings = { [setting]: { apiKey: SERVER_KEY, baseUrl: server.baseUrl } };
      const { run, models } = await survey(tree.root, model, settings);
      expect(server.refusals).toEqual([]);
      expect({ ...run, run_id: scripted.run_id }).toEqual(scripted);
      expect(server.requests).toHaveLength(12);
      expect(new Set(server.requests.map(({ prompt }) => prompt?.model))).toEqual(new Set([name]));
      expect(models).toEqual([{ model, estimated: false }]);
    }
  });

  test('without a key ends with the code that names the variable', async () => {
    await using tree = await copyFixture();
    const { run } = await survey(tree.root, 'openai:gpt-4.1');
    expect(run).toMatchObject({
      status: 'failed',
      turns: 1,
      error: { code: 'model_unauthorized', details: { variable: 'OPENAI_API_KEY' } },
    });
    expect(run.error?.message).toMatch(/OPENAI_API_KEY is not set/);
  });

  test('reports a wrong model before anything runs', async () => {
    await using tree = await copyFixture();
    for (const [model, message] of [
      ['gemini:x', /known prefixes are scripted, openai, anthropic, openai-compatible/],
      ['openai:', /write openai:<model>/],
    ] as const) {
      await expect(survey(tree.root, model)).rejects.toThrow(message);
      await expect(survey(tree.root, model)).rejects.toMatchObject({ code: 'profile_invalid' });
    }
  });
});

test('main.js uses the model of --model and of the environment', async () => {
  await using tree = await copyFixture();
  await using database = await testDatabase({ empty: true });
  await using server = await openSurveyModel(chatWire, { key: null });
  const env = {
    DATABASE_URL: database.url,
    DATABASE_DIRECT_URL: undefined,
    REDIS_URL: undefined,
    BOXCAR_MODEL: undefined,
    OPENAI_COMPATIBLE_API_KEY: undefined,
    OPENAI_COMPATIBLE_BASE_URL: server.baseUrl,
  };
  const folder = `${tree.root}/tools`;
  await using good = spawnNode(MAIN, [folder, '--json', '--model', 'openai-compatible:survey'], env);
  await using badUrl = spawnNode(MAIN, [folder], { ...env, OPENAI_BASE_URL: 'nowhere' });
  expect([(await good.exited).code, good.stderr]).toEqual([0, '']);
  expect(JSON.parse(good.stdout)).toMatchObject({ status: 'success', deliverable: { files: 1, todos: 1 } });
  expect(server.requests).toHaveLength(6);
  expect([(await badUrl.exited).code, badUrl.stdout]).toEqual([1, '']);
  expect(badUrl.stderr).toMatch(/^repo-survey: OPENAI_BASE_URL: must be an http/);
});

test('the environment sets the model of all agents, its provider and its key', () => {
  const config = loadConfig({
    BOXCAR_MODEL: ' openai:gpt-4.1 ',
    OPENAI_API_KEY: 'sk-1',
    OPENAI_BASE_URL: '',
    BOXCAR_SURVEY_ROOT: '/tree',
  });
  expect(config).toMatchObject({
    root: '/tree',
    model: 'openai:gpt-4.1',
    models: { openai: { apiKey: 'sk-1', baseUrl: undefined } },
  });
  expect(loadConfig({ BOXCAR_MODEL: ' ' }).model).toBeUndefined();
});
