import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { build, type Plugin, stop } from 'esbuild';

/**
 * The programs that tests start in separate processes, often dozens of times in a run. A start from the sources takes 2 s of a processor,
 * because a thousand files are found, read and compiled. A start from one file takes 0.4 s.
 */
const PROGRAMS = [
  'packages/runtime/src/testing/worker-process.ts',
  'packages/runtime/src/testing/caller-process.ts',
  'packages/runtime/src/testing/handoff-process.ts',
  'packages/runtime/src/testing/import-process.ts',
  'packages/runtime/src/testing/provider-worker.ts',
  'packages/runtime/src/testing/mixed-pool.ts',
  'packages/runtime/src/testing/two-workers.ts',
  'packages/cli/src/main.ts',
  'packages/mcp/src/server.ts',
  'examples/repo-survey/src/main.ts',
];

/** Modules use their own path to find files near them (migrations, programs, SQL), so each module keeps the path of its source. */
const OWN_PATHS = {
  'import.meta.url': 'ownUrl$',
  'import.meta.dirname': 'ownFolder$',
  'import.meta.filename': 'ownFile$',
  __dirname: 'ownFolder$',
  __filename: 'ownFile$',
};

const ownPaths: Plugin = {
  name: 'own-paths',
  setup: ({ onLoad }) => {
    onLoad({ filter: /\.[cm]?[jt]s$/ }, async ({ path }) => {
      const text = await readFile(path, 'utf8');
      if (!Object.keys(OWN_PATHS).some((name) => text.includes(name))) return undefined;
      const [url, folder, file] = [pathToFileURL(path).href, dirname(path), path].map((own) =>
        JSON.stringify(own),
      );
      return {
        contents: `var ownUrl$ = ${url}, ownFolder$ = ${folder}, ownFile$ = ${file}; ${text}`,
        loader: path.endsWith('ts') ? 'ts' : 'js',
      };
    });
  },
};

/**
 * Bundles each program, its imports from the workspace and its dependencies into a few files.
 *
 * @param isBuilt - Use the build output. A program without build output is bundled from its source.
 * @returns The file to run in place of each program, keyed by the path of the program's source.
 */
export async function bundlePrograms(
  root: string,
  folder: string,
  isBuilt: boolean,
): Promise<Readonly<Record<string, string>>> {
  const builtOf = (program: string): string => program.replace('/src/', '/dist/').replace(/\.ts$/, '.js');
  const built = isBuilt ? PROGRAMS.filter((program) => existsSync(join(root, builtOf(program)))) : [];
  const sources = PROGRAMS.filter((program) => !built.includes(program));
  const joinFiles = (entryPoints: readonly string[], conditions: string[]): Promise<unknown> =>
    build({
      absWorkingDir: root,
      entryPoints: [...entryPoints],
      outbase: root,
      outdir: folder,
      outExtension: { '.js': '.mjs' },
      bundle: true,
      splitting: true,
      platform: 'node',
      format: 'esm',
      target: 'node20',
      conditions,
      define: OWN_PATHS,
      plugins: [ownPaths],
      banner: {
        js: "import { createRequire as requireFrom } from 'node:module';\nconst require = requireFrom(import.meta.url);",
      },
      logLevel: 'error',
    });
  await Promise.all([joinFiles(sources, ['@boxcar/source']), joinFiles(built.map(builtOf), [])]);
  await stop();
  const fileOf = (program: string): string =>
    (built.includes(program) ? builtOf(program) : program).replace(/\.[jt]s$/, '.mjs');
  return Object.fromEntries(PROGRAMS.map((program) => [join(root, program), join(folder, fileOf(program))]));
}
