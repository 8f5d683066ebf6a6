import { testDatabase } from '@boxcar/testkit';
import pg from 'pg';
import { expect, it } from 'vitest';
import { dumpSchema } from './schema-dump.ts';

async function dump(url: string, before?: string): Promise<string> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    if (before !== undefined) await client.query(before);
    return await dumpSchema(client);
  } finally {
    await client.end();
  }
}

it('the dump loads into an empty database and gives the same dump again', async () => {
  await using migrated = await testDatabase();
  await using empty = await testDatabase({ empty: true });
  const first = await dump(migrated.url);
  expect(first).toContain('create table boxcar.schema_version');
  expect(await dump(empty.url, first)).toBe(first);
});

it('the dump contains every kind of object that a schema can have', async () => {
  await using database = await testDatabase({ empty: true });
  await using copy = await testDatabase({ empty: true });
  const text = await dump(
    database.url,
    `create schema boxcar;
     create type boxcar.mood as enum ('good', 'bad');
     create sequence boxcar.numbers start 7;
     create table boxcar.parents (id bigint generated always as identity primary key, mood boxcar.mood not null default 'good');
     create unlogged table boxcar.children (
       parent_id bigint not null references boxcar.parents on delete cascade, position int check (position > 0),
       name text collate "C" not null, lower_name text generated always as (lower(name)) stored,
       primary key (parent_id, position)) with (fillfactor = 80);
     create index on boxcar.children (lower_name) where position > 1;
     create view boxcar.names as select name from boxcar.children;
     create function boxcar.refuse() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$;
     create trigger refuse before update on boxcar.children for each statement execute function boxcar.refuse();
     comment on column boxcar.children.name is 'it''s theirs';`,
  );
  for (const part of [
    `create type boxcar.mood as enum ('good', 'bad')`,
    'create sequence boxcar.numbers',
    'generated always as identity',
    'create unlogged table boxcar.children',
    'collate "C"',
    'generated always as (lower(name)) stored',
    'with (fillfactor=80)',
    'ON DELETE CASCADE',
    'CHECK ((position > 0))',
    'WHERE (position > 1)',
    'create view boxcar.names',
    'FUNCTION boxcar.refuse()',
    'CREATE TRIGGER refuse BEFORE UPDATE',
    `comment on column boxcar.children.name is 'it''s theirs'`,
  ]) {
    expect(text.replaceAll('"position"', 'position')).toContain(part);
  }
  expect(await dump(copy.url, text)).toBe(text);
});
