import type { Context } from '../context.js';
import { migrateServer, openServer } from '../stack.js';

/** `boxcar migrate`: our schema and that of the queues. */
export async function runMigrate(context: Context): Promise<number> {
  const log = context.log('warn');
  await using server = await openServer(context.config, log);
  const { from, to, applied } = await migrateServer(server, log);
  context.answer({ from, to, applied }, () =>
    [
      from === to ? `The schema is at version ${to}; nothing to do.` : `Schema: version ${from} → ${to}.`,
      ...applied.map((name) => `  applied ${name}`),
      'The queue tables are up to date.',
    ].join('\n'),
  );
  return 0;
}
