import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parseConfig } from '@boxcar/host/config';
import { openStack, type Stack } from '@boxcar/host/open';
import { type NodeChild, spawnNode } from '@boxcar/testkit';
import { vi } from 'vitest';
import { readProfiles } from '../commands/profile/profile-files.js';
import { runCli } from '../run-cli.js';

const MAIN = new URL('../main.ts', import.meta.url);
const FIXTURES = join(import.meta.dirname, '../fixtures');
export const PLUGIN = join(FIXTURES, 'plugin.mjs');
export const PROFILES = join(FIXTURES, 'profiles.yaml');

/** Settings of the machine that runs the tests must not reach the tested command line. */
const CLEAN: Readonly<Record<string, undefined>> = Object.fromEntries(
  [
    ...[
      'DATABASE_URL',
      'DATABASE_DIRECT_URL',
      'DATABASE_READ_URL',
      'REDIS_URL',
      'BOXCAR_POSTGRES_PORT',
      'BOXCAR_LOG_LEVEL',
    ],
    ...[
      'BOXCAR_PROJECT',
      'BOXCAR_POLICY_FILE',
      'BOXCAR_HANDOFF_ENABLED',
      'AGDD_HANDOFF_ENABLED',
      'BOXCAR_TARGETS_FILE',
      'BOXCAR_MCP_SERVERS',
      'BOXCAR_OAUTH_ISSUER',
      'BOXCAR_OAUTH_AUDIENCE',
      'BOXCAR_TARGETS_ALLOW_PRIVATE',
      'BOXCAR_WEBHOOK_ALLOW_PRIVATE',
      'BOXCAR_WEBHOOK_RETRY_SECONDS',
      'BOXCAR_WEBHOOK_SECRET',
      'BOXCAR_APPROVALS_ENABLED',
      'AGDD_APPROVALS_ENABLED',
      'BOXCAR_APPROVAL_MINUTES',
      'BOXCAR_SUMMARY_MODEL',
      'BOXCAR_API_KEY',
      'BOXCAR_ENVIRONMENT',
      'BOXCAR_PLUGINS',
      'BOXCAR_CONCURRENCY',
      'BOXCAR_WORKER_TARGETS',
      'BOXCAR_LEASE_MS',
    ],
    ...[
      'BOXCAR_GRACE_MS',
      'BOXCAR_HANDLER_TIMEOUT_MS',
      'BOXCAR_DATA_DIR',
      'BOXCAR_DATABASE_WAIT_SECONDS',
      'PGOPTIONS',
      'PGPASSWORD',
      'PGUSER',
    ],
  ].map((name) => [name, undefined]),
);

export type Env = Readonly<Record<string, string | undefined>>;

export interface CliResult {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

/** Starts `boxcar …` in a separate process. */
export const startCli = (
  args: readonly string[],
  env: Env = {},
  options: Pick<NonNullable<Parameters<typeof spawnNode>[3]>, 'cwd' | 'files'> = {},
): NodeChild => {
  // A plugin must import the same packages as the command line, and `dev` starts its own file again.
  const isJoined = args[0] !== 'dev' && !args.includes('--plugin');
  return spawnNode(MAIN, args, { ...CLEAN, ...env }, { ...options, isJoined });
};

/** Runs `boxcar …` to its end, in a separate process. */
export async function cli(args: readonly string[], env: Env = {}): Promise<CliResult> {
  await using child = startCli(args, env);
  const { code } = await child.exited;
  return { code, stdout: child.stdout, stderr: child.stderr };
}

/** The same command line in this process: a separate process takes a second of CPU time. `stop` replaces a signal to the process. */
export async function cliHere(
  args: readonly string[],
  env: Env = {},
  options: { readonly stop?: AbortSignal } = {},
): Promise<CliResult> {
  const said = { stdout: '', stderr: '' };
  const spies = (['stdout', 'stderr'] as const).map((name) =>
    vi.spyOn(process[name], 'write').mockImplementation((text) => {
      said[name] += String(text);
      return true;
    }),
  );
  try {
    const code = await runCli(args, { env: { BOXCAR_POSTGRES_KEEP_SECONDS: '0', ...env }, ...options });
    return { code, ...said };
  } finally {
    for (const spy of spies) spy.mockRestore();
  }
}

/** A migrated stack in this process with the profiles of the fixtures, to prepare a test and to submit turns. */
export async function prepare(env: Env): Promise<Stack> {
  const stack = await openStack(parseConfig(env), { migrate: true });
  for (const { profile } of readProfiles(
    [{ name: PROFILES, text: await readFile(PROFILES, 'utf8') }],
    () => undefined,
  ))
    await stack.runtime.applyProfile(profile);
  return stack;
}
