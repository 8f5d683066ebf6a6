import { spawn } from 'node:child_process';
import { chmodSync, cpSync, existsSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join, normalize } from 'node:path';
import { queueBackends, spawnNode, testDatabase, testRedis, waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  compilerOptionsOfPage,
  findBrokenMaps,
  importsOf,
  makeOutsideProject,
  reachableTypes,
  readManifest,
  root,
  run,
  SHIPPED,
} from './outside-project.js';
import { type SnippetProject, writeSnippetProject } from './snippet-project.js';

let folder: string;
let snippets: SnippetProject;
const installed = (name: string): string => join(folder, 'node_modules/@boxcar', name);

/** The example, copied out of the workspace, with the packages installed from their tarballs. */
beforeAll(async () => {
  folder = await makeOutsideProject();
  // The embedded server of root runs under another account, which must enter the folder.
  chmodSync(folder, 0o755);
  cpSync(join(root, 'examples/own-service'), folder, {
    recursive: true,
    filter: (path) => !path.endsWith('node_modules') && !path.endsWith('package.json'),
  });
  snippets = writeSnippetProject(folder);
}, 300_000);

afterAll(() => rmSync(folder, { recursive: true, force: true }));

describe.each(SHIPPED)('the tarball of %s', (name) => {
  test('has every entry of the workspace except sources and tests, each with its file', () => {
    const manifest = readManifest(installed(name));
    const { exports } = readManifest(join(root, 'packages', name));
    const expected: Record<string, string | Readonly<Record<string, string>>> = {};
    for (const [entry, target] of Object.entries(exports)) {
      if (typeof target === 'string') expected[entry] = target;
      else {
        const { '@boxcar/source': _source, ...rest } = target;
        if (Object.keys(rest).length > 0) expected[entry] = rest;
      }
    }
    expect(manifest.exports).toEqual(expected);
    const targets = Object.values(expected).flatMap((target) =>
      typeof target === 'string' ? [target] : Object.values(target),
    );
    expect(targets.filter((target) => !existsSync(join(installed(name), target)))).toEqual([]);
  });

  test('declares types without drizzle, and names no missing map and no missing source', () => {
    const { exports } = readManifest(installed(name));
    const types = Object.values(exports).flatMap((entry) =>
      typeof entry === 'string' || entry.types === undefined ? [] : [join(installed(name), entry.types)],
    );
    const reached = types.flatMap((entry) => [...reachableTypes(entry)]);
    expect(reached.length).toBeGreaterThan(1);
    const declarations = readdirSync(join(installed(name), 'dist'), { recursive: true, encoding: 'utf8' })
      .filter((file) => file.endsWith('.d.ts'))
      .map((file) => join(installed(name), 'dist', file));
    expect(declarations).toEqual(expect.arrayContaining(reached.map((file) => normalize(file))));
    expect(declarations.filter((file) => importsOf(file).some((id) => id.startsWith('drizzle-orm')))).toEqual(
      [],
    );
    expect(findBrokenMaps(join(installed(name), 'dist'))).toEqual([]);
  });

  test('describes itself, and leaves packages with shared types to the program', () => {
    const manifest = readManifest(installed(name));
    expect(manifest.keywords?.length).toBeGreaterThan(2);
    const used = new Set(
      Object.values(manifest.exports)
        .flatMap((entry) => (typeof entry === 'string' ? [] : [join(installed(name), entry.types ?? '')]))
        .flatMap((entry) => [...reachableTypes(entry)].flatMap(importsOf)),
    );
    const { dependencies = {}, peerDependencies = {} } = manifest;
    const others = [...used]
      .filter((id) => !/^(\.|node:|events$)/.test(id))
      .map((id) => /^(@[\w-]+\/)?[^/]+/.exec(id)?.[0]);
    for (const id of others) expect({ ...dependencies, ...peerDependencies }).toHaveProperty([id ?? '']);
    if (used.has('pg')) expect(dependencies).toHaveProperty(['@types/pg']);
    // The command line is a program, and has its own copies.
    const shared = name === 'cli' ? [] : SHARED.filter((id) => used.has(id));
    expect(shared.filter((id) => id in dependencies)).toEqual([]);
  });
});

/** Packages whose class instances a program passes on: two copies of such a package would not recognize each other's instances. */
const SHARED = ['pg', 'zod'];

const entryIds = (): string[] =>
  SHIPPED.flatMap((name) =>
    Object.keys(readManifest(installed(name)).exports).map((entry) => join('@boxcar', name, entry)),
  );

test('every entry of the tarballs is loaded by its name', async () => {
  const program = entryIds().map(
    (id) => `await import('${id}'${id.endsWith('.json') ? ", { with: { type: 'json' } }" : ''});`,
  );
  await run(process.execPath, ['--input-type=module', '--eval', program.join('')], { cwd: folder });
});

describe.each(['nodenext', 'bundler'])('a strict project with modules as %s', (resolution) => {
  // The snippets are written for Node.
  const isForNode = resolution === 'nodenext';

  test('compiles with every entry, and the types of the packages are checked, too', async () => {
    const entries = entryIds().filter((id) => !id.endsWith('.json'));
    writeFileSync(
      join(folder, 'entries.ts'),
      entries.map((id, n) => `export * as entry${n} from '${id}';\n`).join(''),
    );
    const config = {
      compilerOptions: {
        ...compilerOptionsOfPage(),
        ...(isForNode ? {} : { module: 'esnext', moduleResolution: resolution }),
        exactOptionalPropertyTypes: true,
        noUncheckedIndexedAccess: true,
        skipLibCheck: false,
        rootDir: '.',
        outDir: 'compiled',
        noEmit: !isForNode,
      },
      files: ['entries.ts', ...(isForNode ? snippets.files : [])],
    };
    const file = join(folder, `tsconfig.${resolution}.json`);
    writeFileSync(file, JSON.stringify(config));
    expect(await compile(file)).toEqual([]);
  });
});

/** The errors of the compiler. */
const compile = (config: string): Promise<string[]> =>
  run(join(folder, 'node_modules/.bin/tsc'), ['-p', config], { cwd: folder, maxBuffer: 1e8 }).then(
    () => [],
    (error: { stdout: string }) => error.stdout.split('\n').filter((line) => line.includes('error TS')),
  );

interface Report {
  before: { cards: number; boxes: number };
  afterRollback: { cards: number; boxes: number };
  afterCommit: { cards: number; boxes: number };
  attached: number;
  answers: { status: string; result: string; turn_id: string }[];
}

describe.each(queueBackends())('a program outside the workspace with queues on %s', (backend) => {
  test('packs in its own transaction and adds a primitive, and two worker processes run it', async () => {
    const database = await testDatabase({ empty: true });
    const redis = backend === 'redis' ? await testRedis() : undefined;
    const env = {
      ...process.env,
      DATABASE_URL: database.url,
      REDIS_URL: redis?.url ?? '',
      DATABASE_DIRECT_URL: '',
    };
    const options = { cwd: folder, env };
    const bin = join(folder, 'node_modules/.bin/boxcar');
    await run(bin, ['migrate'], options);
    await run(bin, ['profiles', 'apply', '-f', 'profiles.yaml'], options);
    let printed = '';
    const workers = [1, 2].map(() => {
      const worker = spawn(process.execPath, [bin, 'worker', '--plugin', './plugin.js'], {
        ...options,
        stdio: ['ignore', 'ignore', 'pipe'],
      });
      worker.stderr.on('data', (text) => {
        printed += String(text);
      });
      return worker;
    });
    // A queue door has a row too, without targets.
    const registered = "select from boxcar.workers where targets <> '{}'";
    try {
      await waitFor(
        async () => {
          if (workers.some(({ exitCode }) => exitCode !== null))
            throw new Error(`a worker ended: ${printed}`);
          return (await database.pool.query(registered)).rowCount === 2;
        },
        { deadlineMs: 60_000, message: 'two workers registered' },
      );
      const { stdout } = await run(process.execPath, ['program.js'], options);
      const report = JSON.parse(stdout) as Report;
      expect(report.afterRollback).toEqual(report.before);
      expect(report.afterCommit).toEqual({ cards: report.before.cards + 3, boxes: report.before.boxes + 2 });
      expect(report.attached).toBe(3);
      expect(report.answers.map((answer) => [answer.status, answer.result])).toEqual([
        ['success', 'Reviewed src/auth.ts: risk high.'],
        ['success', 'Reviewed src/list.ts: risk low.'],
        ['success', 'Reviewed README.md: risk low.'],
        ['success', 'Reviewed src/auth/keys.ts: risk high.'],
      ]);
    } finally {
      for (const worker of workers) worker.kill('SIGTERM');
      await Promise.all(
        workers.map((worker) => worker.exitCode ?? new Promise((resolve) => worker.once('exit', resolve))),
      );
    }
    const { rows } = await database.pool.query(
      "select count(*)::int as n from boxcar.turns where status = 'success'",
    );
    expect(rows).toEqual([{ n: 4 }]);
  });

  test('runs the programs of README and docs against a worker with their plugins', async () => {
    const database = await testDatabase({ empty: true });
    const redis = backend === 'redis' ? await testRedis() : undefined;
    const env = {
      ...process.env,
      DATABASE_URL: database.url,
      REDIS_URL: redis?.url ?? '',
      DATABASE_DIRECT_URL: '',
      BOXCAR_DATA_DIR: join(folder, 'data'),
    };
    const programs = snippets.programs.filter(
      ({ snippet }) => snippet.code.includes('REDIS_URL') === (backend === 'redis'),
    );
    const compiled = (file: string): string => join(folder, 'compiled', file.replace(/\.ts$/, '.js'));
    await using host = spawnNode(compiled(snippets.host), [], env, { cwd: folder });
    await host.line(/^ready$/, { deadlineMs: 60_000 });
    const runs = programs.map(async ({ snippet, file }) => {
      const [, expected, onStderr = /^$/] = PRINTS.find(([name]) => snippet.code.includes(name)) ?? [];
      if (expected === undefined) throw new Error(`What does ${file} print?`);
      // A program that leaves a resource open does not end.
      const options = { cwd: folder, env, timeout: 60_000 };
      const { stdout, stderr } = await run(process.execPath, [compiled(file)], options);
      // On a busy machine the queue may answer too late; the turn ends anyway.
      const said = stderr.replaceAll(
        /^\S+ warn {2}(?:doorbell\.(?:ring_lost|unreachable)|pool\.waiting) .*\n/gm,
        '',
      );
      return expected.test(stdout) && onStderr.test(said) ? [] : [{ snippet, stdout, stderr }];
    });
    const wrong = (await Promise.all(runs)).flat();
    expect(wrong).toEqual([]);
    expect(programs.length).toBeGreaterThan(0);
    await host.kill('SIGTERM');
    expect(await host.exited).toEqual({ code: 143, signal: null });
    // It may warn that another queue door was faster.
    expect(host.stderr).not.toMatch(/^\S+ error /m);
  });
});

/** The expected output of the programs of README and docs on stdout and stderr, by a name in the program. */
const PRINTS: readonly (readonly [name: string, stdout: RegExp, stderr?: RegExp])[] = [
  [
    'registerAgent',
    /^completed \{"mood":"glad","reviews":\[.*\]\}\nhandoff\.requested\nhandoff\.started\nhandoff\.completed\n$/,
  ],
  ['registerShop', /^success Order 42 is paid\.\n\{.* result: 'Order 42 is paid\.'/s],
  ['ask_expert', /It is safe\./],
  ['packContext', /^[0-9a-f-]{36} \[/],
  ['a2aRoutes', /^401\n$/],
  ['register_session', /^\{"success":true,.*"status":"active".*\}\n$/],
  ['createHttpFrame', /^200\n$/],
  [
    'startEmbeddedPostgres',
    /^postgres:\/\/boxcar_app:/,
    /^started the embedded Postgres .*\nstopped the embedded Postgres .*\n$/s,
  ],
  ['createModelRouter', /^$/],
  ['AdapterRegistry', /^openai openai\n$/],
  ['openStack', /^true\n$/],
  ['PermissionEvaluator', /^([0-9a-f]{64}\nnever rules\.0|never)\n$/],
];
