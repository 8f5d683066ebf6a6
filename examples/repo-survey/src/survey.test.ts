import { fileURLToPath } from 'node:url';
import { type BoxId, KernelError } from '@boxcar/kernel';
import { expandContexts } from '@boxcar/store';
import { spawnNode, testDatabase } from '@boxcar/testkit';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { registerSurvey, renderProgress, reportSchema, runSurvey, type SurveyProgress } from './index.js';
import plugin from './plugin.js';
import { loadSurveyProfiles } from './profiles.js';
import { copyFixture, openTestRuntime, SECRET } from './testing/survey-harness.js';

const WAIT = { timeoutMs: 25_000 };

/** Counted by hand, and checked with `wc`. */
const KNOWN = {
  files: 13,
  lines: 104,
  exports: 22,
  functions: 14,
  todos: 10,
  by_folder: [
    { folder: '.', files: 4, lines: 11, exports: 0, functions: 0, todos: 3 },
    { folder: 'docs', files: 2, lines: 7, exports: 0, functions: 0, todos: 1 },
    { folder: 'src', files: 6, lines: 81, exports: 22, functions: 14, todos: 5 },
    { folder: 'tools', files: 1, lines: 5, exports: 0, functions: 0, todos: 1 },
  ],
  by_language: [
    { language: 'TypeScript', files: 3, lines: 63 },
    { language: 'JavaScript', files: 3, lines: 18 },
    { language: 'Markdown', files: 2, lines: 10 },
    { language: 'Python', files: 1, lines: 5 },
    { language: 'Text', files: 2, lines: 4 },
    { language: 'Shell', files: 1, lines: 3 },
    { language: 'JSON', files: 1, lines: 1 },
  ],
  longest_functions: [
    { name: 'area', file: 'src/shapes.ts', line: 13, lines: 8 },
    { name: 'Canvas.size', file: 'src/shapes.ts', line: 33, lines: 7 },
    { name: 'größe', file: 'src/deep/size.mjs', line: 1, lines: 5 },
    { name: 'ολα', file: 'src/deep/size.mjs', line: 7, lines: 3 },
    { name: 'main', file: 'src/index.ts', line: 6, lines: 3 },
    { name: 'exports', file: 'src/legacy.cjs', line: 2, lines: 3 },
    { name: 'square', file: 'src/shapes.ts', line: 15, lines: 3 },
    { name: 'circumference', file: 'src/shapes.ts', line: 22, lines: 3 },
    { name: 'Canvas.draw', file: 'src/shapes.ts', line: 28, lines: 3 },
    { name: 'Canvas.with spaces', file: 'src/shapes.ts', line: 40, lines: 3 },
  ],
  first_todos: [
    { file: 'README.md', line: 3, text: 'TODO: say what it is for' },
    { file: 'README.md', line: 7, text: 'TODO write the second chapter' },
    { file: 'docs/notes.txt', line: 1, text: 'TODO buy milk' },
    { file: 'no-newline.sh', line: 2, text: 'TODO: quote the argument' },
    { file: 'src/broken.ts', line: 2, text: 'TODO: close it' },
    { file: 'src/shapes.ts', line: 1, text: 'TODO: units' },
    { file: 'src/shapes.ts', line: 16, text: 'FIXME overflows' },
    { file: 'src/shapes.ts', line: 35, text: 'TODO(core): measure' },
    { file: 'src/view.jsx', line: 1, text: 'TODO: style it' },
    { file: 'tools/run.py', line: 1, text: 'FIXME: arguments' },
  ],
  skipped: {
    binary: 1,
    too_large: 1,
    over_limit: 0,
    links: 4,
    unreadable: 0,
    ignored_folders: 3,
    unparsed: 1,
  },
};

afterEach(() => {
  vi.unstubAllEnvs();
});

describe('a survey', () => {
  test('of the frozen tree has the known numbers', async () => {
    await using tree = await copyFixture();
    await using h = await openTestRuntime();
    await registerSurvey(h.runtime, { root: tree.root });
    const seen: SurveyProgress[] = [];
    const run = await runSurvey({
      runtime: h.runtime,
      folder: tree.root,
      onProgress: (progress) => void seen.push(progress),
      ...WAIT,
    });
    expect(seen.length).toBeGreaterThan(0);
    for (const { folders, measured, atWork } of seen) {
      expect([0, 4]).toContain(folders);
      expect(measured + atWork).toBeLessThanOrEqual(folders);
    }
    // The principal takes four steps, and the expert of each of the four areas takes two.
    expect(run).toMatchObject({ status: 'success', turns: 5, steps: 12 });
    const report = reportSchema.parse(run.deliverable);
    expect(report).toEqual({ ...KNOWN, experts: 4, unanswered: [], summary: expect.any(String) });
    expect(report.summary).toBe(
      '104 lines in 13 files; languages by lines: TypeScript, JavaScript, Markdown. 22 exports, 10 TODOs. ' +
        'Longest of 14 named functions: area, Canvas.size, größe. Experts without an answer: 0 of 4.',
    );
    const { rows } = await h.runtime.pool.query<{ run_id: string }>('select id as run_id from boxcar.runs');
    expect(rows).toEqual([{ run_id: run.run_id }]);
    const leaks = await h.runtime.pool.query('select id from boxcar.cards where content::text like $1', [
      `%${SECRET}%`,
    ]);
    expect(leaks.rows).toEqual([]);
  });

  test('reports its progress', () => {
    expect(renderProgress({ folders: 0, measured: 0, atWork: 0 })).toBe('dividing the tree');
    expect(renderProgress({ folders: 4, measured: 3, atWork: 1 })).toBe(
      '[###############.....] 3 of 4 folders measured, 1 at work',
    );
  });

  test('of a folder in the tree covers only that folder, and is the same twice', async () => {
    await using tree = await copyFixture();
    await using h = await openTestRuntime();
    await registerSurvey(h.runtime, { root: tree.root });
    const runs = await Promise.all(
      ['src', `${tree.root}/src/../src`].map((folder) => runSurvey({ runtime: h.runtime, folder, ...WAIT })),
    );
    expect(runs[0]?.deliverable).toEqual(runs[1]?.deliverable);
    expect(reportSchema.parse(runs[0]?.deliverable)).toMatchObject({
      files: 6,
      lines: 81,
      exports: 22,
      by_folder: [
        { folder: 'src', files: 5 },
        { folder: 'src/deep', files: 1 },
      ],
    });
  });

  test('of a folder without code has zeros for it', async () => {
    await using tree = await copyFixture();
    await using h = await openTestRuntime();
    await registerSurvey(h.runtime, { root: `${tree.root}/tools` });
    const run = await runSurvey({ runtime: h.runtime, ...WAIT });
    expect(run).toMatchObject({
      status: 'success',
      turns: 2,
      deliverable: { files: 1, exports: 0, functions: 0, longest_functions: [] },
    });
  });

  test('gives each expert only the ground rules of the principal', async () => {
    await using tree = await copyFixture();
    await using h = await openTestRuntime();
    await registerSurvey(h.runtime, { root: tree.root });
    await runSurvey({ runtime: h.runtime, ...WAIT });
    const { rows } = await h.runtime.pool.query<{ box_id: BoxId }>(
      "select context_box_id as box_id from boxcar.turns where primitive = 'fork_join'",
    );
    expect(rows).toHaveLength(4);
    const contexts = await expandContexts(
      h.runtime.pool,
      rows.map((row) => row.box_id),
    );
    for (const cards of contexts.values()) {
      expect(cards.map(({ card }) => card.type)).toEqual([
        'task.instruction',
        'task.result_fields',
        'survey.ground_rules',
        'meta.parent_pointer',
      ]);
    }
    const rules = [...contexts.values()].map((cards) => cards[2]?.card.id);
    expect(new Set(rules).size).toBe(1);
  });

  test('names an expert that failed, and continues without its numbers', async () => {
    await using tree = await copyFixture();
    await using h = await openTestRuntime();
    await registerSurvey(h.runtime, { root: tree.root });
    const [expert] = (await loadSurveyProfiles()) as [{ script: { expect: object }[] }];
    const [first, ...others] = expert.script;
    await h.runtime.applyProfile({
      ...expert,
      script: [{ ...first, expect: { ...first?.expect, notContains: 'Folder: docs' } }, ...others],
    });
    const run = await runSurvey({ runtime: h.runtime, ...WAIT });
    expect(run).toMatchObject({
      status: 'success',
      deliverable: {
        files: 11,
        todos: 9,
        experts: 4,
        unanswered: [{ code: 'script_mismatch', message: expect.stringContaining('Folder: docs') }],
        summary: expect.stringContaining('Experts without an answer: 1 of 4.'),
      },
    });
  });
});

describe('a folder that cannot be surveyed', () => {
  test('is a bad_request that names the folder', async () => {
    await using tree = await copyFixture();
    await using h = await openTestRuntime();
    const codeOf = async (work: Promise<unknown>): Promise<string> => {
      const error: unknown = await work.then(
        () => undefined,
        (thrown: unknown) => thrown,
      );
      return error instanceof KernelError ? `${error.code}: ${error.message}` : String(error);
    };
    const { runtime } = h;
    expect(await codeOf(runSurvey({ runtime, ...WAIT }))).toMatch(/^bad_request: .*registerSurvey/);
    expect(await codeOf(registerSurvey(runtime, { root: '/no/such/folder' }))).toMatch(
      /^bad_request: folder: '\/no\/such\/folder' does not exist/,
    );
    expect(await codeOf(registerSurvey(runtime, { root: `${tree.root}/data.json` }))).toMatch(
      /^bad_request: folder: '.*data\.json' is no folder/,
    );
    await registerSurvey(runtime, { root: tree.root });
    for (const [folder, why] of [
      ['nowhere', 'does not exist'],
      ['nul\0', 'does not exist'],
      ['data.json', 'is no folder'],
      ['..', 'lies outside'],
      [tree.outside, 'lies outside'],
      ['link-to-folder', 'lies outside'],
      ['node_modules', 'is not part of the survey'],
    ] as const) {
      expect(await codeOf(runSurvey({ runtime, folder, ...WAIT }))).toMatch(
        new RegExp(`^bad_request: .*${why}`),
      );
    }
    const { rows } = await runtime.pool.query('select id from boxcar.turns');
    expect(rows).toEqual([]);
  });
});

describe('the programs of the survey', () => {
  test('include a plugin that serves the folder of BOXCAR_SURVEY_ROOT', async () => {
    await using tree = await copyFixture();
    await using h = await openTestRuntime();
    vi.stubEnv('BOXCAR_SURVEY_ROOT', tree.root);
    await plugin(h.runtime);
    const answer = await h.runtime.submit('launch_principal', {
      profile_name: 'surveyor',
      instruction: 'Survey this source tree.\nFolder: tools',
      wait: true,
    });
    expect(answer).toMatchObject({ status: 'success', result: { files: 1, lines: 5, todos: 1 } });
  });

  test('include main.js, which prints one JSON object, or one line with the error', async () => {
    await using tree = await copyFixture();
    await using database = await testDatabase({ empty: true });
    const main = fileURLToPath(new URL('./main.ts', import.meta.url));
    const env = { DATABASE_URL: database.url, DATABASE_DIRECT_URL: undefined, REDIS_URL: undefined };
    await using good = spawnNode(main, [tree.root, '--json'], env);
    await using bad = spawnNode(main, [`${tree.root}/nowhere`], env);
    await using lost = spawnNode(main, [tree.root], { ...env, DATABASE_URL: undefined });
    expect([(await good.exited).code, good.stderr]).toEqual([0, '']);
    const { deliverable, ...run } = JSON.parse(good.stdout) as Record<string, unknown>;
    expect(run).toEqual({ status: 'success', run_id: expect.any(String), turns: 5, steps: 12 });
    expect(deliverable).toMatchObject(KNOWN);
    expect([(await bad.exited).code, bad.stdout]).toEqual([1, '']);
    expect(bad.stderr).toMatch(/^repo-survey: folder: '.*nowhere' does not exist\. .*\n$/);
    expect([(await lost.exited).code, lost.stdout]).toEqual([1, '']);
    expect(lost.stderr).toMatch(/^repo-survey: DATABASE_URL: is missing\. .*\n$/);
  });
});
