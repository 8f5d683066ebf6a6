/** `boxcar mcp servers`: the MCP servers whose tools agents may call. It needs no database. */
import { processEnvironment } from '@boxcar/host/base';
import { isStdio, McpServers, readServersFile, type ServerDefinitions } from '@boxcar/mcp-client';
import type { Command } from 'commander';
import { EXIT, helpOf, notBlank, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { wrongUsage } from '../../input/usage.js';
import { countOf, formatTable } from '../../text/text.js';

interface ServerFlags {
  readonly file?: string;
}

/** A server that was checked. */
interface CheckedServer {
  readonly name: string;
  readonly status: 'ok' | 'unavailable';
  /** Why it is not available, worded for the operator. */
  readonly error: string | null;
  /** The name and version that the server reports. */
  readonly server: { readonly name: string; readonly version: string } | null;
  /** The names under which agents call them. */
  readonly tools: readonly string[];
  readonly left_out: readonly { readonly tool: string; readonly why: string }[];
}

/** @throws KernelError `bad_config` for a file that cannot be read or is not valid. */
function readDefinitions(
  { config }: Context,
  { file = config.mcpServersFile }: ServerFlags,
): ServerDefinitions {
  if (file === undefined) throw wrongUsage('give --file, or set BOXCAR_MCP_SERVERS', 'file');
  return readServersFile(file);
}

/** `boxcar mcp servers ls`. */
async function runList(context: Context, flags: ServerFlags): Promise<number> {
  const servers = [...readDefinitions(context, flags)].map(([name, definition]) => ({
    name,
    kind: isStdio(definition) ? ('command' as const) : ('url' as const),
    at: isStdio(definition) ? definition.command : new URL(definition.url).origin,
    tools: definition.tools ?? null,
    timeout_ms: definition.timeout_ms ?? null,
  }));
  context.answer({ servers }, () =>
    servers.length === 0
      ? 'no servers are defined'
      : formatTable(
          [{ title: 'server' }, { title: 'kind' }, { title: 'tools' }, { title: 'at' }],
          servers.map(({ name, kind, tools, at }) => [
            name,
            kind,
            tools === null ? 'all' : String(tools.length),
            at,
          ]),
        ),
  );
  return EXIT.success;
}

async function check(servers: McpServers, name: string): Promise<CheckedServer> {
  const server = servers.get(name);
  const list = await server?.list().catch(() => undefined);
  return {
    name,
    status: list === undefined ? 'unavailable' : 'ok',
    error: list === undefined ? (server?.reason ?? null) : null,
    server: server?.serverInfo ?? null,
    tools: list?.tools.map((tool) => tool.name) ?? [],
    left_out: list?.leftOut ?? [],
  };
}

function describe({ name, status, error, server, tools, left_out }: CheckedServer): string {
  if (status === 'unavailable') return `${name}: not available: ${error}`;
  const known = server === null ? '' : ` (${server.name} ${server.version})`;
  return [
    `${name}: ${countOf(tools.length, 'tool')}${known}`,
    ...tools.map((tool) => `  ${tool}`),
    ...left_out.map(({ tool, why }) => `  left out: ${tool}: ${why}`),
  ].join('\n');
}

/** `boxcar mcp servers check`. */
async function runCheck(context: Context, names: readonly string[], flags: ServerFlags): Promise<number> {
  const definitions = readDefinitions(context, flags);
  const unknown = names.find((name) => !definitions.has(name));
  if (unknown !== undefined)
    throw wrongUsage(
      `'${unknown}' is not defined; defined are ${[...definitions.keys()].join(', ') || '(none)'}`,
      'server',
    );
  await using servers = new McpServers(definitions, { env: processEnvironment() });
  const chosen = names.length === 0 ? [...definitions.keys()] : names;
  const checked = await Promise.all(chosen.map((name) => check(servers, name)));
  context.answer({ servers: checked }, () => checked.map(describe).join('\n') || 'no servers are defined');
  return checked.every(({ status }) => status === 'ok') ? EXIT.success : EXIT.negative;
}

/** @param mcp - The command `mcp`. */
export function addMcpServers(mcp: Command, run: Run): void {
  const servers = mcp
    .command('servers')
    .description('MCP servers whose tools agents may call.')
    .addHelpText('after', helpOf({ examples: ['boxcar mcp servers ls', 'boxcar mcp servers check'] }));
  servers
    .command('ls')
    .description('Lists the defined servers, without starting them.')
    .option('--file <file>', 'default: BOXCAR_MCP_SERVERS', notBlank)
    .addHelpText(
      'after',
      helpOf({ examples: ['boxcar mcp servers ls', 'boxcar mcp servers ls --file servers.yaml --json'] }),
    )
    .action((flags: ServerFlags) => run((context) => runList(context, flags)));
  servers
    .command('check')
    .description('Connects to servers, and shows the tools that agents get.')
    .argument('[server...]', 'names of servers; default: all')
    .option('--file <file>', 'default: BOXCAR_MCP_SERVERS', notBlank)
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'Each server is started or connected to, as in a worker, and then closed. No tool is called.',
        examples: [
          'boxcar mcp servers check',
          "boxcar mcp servers check files --json | jq '.servers[].tools'",
        ],
        negative: 'a server is not available',
      }),
    )
    .action((names: string[], flags: ServerFlags) => run((context) => runCheck(context, names, flags)));
}
