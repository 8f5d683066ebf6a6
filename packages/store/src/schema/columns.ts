/** Column types that drizzle does not have, or handles differently. */
import { sql } from 'drizzle-orm';
import { customType, pgSchema } from 'drizzle-orm/pg-core';

// The driver parses JSON values. drizzle's own types would parse a value that is a string a second time.
export const json = customType<{ data: unknown; driverData: string }>({
  dataType: () => 'json',
  toDriver: (value) => JSON.stringify(value),
});
export const jsonb = customType<{ data: unknown; driverData: string }>({
  dataType: () => 'jsonb',
  toDriver: (value) => JSON.stringify(value),
});
export const bytea = customType<{ data: Buffer }>({ dataType: () => 'bytea' });
export const xid8 = customType<{ data: string }>({ dataType: () => 'xid8' });
// The driver writes and reads times. drizzle's own type would write years before 1 and after 9999 in a form that Postgres does not
// accept.
export const time = customType<{ data: Date }>({ dataType: () => 'timestamp with time zone' });
export const createdAt = () => time('created_at').notNull().default(sql`now()`);

export const boxcar = pgSchema('boxcar');
