/**
 * The stdio server as a separate program: `node dist/server.js [--agent NAME] [--tools …] [--project NAME] [--plugin FILE]…`. It reads the environment as
 * `boxcar` does. `boxcar mcp` does the same.
 */
import { parseArgs } from 'node:util';
import { declareEnvironmentSecrets } from '@boxcar/host/base';
import { parseConfig } from '@boxcar/host/config';
import { reportError } from '@boxcar/host/errors';
import { createProcessLog } from '@boxcar/host/log';
import { errorText, KernelError } from '@boxcar/kernel';
import { readGroups, runStdio, type StdioFlags } from './stdio/run-stdio.js';

const stop = new AbortController();
for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const)
  process.on(name, () => {
    if (stop.signal.aborted) process.exit(1);
    stop.abort();
  });

const options = {
  agent: { type: 'string' },
  tools: { type: 'string' },
  project: { type: 'string' },
  plugin: { type: 'string', multiple: true },
} as const;

/** @throws KernelError `bad_request`. */
function readFlags(args: readonly string[]): StdioFlags {
  const { agent, tools, project, plugin: plugins } = parseFlags(args);
  return { agent, project, plugins, groups: tools === undefined ? undefined : readGroups(tools) };
}

function parseFlags(args: readonly string[]) {
  try {
    return parseArgs({ args: [...args], options }).values;
  } catch (error) {
    throw new KernelError('bad_request', {
      message: `${errorText(error)}.`,
      next: 'It takes --agent NAME, --tools GROUPS, --project NAME and --plugin FILE; docs/reference/mcp.md explains them.',
    });
  }
}

async function run(): Promise<number> {
  using _secrets = declareEnvironmentSecrets();
  try {
    const flags = readFlags(process.argv.slice(2));
    const config = parseConfig();
    const log = createProcessLog(config.logLevel ?? 'info', { isJson: true });
    const { stdin, stdout } = process;
    await runStdio(config, flags, { stdin, stdout, stop: stop.signal, graceMs: config.graceMs, log });
    return 0;
  } catch (error) {
    reportError(error, { isJson: true, withStack: false });
    return 1;
  }
}

// Work that the client started last may still hold a socket or a timer.
process.exit(await run());
