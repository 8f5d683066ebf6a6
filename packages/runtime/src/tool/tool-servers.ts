/**
 * Tools that other programs provide while turns run: the port of `@boxcar/mcp-client`. Rule: docs/reference/mcp.md, "Client
 * side".
 */
import { KernelError, type Profile } from '@boxcar/kernel';
import type { Tool } from './tool.js';

/**
 * V1  A step offers the tools that existed when its prompt was built, and its calls are routed by that list. Later changes of the
 *     servers affect the next step.
 * V2  `toolsOf` is quick and never fails because of a server. In place of tools that are not available it returns a tool that
 *     says why.
 * V3  A name always means the same tool. A tool that has not changed is the same object.
 */
export interface ToolServers {
  /** The servers that are defined in this process. */
  readonly names: ReadonlySet<string>;
  /** The current tools of these servers, each named `server.tool`. */
  toolsOf(names: readonly string[], signal: AbortSignal): Promise<readonly Tool[]>;
  /** Why this process has never seen the tools of a server; undefined when it has seen them. */
  whyUnseen(name: string): KernelError | undefined;
}

/** Whether a name has the form of a tool of one of the profile's servers. The tool need not exist. */
export const isServed = ({ mcp = [] }: Pick<Profile, 'mcp'>, name: string): boolean =>
  mcp.some((server) => name.startsWith(`${server}.`));

/** Why a committed call cannot continue: the tool of a server is missing. */
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

/** Servers that the profile names and that are not defined in this process. */
export const unknownServers = (
  servers: ToolServers | undefined,
  { mcp = [] }: Pick<Profile, 'mcp'>,
): readonly string[] => mcp.filter((name) => servers?.names.has(name) !== true);

/** Why a turn cannot continue in this process: one of its profile's servers is not defined here, so its tools are unknown. */
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
