/** Tools that other programs bring while turns run: the port of `@boxcar/mcp-client`. Rule: docs/reference/mcp.md, "Client side". */
import { KernelError, type Profile } from '@boxcar/kernel';
import type { Tool } from './tool.js';

/**
 * V1  A step offers the tools that were there when its prompt was built, and its calls are routed by that list. What the servers say
 *     later changes the next step.
 * V2  `toolsOf` is quick and never fails because of a server. In place of tools that cannot be had it gives a tool that says why.
 * V3  A name means the same tool always. A tool that has not changed is the same object.
 */
export interface ToolServers {
  /** The servers that this process knows. */
  readonly names: ReadonlySet<string>;
  /** The tools of some of them as they are now, each named `server.tool`. */
  toolsOf(names: readonly string[], signal: AbortSignal): Promise<readonly Tool[]>;
  /** Why this process has never seen the tools of a server; undefined when it has. */
  whyUnseen(name: string): KernelError | undefined;
}

/** Whether a name is, or could be, that of a tool of a server that the profile names. */
export const isServed = ({ mcp = [] }: Pick<Profile, 'mcp'>, name: string): boolean =>
  mcp.some((server) => name.startsWith(`${server}.`));

/** Why a call of a step that was committed cannot go on: its tool is not there. */
export function missingServed(
  servers: ToolServers | undefined,
  { mcp = [] }: Pick<Profile, 'mcp'>,
  name: string,
): KernelError | undefined {
  const server = mcp.find((each) => name.startsWith(`${each}.`));
  if (server === undefined) return undefined;
  const why = servers?.whyUnseen(server);
  if (why !== undefined) return why;
  return new KernelError('tool_unknown', {
    message: `'${name}' is not among the tools of its MCP server now.`,
    details: { tool: name, mcp_server: server },
  });
}

/** Servers that the profile names and this process does not know. */
export const unknownServers = (
  servers: ToolServers | undefined,
  { mcp = [] }: Pick<Profile, 'mcp'>,
): readonly string[] => mcp.filter((name) => servers?.names.has(name) !== true);

/** Why a turn cannot go on here: tools that its agent was given cannot be known. */
export function findUnknownServer(
  servers: ToolServers | undefined,
  profile: Pick<Profile, 'mcp'>,
): KernelError | undefined {
  const [name] = unknownServers(servers, profile);
  if (name === undefined) return undefined;
  return new KernelError('tool_unknown', {
    message: `The profile names the MCP server '${name}', which this worker does not know.`,
    next: 'Define it in the file BOXCAR_MCP_SERVERS of every worker that runs the profile, or give the profile a worker_target of its own.',
    details: { mcp_server: name },
  });
}
