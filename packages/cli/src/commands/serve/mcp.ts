/** `boxcar mcp`. */
import { settingSchemas } from '@boxcar/host/config';
import { readGroups, runStdio, type StdioFlags, TOOL_GROUPS } from '@boxcar/mcp';
import { type Command, InvalidArgumentError } from 'commander';
import { EXIT, flag, helpOf, notBlank, type Run } from '../../command.js';
import type { Context } from '../../context.js';

interface McpFlags {
  readonly agent?: string;
  readonly tools?: StdioFlags['groups'];
  readonly project?: string;
  readonly graceMs?: number;
}

function toolsOf(text: string): StdioFlags['groups'] {
  try {
    return readGroups(text);
  } catch {
    throw new InvalidArgumentError(
      `It must be a list of ${TOOL_GROUPS.join(', ')}, with a comma between them.`,
    );
  }
}

/** Serves the client that has started the process, until one of them ends it. */
async function runMcp({ config, log, stop }: Context, flags: McpFlags): Promise<number> {
  const { agent, tools, project, graceMs = config.graceMs } = flags;
  const { stdin, stdout } = process;
  const options = { stdin, stdout, stop, graceMs, log: log('info') };
  await runStdio(config, { agent, groups: tools, project }, options);
  return EXIT.success;
}

export function addMcp(program: Command, run: Run): void {
  program
    .command('mcp')
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
    .option('--grace-ms <ms>', 'how long a stop waits for calls in progress', flag(settingSchemas.graceMs))
    .option('--project <name>', 'project, by id or name')
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'Messages of the protocol are on stdin and stdout, logs on stderr. docs/mcp.md says how to add it to the well-known clients.\n\nIt ends when the client closes stdin, or at SIGTERM, after the calls in progress. It runs no turns: start a worker beside it.',
        examples: ['boxcar mcp', 'boxcar mcp --agent reviewer --tools sessions,tapes,primitives'],
      }),
    )
    .action((flags: McpFlags) => run((context) => runMcp(context, flags)));
}
