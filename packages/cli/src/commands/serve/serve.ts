/** `boxcar serve`. */
import { a2aRoutes } from '@boxcar/a2a';
import { settingSchemas } from '@boxcar/host/config';
import type { Stack } from '@boxcar/host/open';
import { approvalRoutes, handoffRoutes } from '@boxcar/http';
import { mcpRoutes, TOOL_GROUPS } from '@boxcar/mcp';
import { listPublicAgents } from '@boxcar/store';
import type { Command } from 'commander';
import { flag, helpOf, notBlank, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { oauthOf, type ToolGroups, toolsOf } from './mcp.js';
import { addHttpFlags, type HttpFlags, serveHttp } from './serve-http.js';

interface ServeFlags extends HttpFlags {
  readonly publicUrl?: string;
  readonly mcpTools?: ToolGroups;
}

/** `boxcar serve`: serves until it is told to stop. */
const runServe = (context: Context, flags: ServeFlags): Promise<number> =>
  serveHttp(context, flags, {
    event: 'serve',
    routes: ({ runtime }, log) => [
      ...approvalRoutes(runtime),
      ...handoffRoutes(runtime),
      ...a2aRoutes(runtime, { publicUrl: flags.publicUrl }),
      ...mcpRoutes({ runtime, groups: flags.mcpTools, log, oauth: oauthOf(context, flags) }),
    ],
    ready: async (stack) => {
      const agents = await publicAgentsOf(stack);
      return {
        facts: { public_agents: agents },
        notes: agents.map(({ project, name, path }) => `public agent ${name} of ${project}: ${path}`),
      };
    },
  });

/** The number of agents that are named. All agents are served, including those applied later. */
const MAX_NAMED = 50;

async function publicAgentsOf({ runtime }: Stack) {
  const agents = await listPublicAgents(runtime.pool, MAX_NAMED);
  return agents.map(({ project, name }) => ({ project, name, path: `/a2a/${encodeURIComponent(name)}` }));
}

export function addServe(program: Command, run: Run): void {
  addHttpFlags(program.command('serve'))
    .option(
      '--public-url <url>',
      'address by which others reach it, for the cards of public agents and for tokens',
      notBlank,
    )
    .option(
      '--mcp-tools <groups>',
      `groups of tools at /mcp, of ${TOOL_GROUPS.join(', ')} (default: sessions,tapes)`,
      toolsOf,
    )
    .option(
      '--grace-ms <ms>',
      'on shutdown, how long to wait for running requests',
      flag(settingSchemas.graceMs),
    )
    .option('--project <name>', 'project of the key of this machine, by id or name')
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'By default only this machine can reach the server. At its first start it makes a key, which commands of this account use. On any other address it needs a key (boxcar keys create) or an issuer of tokens (BOXCAR_OAUTH_ISSUER). It uses HTTP without TLS, so put a proxy in front of it.\n\nSIGTERM, SIGHUP and Ctrl-C end it after the requests in progress.',
        examples: ['boxcar serve', 'boxcar serve --host 0.0.0.0 --port 80 --allow-host boxcar.example'],
      }),
    )
    .action((flags: ServeFlags) => run((context) => runServe(context, flags)));
}
