import type pg from 'pg';
import { run, statement } from '../db/index.js';

const FIND_QUEUE_TABLES = statement(
  "select /* queue-tables.find_queue_tables */ to_regclass('bullmq.migration') is not null as found",
);

/** Whether this database has the tables of BullMQ: `boxcar migrate` creates them. */
export async function hasQueueTables(pool: pg.Pool): Promise<boolean> {
  const [row] = await run<{ found: boolean }>(pool, FIND_QUEUE_TABLES, []);
  return row?.found === true;
}
