import { migrateServer, openServer } from '@boxcar/host/open';
import { grantWorkerRights } from '@boxcar/store';
import type { Command } from 'commander';
import { helpOf, type Run } from '../../command.js';
import type { Context } from '../../context.js';

interface MigrateFlags {
  readonly grantWorker?: string;
}

/** `boxcar migrate`: migrates our schema and that of the queues, and then grants the workers' role the missing rights on them. */
async function runMigrate(context: Context, { grantWorker: role }: MigrateFlags): Promise<number> {
  const log = context.log('warn');
  await using server = await openServer(context.config, log);
  const { from, to, applied } = await migrateServer(server, { waitMs: context.config.databaseWaitMs, log });
  const granted = role === undefined ? undefined : await grantWorkerRights(server.directUrl, role);
  context.answer({ from, to, applied, ...(granted === undefined ? {} : { role, granted }) }, () =>
    [
      from === to ? `The schema is at version ${to}; nothing to do.` : `Schema: version ${from} → ${to}.`,
      ...applied.map((name) => `  applied ${name}`),
      'The queue tables are up to date.',
      ...(granted === undefined
        ? []
        : granted.length === 0
          ? [`Role ${role} may do all that a worker needs; nothing to grant.`]
          : [`Granted to role ${role}:`, ...granted.map((right) => `  ${right}`)]),
    ].join('\n'),
  );
  return 0;
}

export function addMigrate(program: Command, run: Run): void {
  program
    .command('migrate')
    .option('--grant-worker <role>', 'then grant this role only the rights that workers and doors need')
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'Run it on every deploy, before the workers start. A second run changes nothing. With --grant-worker, workers can run as a role that owns nothing. Pass the option on every deploy, because new tables need new rights.',
        examples: [
          'boxcar migrate',
          'DATABASE_URL=postgres://… boxcar migrate --json',
          'boxcar migrate --grant-worker boxcar_worker',
        ],
      }),
    )
    .action((flags: MigrateFlags) => run((context) => runMigrate(context, flags)));
}
