/** The common part of `boxcar mcp` and `dist/server.js`: a server for the client that has started the process. */
import { Console } from 'node:console';
import type { Config } from '@boxcar/host/config';
import { openStack } from '@boxcar/host/open';
import { KernelError, SCOPES } from '@boxcar/kernel';
import { type Log, loadPlugins, openHandoffSessions } from '@boxcar/runtime';
import {
  DEFAULT_GROUPS,
  type McpClientScope,
  OPERATOR,
  TOOL_GROUPS,
  type ToolGroup,
} from '../client-scope.js';
import { type StdioOptions, serveClient } from './serve-client.js';

export interface StdioFlags {
  /** The agent that the client acts for, by id or name. Default: the operator. */
  readonly agent?: string | undefined;
  readonly groups?: ReadonlySet<ToolGroup> | undefined;
  /** Id or name. Default: the project of the configuration. */
  readonly project?: string | undefined;
  /** Files that register primitives. Default: the plugins of the configuration. */
  readonly plugins?: readonly string[] | undefined;
}

const isGroup = (name: string): name is ToolGroup => (TOOL_GROUPS as readonly string[]).includes(name);

/** Parses `sessions,tapes`. @throws KernelError `bad_request`. */
export function readGroups(text: string): ReadonlySet<ToolGroup> {
  const names = text.split(',').map((name) => name.trim());
  const groups = names.filter(isGroup);
  if (groups.length === names.length) return new Set(groups);
  throw new KernelError('bad_request', {
    message: `tools: must be a list of ${TOOL_GROUPS.join(', ')}, with a comma between them.`,
    details: { field: 'tools' },
  });
}

/** The operator has all scopes; an agent does not decide approvals. */
const scopesOf = (agent: string | undefined): McpClientScope['scopes'] =>
  agent === undefined ? SCOPES : SCOPES.filter((scope) => scope !== 'approvals:write');

/** Keeps stdout for the protocol: `console.log` of a plugin writes to stderr. */
function divertConsole(): Disposable {
  const before = globalThis.console;
  globalThis.console = new Console(process.stderr);
  return {
    [Symbol.dispose]: () => {
      globalThis.console = before;
    },
  };
}

/**
 * Opens the configured stack and serves until the connection has ended.
 *
 * @throws KernelError `not_found` for an unknown agent or project, `plugin_failed`; the errors of `openStack`.
 */
export async function runStdio(
  config: Config,
  flags: StdioFlags,
  options: StdioOptions & { readonly log: Log },
): Promise<void> {
  const { agent, groups = DEFAULT_GROUPS, project: projectId = config.project } = flags;
  const { log } = options;
  using _console = divertConsole();
  const stack = await openStack(config, { log });
  try {
    const { runtime } = stack;
    await loadPlugins(runtime, flags.plugins ?? config.plugins);
    const as = agent ?? OPERATOR;
    // Clients show little about a server whose calls all fail, so the server does not start without its agent.
    await openHandoffSessions(runtime, { projectId, as });
    await serveClient({ runtime, projectId, as, scopes: scopesOf(agent), groups, log }, options);
  } finally {
    await stack.close();
  }
}
