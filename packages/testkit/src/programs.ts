import { readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { build, type Plugin, stop } from 'esbuild';

/**
 * The programs that tests start in processes of their own, often dozens of times in a run. A start from the sources takes 2 s of a
 * processor, because a thousand files are found, read and compiled. A start from one file takes 0.4 s.
 */
const PROGRAMS = [
  'packages/runtime/src/testing/worker-process.ts',
  'packages/runtime/src/testing/caller-process.ts',
  'packages/runtime/src/testing/import-process.ts',
  'packages/runtime/src/testing/provider-worker.ts',
  'packages/runtime/src/testing/mixed-pool.ts',
  'packages/runtime/src/testing/two-workers.ts',
  'packages/cli/src/main.ts',
  'examples/repo-survey/src/main.ts',
];

/** Modules use their own path to find files near them (migrations, programs, SQL), so each keeps the path of its source. */
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
 * Joins each program, the sources of the workspace that it imports and its dependencies into a few files.
 *
 * @returns The file to run instead of each program, by the path of its source.
 */
export async function bundlePrograms(
  root: string,
  folder: string,
): Promise<Readonly<Record<string, string>>> {
  await build({
    absWorkingDir: root,
    entryPoints: PROGRAMS,
    outbase: root,
    outdir: folder,
    outExtension: { '.js': '.mjs' },
    bundle: true,
    splitting: true,
    platform: 'node',
    format: 'esm',
    target: 'node20',
    conditions: ['@boxcar/source'],
    define: OWN_PATHS,
    plugins: [ownPaths],
    banner: {
      js: "import { createRequire as requireFrom } from 'node:module';\nconst require = requireFrom(import.meta.url);",
    },
    logLevel: 'error',
  });
  await stop();
  return Object.fromEntries(
    PROGRAMS.map((program) => [join(root, program), join(folder, program.replace(/\.ts$/, '.mjs'))]),
  );
}
