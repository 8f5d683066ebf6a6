/** `boxcar serve`. */
import { a2aRoutes } from '@boxcar/a2a';
import { settingSchemas } from '@boxcar/host/config';
import { openStack, type Stack } from '@boxcar/host/open';
import {
  announceServer,
  approvalRoutes,
  createHttpFrame,
  DEFAULT_PORT,
  type HttpFrame,
  handoffRoutes,
  isLoopbackHost,
  type LocalKey,
  openLocalKey,
} from '@boxcar/http';
import { listPublicAgents } from '@boxcar/store';
import type { Command } from 'commander';
import { collect, EXIT, flag, helpOf, notBlank, type Run } from '../../command.js';
import { type Context, untilStopped } from '../../context.js';
import { localFolder } from './local-folder.js';

interface ServeFlags {
  readonly host?: string;
  readonly port?: number;
  readonly allowHost?: readonly string[];
  readonly allowOrigin?: readonly string[];
  readonly graceMs?: number;
  readonly publicUrl?: string;
  readonly project?: string;
}

/** Ends everything in the time that is left, whichever server is away. */
async function closeAll(frame: HttpFrame, stack: Stack, graceMs: number): Promise<void> {
  try {
    await frame.close({ graceMs });
  } finally {
    await stack.close();
  }
}

/** On an address that only this machine reaches there is a key for its commands. */
async function localKeyOf(
  { config }: Context,
  stack: Stack,
  { host, project }: ServeFlags,
): Promise<LocalKey | undefined> {
  if (!(await isLoopbackHost(host))) return undefined;
  return openLocalKey(stack.runtime.pool, { project: project ?? config.project, folder: localFolder() });
}

/** `boxcar serve`: answers until it is told to stop. */
async function runServe(context: Context, flags: ServeFlags): Promise<number> {
  const { config, isJson, stop } = context;
  const log = context.log('info');
  const graceMs = flags.graceMs ?? config.graceMs;
  const stack = await openStack({ ...config, embeddedKeepMs: undefined }, { log, policy: 'decides' });
  const frame = await createHttpFrameOf(stack, flags, log).catch(async (error: unknown) => {
    await stack.close();
    throw error;
  });
  try {
    const key = await localKeyOf(context, stack, flags);
    const { url } = await frame.listen();
    using _announced =
      key === undefined ? undefined : announceServer(localFolder(), { url, keyPath: key.path });
    const agents = await publicAgentsOf(stack);
    const ready = { url, pid: process.pid, key_file: key?.path ?? null, public_agents: agents };
    if (isJson) context.answer({ event: 'serve.ready', ...ready }, () => '');
    context.note(`${url} answers${key === undefined ? '' : `; the key of this machine is in ${key.path}`}`);
    for (const { project, name, path } of agents) context.note(`public agent ${name} of ${project}: ${path}`);
    await untilStopped(stop);
    context.note('stopping (again to stop at once)');
  } finally {
    await closeAll(frame, stack, graceMs);
  }
  if (isJson) context.answer({ event: 'serve.stopped' }, () => '');
  context.note('stopped');
  return EXIT.success;
}

/** So many are named; all are served, and those that are applied later too. */
const MAX_NAMED = 50;

async function publicAgentsOf({ runtime }: Stack) {
  const agents = await listPublicAgents(runtime.pool, MAX_NAMED);
  return agents.map(({ project, name }) => ({ project, name, path: `/a2a/${encodeURIComponent(name)}` }));
}

/** @throws KernelError `bad_config` for addresses and names that are none. */
const createHttpFrameOf = async (
  { runtime }: Stack,
  flags: ServeFlags,
  log: ReturnType<Context['log']>,
): Promise<HttpFrame> =>
  createHttpFrame({
    runtime,
    host: flags.host,
    port: flags.port ?? DEFAULT_PORT,
    allowedHosts: flags.allowHost,
    allowedOrigins: flags.allowOrigin,
    log,
  }).mount([
    ...approvalRoutes(runtime),
    ...handoffRoutes(runtime),
    ...a2aRoutes(runtime, { publicUrl: flags.publicUrl }),
  ]);

export function addServe(program: Command, run: Run): void {
  program
    .command('serve')
    .option('--host <host>', 'address or name of this machine (default: 127.0.0.1)')
    .option('--port <n>', `port; 0 = any free one (default: ${DEFAULT_PORT})`, flag(settingSchemas.port))
    .option(
      '--allow-host <name>',
      'a name by which clients reach it, beside its address, repeatable',
      collect(notBlank),
    )
    .option(
      '--allow-origin <origin>',
      'an origin whose pages may use it, such as https://desk.example, repeatable',
      collect(notBlank),
    )
    .option(
      '--public-url <url>',
      'address by which other platforms reach it, for the cards of public agents',
      notBlank,
    )
    .option('--grace-ms <ms>', 'how long a stop waits for running requests', flag(settingSchemas.graceMs))
    .option('--project <name>', 'project of the key of this machine, by id or name')
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'It listens where only this machine reaches it. There it makes a key at its first start, which commands of this account use. On any other address it needs a key: boxcar keys create. It speaks HTTP without TLS: put a proxy in front of it.\n\nSIGTERM, SIGHUP and Ctrl-C end it after the requests in progress.',
        examples: ['boxcar serve', 'boxcar serve --host 0.0.0.0 --port 80 --allow-host boxcar.example'],
      }),
    )
    .action((flags: ServeFlags) => run((context) => runServe(context, flags)));
}
