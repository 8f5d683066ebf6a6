import type { Command } from 'commander';
import { helpOf, type Run } from '../command.js';
import type { Context } from '../context.js';
import { migrateServer, openServer } from '../stack.js';

/** `boxcar migrate`: our schema and that of the queues. */
async function runMigrate(context: Context): Promise<number> {
  const log = context.log('warn');
  await using server = await openServer(context.config, log);
  const { from, to, applied } = await migrateServer(server, { waitMs: context.config.databaseWaitMs, log });
  context.answer({ from, to, applied }, () =>
    [
      from === to ? `The schema is at version ${to}; nothing to do.` : `Schema: version ${from} → ${to}.`,
      ...applied.map((name) => `  applied ${name}`),
      'The queue tables are up to date.',
    ].join('\n'),
  );
  return 0;
}

export function addMigrate(program: Command, run: Run): void {
  program
    .command('migrate')
    .description("Bring the database to this program's schema, the queue tables included.")
    .addHelpText(
      'after',
      helpOf({
        remarks: 'Run it on every deploy, before the workers start; running it again changes nothing.',
        examples: ['boxcar migrate', 'DATABASE_URL=postgres://… boxcar migrate --json'],
      }),
    )
    .action(() => run((context) => runMigrate(context)));
}
