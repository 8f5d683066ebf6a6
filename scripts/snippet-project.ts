/** Writes the programs, modules and parts in README and docs as files of a project outside the workspace. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileOf, kindOf, readSnippets, type Snippet } from './snippets.js';

/** The declarations that a part expects from its surrounding program. */
const AROUND = `import type { HandoffTool, HandoverPacker, PackRequest, Runtime, Tape, TapeFile } from '@boxcar/runtime';
import type pg from 'pg';
import type { z as zod } from 'zod';

declare global {
  const runtime: Runtime;
  const packer: HandoverPacker;
  const tape: Tape;
  const tool: HandoffTool;
  const client: pg.PoolClient;
  const tx: pg.PoolClient;
  const z: typeof zod;
  const turnId: string;
  const boxId: string;
  const forkId: string;
  const { projectId, toolSuffix, sourceAgentId, arguments: args, handover, access }: Required<PackRequest>;
  const stream: NodeJS.WritableStream;
  const readLines: (file: string) => ReturnType<TapeFile['lines']>;
  const work: (fork: Tape) => Promise<number>;
}
`;

/** A worker with the plugins and profiles of the pages; the parts in JavaScript and the handlers are run unchanged. */
const host = (modules: readonly string[], parts: readonly string[], handlers: readonly string[]): string => `
import { startBoxcar } from '@boxcar/cli';
import { loadPlugins } from '@boxcar/runtime';
import { z } from 'zod';

const boxcar = await startBoxcar();
const { runtime } = boxcar;
const said = { instructions: 'You review changes.', model: 'scripted', script: [{ say: 'It is safe.' }] };
for (const name of ['reviewer', 'packer']) await runtime.applyProfile({ name, ...said });
await loadPlugins(runtime, ${JSON.stringify(modules)}.map((file) => new URL(file, import.meta.url).pathname));
const client = await runtime.pool.connect();
await client.query('create temp table orders (id int)');
${parts.map((code) => `{\n${code}}\n`).join('')}
client.release();
Object.assign(globalThis, { runtime, z });
for (const file of ${JSON.stringify(handlers)}) await import(file);
await boxcar.startWorker();
// The handler of the pages does what they say.
const { status } = await runtime.submit('review', { path: 'README.md' });
if (status !== 'success') throw new Error('The review is ' + status);
boxcar.serveQueueDoor();
console.log('ready');
`;

export interface SnippetProject {
  readonly programs: readonly { readonly snippet: Snippet; readonly file: string }[];
  /** All compiled files, relative to the folder of the project. */
  readonly files: readonly string[];
  /** The file of the worker, relative to the folder of the project. */
  readonly host: string;
}

/** Writes all snippets in TypeScript and JavaScript to the folder `snippets`. */
export function writeSnippetProject(folder: string): SnippetProject {
  const snippets = readSnippets().filter(({ language }) => ['ts', 'js'].includes(language));
  const of = (kind: ReturnType<typeof kindOf>, ...languages: readonly string[]): Snippet[] =>
    snippets.filter((one) => kindOf(one) === kind && languages.includes(one.language));
  mkdirSync(join(folder, 'snippets'));
  const write = (name: string, text: string): string => {
    writeFileSync(join(folder, 'snippets', name), text);
    return join('snippets', name);
  };
  const files = [
    write('around.d.ts', AROUND),
    ...of('part', 'ts').map((one) => write(fileOf(one), `${one.code}\nexport {};\n`)),
    ...of('module', 'js', 'ts').map((one) => write(fileOf(one), one.code)),
  ];
  const programs = of('program', 'js', 'ts').map((snippet) => ({
    snippet,
    file: write(fileOf(snippet), `// @ts-check\n${snippet.code}`),
  }));
  const plugins = of('module', 'js').filter(({ code }) => code.includes('export default (runtime)'));
  const hostFile = write(
    'host.js',
    host(
      plugins.map((one) => `./${fileOf(one)}`),
      of('part', 'js').map(({ code }) => code),
      of('part', 'ts')
        .filter(({ code }) => code.startsWith('runtime.registerHandler('))
        .map((one) => `./${fileOf(one).replace(/\.ts$/, '.js')}`),
    ),
  );
  return { programs, files: [...files, ...programs.map(({ file }) => file), hostFile], host: hostFile };
}
