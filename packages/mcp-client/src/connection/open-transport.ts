/** Opens the transport to a server: a child process, or HTTP. */
import { fileURLToPath } from 'node:url';
import { KernelError, maskSecrets } from '@boxcar/kernel';
import type { Transport } from '@modelcontextprotocol/client';
import {
  isStdio,
  rulesOf,
  type ServerDefinition,
  valuesOf,
  variablesIn,
  withVariables,
} from '../servers/server-definition.js';
import { limitedFetch } from './limited-fetch.js';

/** Variables by name, as `process.env` has them. */
export type Environment = Readonly<Record<string, string | undefined>>;

/** The limit of a server's message. A result is cut to a much smaller size. */
const MAX_MESSAGE_BYTES = 4 * 1024 * 1024;

/** Ends the server when this process ends, in whatever way it ends. */
const GUARD = fileURLToPath(new URL('../../server-guard.js', import.meta.url));
const MAX_STDERR = 2_000;

export interface OpenedTransport {
  readonly transport: Transport;
  /** The end of the child's stderr output, masked. */
  readonly lastWords: () => string;
}

export interface NamedValue {
  readonly name: string;
  readonly value: string;
}

/** The values of the variables that an entry names, which are secrets. @throws KernelError for a variable that is not set. */
export function findValues(server: string, definition: ServerDefinition, env: Environment): NamedValue[] {
  const names = new Set(Object.values(valuesOf(definition)).flatMap(variablesIn));
  return [...names].map((name) => {
    const value = env[name];
    if (value === undefined || value === '')
      throw new KernelError('tool_server_unavailable', {
        message: `The MCP server '${server}' needs the variable ${name}, which is not set where the worker runs.`,
        details: { mcp_server: server, variable: name },
      });
    return { name, value };
  });
}

export async function openTransport(
  definition: ServerDefinition,
  values: readonly NamedValue[],
): Promise<OpenedTransport> {
  const known = new Map(values.map(({ name, value }) => [name, value]));
  const given = Object.fromEntries(
    Object.entries(valuesOf(definition)).map(([name, text]) => [name, withVariables(text, known)]),
  );
  if (isStdio(definition)) return openChild(definition, given, values);
  const { StreamableHTTPClientTransport } = await import('@modelcontextprotocol/client');
  const transport = new StreamableHTTPClientTransport(new URL(definition.url), {
    fetch: limitedFetch(rulesOf(definition), MAX_MESSAGE_BYTES),
    requestInit: { headers: given },
  });
  return { transport, lastWords: () => '' };
}

/** A child gets the environment of its entry and variables such as PATH and HOME, and nothing else from the worker's environment. */
async function openChild(
  { command, args, cwd }: Extract<ServerDefinition, { command: string }>,
  env: Readonly<Record<string, string>>,
  values: readonly NamedValue[],
): Promise<OpenedTransport> {
  const { StdioClientTransport } = await import('@modelcontextprotocol/client/stdio');
  const transport = new StdioClientTransport({
    command: process.execPath,
    args: [GUARD, command, ...args],
    env: { ...env },
    stderr: 'pipe',
    maxBufferSize: MAX_MESSAGE_BYTES,
    ...(cwd === undefined ? {} : { cwd }),
  });
  let words = '';
  // The pipe must be read: a child whose pipe is full blocks.
  transport.stderr?.on('data', (chunk: Buffer) => {
    words = maskSecrets(words + chunk.toString('utf8'), values).slice(-MAX_STDERR);
  });
  return { transport, lastWords: () => words };
}
