/** `boxcar mcp`. */
import { settingSchemas } from '@boxcar/host/config';
import { readPublicUrl } from '@boxcar/http';
import {
  mcpRoutes,
  type OAuthOptions,
  readGroups,
  runStdio,
  type StdioFlags,
  TOOL_GROUPS,
} from '@boxcar/mcp';
import { type Command, InvalidArgumentError } from 'commander';
import { EXIT, flag, helpOf, notBlank, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { wrongUsage } from '../../input/usage.js';
import { addHttpFlags, type HttpFlags, serveHttp } from './serve-http.js';

export type ToolGroups = StdioFlags['groups'];

import { addMcpServers } from './mcp-servers.js';

interface McpFlags extends HttpFlags {
  readonly agent?: string;
  readonly tools?: ToolGroups;
  readonly http?: boolean;
  readonly publicUrl?: string;
}

/** The settings of the token issuer; undefined without `BOXCAR_OAUTH_ISSUER`. */
export const oauthOf = (
  { config: { oauth, project } }: Context,
  flags: { readonly publicUrl?: string; readonly project?: string },
): OAuthOptions | undefined =>
  oauth && { ...oauth, publicUrl: flags.publicUrl, project: flags.project ?? project };

export function toolsOf(text: string): ToolGroups {
  try {
    return readGroups(text);
  } catch {
    throw new InvalidArgumentError(
      `It must be a list of ${TOOL_GROUPS.join(', ')}, with a comma between them.`,
    );
  }
}

/** Serves the client that has started the process, until the client or a signal ends it. */
async function runOverStdio({ config, log, stop }: Context, flags: McpFlags): Promise<number> {
  const { agent, tools, project, plugin: plugins, graceMs = config.graceMs } = flags;
  const { stdin, stdout } = process;
  const options = { stdin, stdout, stop, graceMs, log: log('info') };
  await runStdio(config, { agent, groups: tools, project, plugins }, options);
  return EXIT.success;
}

const ONLY_HTTP = ['host', 'port', 'allowHost', 'allowOrigin', 'publicUrl'] as const;

/** With `--http`, the key decides for whom a client acts. */
function runMcp(context: Context, flags: McpFlags): Promise<number> {
  if (flags.http !== true) {
    const given = ONLY_HTTP.find((name) => flags[name] !== undefined);
    if (given === undefined) return runOverStdio(context, flags);
    throw wrongUsage('--host, --port, --allow-host, --allow-origin and --public-url need --http', given);
  }
  if (flags.agent !== undefined)
    throw wrongUsage(
      'with --http the key of a client says for which agent it speaks: boxcar keys create --agent',
      'agent',
    );
  if (flags.publicUrl !== undefined) readPublicUrl(flags.publicUrl);
  return serveHttp(context, flags, {
    event: 'mcp',
    routes: ({ runtime }, log) =>
      mcpRoutes({ runtime, groups: flags.tools, log, oauth: oauthOf(context, flags) }),
    ready: async () => ({ facts: { path: '/mcp' }, notes: ['MCP clients connect to /mcp'] }),
  });
}

export function addMcp(program: Command, run: Run): void {
  const mcp = program
    .command('mcp')
    .option('--http', 'serve clients over HTTP at /mcp, instead of the starting client over stdio');
  addHttpFlags(mcp)
    .option('--public-url <url>', 'address by which clients reach it, for tokens', notBlank)
    .option(
      '--agent <name>',
      'agent that the client speaks for, by id or name (default: the operator)',
      notBlank,
    )
    .option(
      '--tools <groups>',
      `groups of tools, of ${TOOL_GROUPS.join(', ')} (default: sessions,tapes)`,
      toolsOf,
    )
    .option(
      '--grace-ms <ms>',
      'on shutdown, how long to wait for calls in progress',
      flag(settingSchemas.graceMs),
    )
    .option('--project <name>', 'project, by id or name')
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'Protocol messages use stdin and stdout; logs go to stderr. docs/reference/mcp.md tells how to add the server to well-known clients.\n\nThe server ends when the client closes stdin, or at SIGTERM, after the calls in progress. It runs no turns, so start a worker as well.\n\nWith --http it is a server with keys, like boxcar serve, which has the same at /mcp.',
        examples: [
          'boxcar mcp',
          'boxcar mcp --agent reviewer --tools sessions,tapes,primitives',
          'boxcar mcp --http --port 7421',
          'boxcar mcp servers check',
        ],
      }),
    )
    .action((flags: McpFlags) => run((context) => runMcp(context, flags)));
  addMcpServers(mcp, run);
}
