import { hostname } from 'node:os';
import { settingSchemas } from '@boxcar/host/config';
import { findLiveWorkers } from '@boxcar/store/health';
import type { Command } from 'commander';
import { EXIT, flag, helpOf, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { openReader } from '../../reader.js';
import { countOf } from '../../text/text.js';

/**
 * `boxcar health`: whether a worker of this host has a lease that has not expired, read from the rows. The worker's own event loop renews
 * the lease, so a worker that hangs, or has lost the database, is detected within the lease time.
 */
async function checkHealth(context: Context, flags: { readonly pid?: number }): Promise<number> {
  // A probe has its own time limit, and an unreachable database is a result.
  const config = { ...context.config, databaseWaitMs: 0 };
  await using reader = await openReader(config, context.log('warn'));
  const host = hostname();
  const workers = await findLiveWorkers(reader.pool, {
    hostname: host,
    pid: flags.pid,
  });
  const isHealthy = workers.length > 0;
  const where = flags.pid === undefined ? host : `${host}, process ${flags.pid}`;
  context.answer({ status: isHealthy ? 'healthy' : 'unhealthy', hostname: host, workers }, () =>
    isHealthy
      ? `healthy: ${countOf(workers.length, 'live worker')} on ${where}`
      : `unhealthy: no live worker on ${where}`,
  );
  // Not `negative`: container health checks only know 0 and 1.
  return isHealthy ? EXIT.success : EXIT.error;
}

export function addHealth(program: Command, run: Run): void {
  program
    .command('health')
    .option('--pid <pid>', 'the process with this id', flag(settingSchemas.pid))
    .addHelpText(
      'after',
      helpOf({ examples: ['boxcar health', 'boxcar health --pid 1'], error: 'no live worker' }),
    )
    .action((flags: { pid?: number }) => run((context) => checkHealth(context, flags)));
}
