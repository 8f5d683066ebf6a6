/** Starts a server of the HTTP frame, reports its address, and serves until it is told to stop. */
import { settingSchemas } from '@boxcar/host/config';
import { openStack, type Stack } from '@boxcar/host/open';
import {
  announceServer,
  createHttpFrame,
  DEFAULT_PORT,
  type HttpFrame,
  isLoopbackHost,
  type LocalKey,
  openLocalKey,
  type Route,
} from '@boxcar/http';
import { loadPlugins } from '@boxcar/runtime';
import type { Command } from 'commander';
import { collect, EXIT, flag, notBlank } from '../../command.js';
import { type Context, untilStopped } from '../../context.js';
import { localFolder } from './local-folder.js';

export interface HttpFlags {
  readonly host?: string;
  readonly port?: number;
  readonly allowHost?: readonly string[];
  readonly allowOrigin?: readonly string[];
  readonly graceMs?: number;
  readonly project?: string;
  readonly plugin?: readonly string[];
}

export interface HttpServing {
  /** The name of the event in the answer: `serve.ready`. */
  readonly event: string;
  routes(stack: Stack, log: ReturnType<Context['log']>): readonly Route[];
  /** Further facts and notes that the server reports when it is ready. */
  ready(stack: Stack): Promise<{ readonly facts: object; readonly notes: readonly string[] }>;
}

/** Adds the flags that all servers have: the address, and the plugins, whose primitives clients can then submit. */
export const addHttpFlags = (command: Command): Command =>
  command
    .option('--host <host>', 'address or name of this machine (default: 127.0.0.1)')
    .option('--port <n>', `port; 0 = any free one (default: ${DEFAULT_PORT})`, flag(settingSchemas.port))
    .option(
      '--allow-host <name>',
      'another name by which clients reach the server, repeatable',
      collect(notBlank),
    )
    .option(
      '--allow-origin <origin>',
      'an origin whose pages may use it, such as https://desk.example, repeatable',
      collect(notBlank),
    )
    .option('--plugin <file>', 'a module that registers primitives, repeatable', collect(notBlank));

/** Closes everything in the remaining time, even when a server is unavailable. */
async function closeAll(frame: HttpFrame, stack: Stack, graceMs: number): Promise<void> {
  try {
    await frame.close({ graceMs });
  } finally {
    await stack.close();
  }
}

/** Creates the key for local commands, when only this machine can reach the address. */
async function localKeyOf(
  { config }: Context,
  stack: Stack,
  { host, project }: HttpFlags,
): Promise<LocalKey | undefined> {
  if (!(await isLoopbackHost(host))) return undefined;
  return openLocalKey(stack.runtime.pool, { project: project ?? config.project, folder: localFolder() });
}

/** @throws KernelError `bad_config` for addresses and names that are not valid. */
const createFrame = async (
  stack: Stack,
  flags: HttpFlags,
  { log, routes }: { readonly log: ReturnType<Context['log']>; readonly routes: HttpServing['routes'] },
): Promise<HttpFrame> =>
  createHttpFrame({
    runtime: stack.runtime,
    host: flags.host,
    port: flags.port ?? DEFAULT_PORT,
    allowedHosts: flags.allowHost,
    allowedOrigins: flags.allowOrigin,
    log,
  }).mount(routes(stack, log));

export async function serveHttp(context: Context, flags: HttpFlags, serving: HttpServing): Promise<number> {
  const { config, isJson, stop } = context;
  const log = context.log('info');
  const graceMs = flags.graceMs ?? config.graceMs;
  const stack = await openStack({ ...config, embeddedKeepMs: undefined }, { log, policy: 'decides' });
  const { routes } = serving;
  const open = async (): Promise<HttpFrame> => {
    await loadPlugins(stack.runtime, flags.plugin ?? config.plugins);
    return createFrame(stack, flags, { log, routes });
  };
  const frame = await open().catch(async (error: unknown) => {
    await stack.close();
    throw error;
  });
  try {
    const key = await localKeyOf(context, stack, flags);
    const { url } = await frame.listen();
    using _announced =
      key === undefined ? undefined : announceServer(localFolder(), { url, keyPath: key.path });
    const { facts, notes } = await serving.ready(stack);
    const ready = { url, pid: process.pid, key_file: key?.path ?? null, ...facts };
    if (isJson) context.answer({ event: `${serving.event}.ready`, ...ready }, () => '');
    context.note(`${url} answers${key === undefined ? '' : `; the key of this machine is in ${key.path}`}`);
    for (const note of notes) context.note(note);
    await untilStopped(stop);
    context.note('stopping (a second signal stops it at once)');
  } finally {
    await closeAll(frame, stack, graceMs);
  }
  if (isJson) context.answer({ event: `${serving.event}.stopped` }, () => '');
  context.note('stopped');
  return EXIT.success;
}
