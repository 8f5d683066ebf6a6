import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { closeAtEnd } from './lifecycle.js';
import { waitFor } from './wait-for.js';

export interface NodeChild extends AsyncDisposable {
  readonly pid: number;
  /** All of stdout so far. */
  readonly stdout: string;
  /** All of stderr so far. */
  readonly stderr: string;
  /** Settles when the process has ended. */
  readonly exited: Promise<{ readonly code: number | null; readonly signal: NodeJS.Signals | null }>;
  /** Writes one line to its stdin. */
  writeLine(line: string): void;
  /** Waits for a line of stdout that matches, and returns it. Earlier lines count too. Fails when the process ends first. */
  line(pattern: RegExp, options?: { readonly deadlineMs?: number }): Promise<string>;
  /** Closes the reading end of its stdout or stderr, as a reader that ends does. */
  stopReading(output: 'stdout' | 'stderr'): void;
  /** Sends a signal, by default `SIGKILL`, and waits for the end of the process. */
  kill(signal?: NodeJS.Signals): Promise<void>;
}

const alive = new Set<ChildProcess>();
let bundles: Readonly<Record<string, string>> = {};
const loader = pathToFileURL(createRequire(import.meta.url).resolve('tsx')).href;

process.on('exit', () => {
  for (const child of alive) child.kill('SIGKILL');
});

/** After this call `spawnNode` runs these files in place of the programs from which they were made (programs.ts). */
export function useBundles(files: Readonly<Record<string, string>>): void {
  bundles = files;
}

/** Ensures that the child does not outlive this process. */
export function trackChild<C extends ChildProcess>(child: C): C {
  alive.add(child);
  child.once('exit', () => alive.delete(child));
  return child;
}

/**
 * Runs a program in a separate process. By default it runs the TypeScript sources of the workspace, so that no build is needed. With
 * `BOXCAR_TEST_BUILT` in the environment it runs the build output. Where the test run has bundled the program to one file, it runs that
 * file, which starts five times as fast. A child that is still running when the test file ends is killed.
 *
 * @param script - Path or file URL.
 * @param env - Added to the environment of this process; `undefined` removes a variable.
 * @param options.cwd - Its working folder; by default that of this process.
 * @param options.isJoined - False: run the program from its sources, because modules that it loads later (plugins) must share its modules,
 * or because it starts its own file again.
 * @param options.files - Files, open for writing, in place of its outputs.
 */
export function spawnNode(
  script: string | URL,
  args: readonly string[] = [],
  env: Readonly<Record<string, string | undefined>> = {},
  options: {
    readonly cwd?: string | undefined;
    readonly isJoined?: boolean;
    readonly files?: { readonly stdout?: number; readonly stderr?: number };
  } = {},
): NodeChild {
  const { cwd, isJoined = true, files = {} } = options;
  const file = typeof script === 'string' && !script.startsWith('file:') ? script : fileURLToPath(script);
  const child = trackChild(
    spawn(process.execPath, [...toCommand(file, isJoined), ...args], {
      env: withoutUndefined({ ...process.env, ...env }),
      cwd,
      stdio: ['pipe', files.stdout ?? 'pipe', files.stderr ?? 'pipe'],
    }),
  );
  let stdout = '';
  let stderr = '';
  child.stdout?.setEncoding('utf8').on('data', (chunk: string) => {
    stdout += chunk;
  });
  child.stderr?.setEncoding('utf8').on('data', (chunk: string) => {
    stderr += chunk;
  });
  // When a child dies during a write, its exit reports the failure.
  child.stdin?.on('error', () => {});
  let hasEnded = false;
  const exited = new Promise<{ code: number | null; signal: NodeJS.Signals | null }>((settle) => {
    child.once('close', (code, signal) => {
      hasEnded = true;
      settle({ code, signal });
    });
  });
  const kill = async (signal: NodeJS.Signals = 'SIGKILL'): Promise<void> => {
    child.kill(signal);
    await exited;
  };
  const close = closeAtEnd(() => (hasEnded ? Promise.resolve() : kill()));
  return {
    pid: child.pid ?? -1,
    get stdout() {
      return stdout;
    },
    get stderr() {
      return stderr;
    },
    exited,
    writeLine: (line) => {
      child.stdin?.write(`${line}\n`);
    },
    line: (pattern, options = {}) =>
      waitFor(
        () => {
          const complete = stdout.split('\n').slice(0, hasEnded ? undefined : -1);
          const found = complete.find((line) => pattern.test(line));
          if (found === undefined && hasEnded) {
            throw new Error(`${file} ended without a line like ${pattern}\n${stdout}${stderr}`);
          }
          return found;
        },
        { message: `${file} prints a line like ${pattern}`, ...options },
      ),
    stopReading: (name) => {
      child[name]?.destroy();
    },
    kill,
    [Symbol.asyncDispose]: close,
  };
}

/** The arguments of `node` that run a program, for tests that start processes themselves. @param script - File URL. */
export const nodeArguments = (script: URL): string[] => toCommand(fileURLToPath(script), true);

function toCommand(file: string, isJoined: boolean): string[] {
  if (!file.endsWith('.ts')) return [file];
  const bundle = isJoined ? bundles[file] : undefined;
  if (bundle !== undefined) return [bundle];
  if (process.env.BOXCAR_TEST_BUILT === '1') {
    const built = `${file.slice(0, -3).replace(/([\\/])src([\\/])/, '$1dist$2')}.js`;
    if (existsSync(built)) return [built];
  }
  return ['--conditions=@boxcar/source', `--import=${loader}`, file];
}

function withoutUndefined(env: Readonly<Record<string, string | undefined>>): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(env).filter(([, value]) => value !== undefined));
}
