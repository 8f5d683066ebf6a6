/** The types of columns that drizzle does not have, or has otherwise. */
import { sql } from 'drizzle-orm';
import { customType, pgSchema } from 'drizzle-orm/pg-core';

// Values of JSON come from the driver parsed; drizzle's own types would parse a string that is one of them again.
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
// The driver writes and reads times; drizzle's own type would write the years before 1 and after 9999 as Postgres does not read them.
export const time = customType<{ data: Date }>({ dataType: () => 'timestamp with time zone' });
export const createdAt = () => time('created_at').notNull().default(sql`now()`);

export const boxcar = pgSchema('boxcar');
