import type { RunId } from '@boxcar/kernel';
import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import { getTableConfig, integer, type PgTable, pgSchema, text } from 'drizzle-orm/pg-core';
import { afterAll, beforeAll, expect, expectTypeOf, it } from 'vitest';
import type { PausedAccount } from '../budget/budgets.js';
import type {
  BatchRow,
  DeadLetter,
  LiveWorker,
  ProfileLine,
  ProjectLine,
  ProviderLine,
  StoredProfile,
} from '../index.js';
import type {
  BoxGrantLine,
  CallLine,
  EvidenceLine,
  ListedAgent,
  ListedBox,
  ListedRun,
  ListedTurn,
  StepLine,
  TurnLine,
} from '../report.js';
import type { ProfileDbRow } from '../submit/profile-versions.js';
import type { ListedTape } from '../tape/list.js';
import type { TapePlace } from '../tape/refs.js';
import type { JoinableTurn, MemberRow } from '../turn/batches.js';
import type { CommitRow } from '../turn/commit-sql.js';
import type { LostCall } from '../turn/failed-turns.js';
import type { CommittedRow } from '../turn/first-tries.js';
import type { PendingCall } from '../turn/pending-calls.js';
import type { QueueCall } from '../turn/queue-calls.js';
import type { EarlierCall } from '../turn/repeats.js';
import type { OpenCallRow } from '../turn/subtrees.js';
import type { EndableTurn } from '../turn/sweep-turns.js';
import type { RingRow, TurnState } from '../turn/turns.js';
import type { LockedProvider } from '../work/provider-books.js';
import type { Waiter } from '../work/providers.js';
import type { OverdueCall } from '../work/sweep.js';
import type { FailedAttempt } from '../work/waits.js';
import type { Columns, TableName } from './row.js';
import * as tables from './schema.js';

let database: TestDatabase;

beforeAll(async () => {
  database = await testDatabase();
});

afterAll(() => database.close());

const NOT_NULL = ' not null';
const DEFAULT = ' default';

/** One line per table, column and key, as drizzle declares them. */
function declared(all: readonly PgTable[]): string[] {
  return all.flatMap((table) => {
    const { name, schema, columns, primaryKeys, uniqueConstraints } = getTableConfig(table);
    const keys = [
      ...columns.filter((column) => column.primary).map((column) => ['primary key', [column.name]] as const),
      ...columns.filter((column) => column.isUnique).map((column) => ['unique', [column.name]] as const),
      ...primaryKeys.map((key) => ['primary key', key.columns.map((column) => column.name)] as const),
      ...uniqueConstraints.map((key) => ['unique', key.columns.map((column) => column.name)] as const),
    ];
    return [
      `${schema}.${name}`,
      ...columns.map(
        (column) =>
          `${name}.${column.name} ${column.getSQLType()}${column.notNull ? NOT_NULL : ''}${column.hasDefault ? DEFAULT : ''}`,
      ),
      ...keys.map(([kind, names]) => `${name} ${kind} (${names.join(', ')})`),
    ];
  });
}

/** The same lines from the catalog of a migrated database. */
async function existing(): Promise<string[]> {
  const { rows } = await database.pool.query<{ line: string }>(`
    with t as (
      select c.oid, c.relname from pg_class c
      where c.relnamespace = 'boxcar'::regnamespace and c.relkind in ('r', 'p', 'v', 'm')
    )
    select 'boxcar.' || relname as line from t
    union all
    select format('%s.%s %s%s%s', t.relname, a.attname, format_type(a.atttypid, a.atttypmod),
      case when a.attnotnull then '${NOT_NULL}' else '' end, case when a.atthasdef then '${DEFAULT}' else '' end)
    from t join pg_attribute a on a.attrelid = t.oid and a.attnum > 0 and not a.attisdropped
    union all
    select format('%s %s (%s)', t.relname, case k.contype when 'p' then 'primary key' else 'unique' end,
      (select string_agg(a.attname, ', ' order by u.n)
       from unnest(k.conkey) with ordinality as u(attnum, n) join pg_attribute a on a.attrelid = t.oid and a.attnum = u.attnum))
    from t join pg_constraint k on k.conrelid = t.oid and k.contype in ('p', 'u')`);
  return rows.map((row) => row.line);
}

it('the schema declares exactly the tables, columns, types, nullability, defaults and keys that the migrations create', async () => {
  expect(declared(Object.values(tables)).sort()).toEqual((await existing()).sort());
});

it('the comparison reports a difference on either side', async () => {
  const boxcar = pgSchema('boxcar');
  const lines = new Set(await existing());
  const drifted = boxcar.table('projects', { id: text('id').primaryKey(), extra: integer('extra') });
  expect(declared([drifted]).filter((line) => !lines.has(line))).toEqual([
    'projects.id text not null',
    'projects.extra integer',
  ]);
  const ours = new Set(declared(Object.values(tables).filter((table) => table !== tables.runs)));
  expect([...lines].filter((line) => !ours.has(line))).toContain('runs.root_turn_id uuid not null');
});

/** The members of an exported row that are columns of the table. */
type Shown<Row, Name extends TableName> = {
  readonly [Column in keyof Row as string extends Column
    ? never
    : Column extends keyof Columns<Name>
      ? Column
      : never]: Row[Column];
};

it('the exported row types have the types of their columns', () => {
  expectTypeOf<Columns<'batches'>>().toExtend<Shown<BatchRow, 'batches'>>();
  expectTypeOf<Columns<'agents'>>().toExtend<Shown<ListedAgent, 'agents'>>();
  expectTypeOf<Columns<'boxes'>>().toExtend<Shown<ListedBox, 'boxes'>>();
  expectTypeOf<Columns<'evidence'>>().toExtend<Shown<EvidenceLine, 'evidence'>>();
  expectTypeOf<Columns<'grants'>>().toExtend<Shown<BoxGrantLine, 'grants'>>();
  expectTypeOf<Columns<'profiles'>>().toExtend<Shown<ProfileLine, 'profiles'>>();
  expectTypeOf<Columns<'runs'>>().toExtend<Shown<ListedRun, 'runs'>>();
  expectTypeOf<Columns<'sweepFailures'>>().toExtend<Shown<DeadLetter, 'sweepFailures'>>();
  expectTypeOf<Columns<'turns'>>().toExtend<Shown<ListedTurn, 'turns'>>();
  expectTypeOf<Columns<'profiles'>>().toExtend<Shown<StoredProfile, 'profiles'>>();
  expectTypeOf<Columns<'projects'>>().toExtend<Shown<ProjectLine, 'projects'>>();
  expectTypeOf<Columns<'toolCalls'>>().toExtend<Shown<CallLine, 'toolCalls'>>();
  expectTypeOf<Columns<'turns'>>().toExtend<Shown<TurnLine, 'turns'>>();
  expectTypeOf<Columns<'workers'>>().toExtend<Shown<LiveWorker, 'workers'>>();
  expectTypeOf<Columns<'budgets'>>().toExtend<Shown<PausedAccount, 'budgets'>>();
  expectTypeOf<Columns<'profiles'>>().toExtend<Shown<ProfileDbRow, 'profiles'>>();
  expectTypeOf<Columns<'toolCalls'>>().toExtend<Shown<OpenCallRow, 'toolCalls'>>();
  expectTypeOf<Columns<'toolCalls'>>().toExtend<Shown<QueueCall, 'toolCalls'>>();
  expectTypeOf<Columns<'toolCalls'>>().toExtend<Shown<LostCall, 'toolCalls'>>();
  expectTypeOf<Columns<'turns'>>().toExtend<Shown<EndableTurn, 'turns'>>();
  expectTypeOf<Columns<'turns'>>().toExtend<Shown<MemberRow, 'turns'>>();
  expectTypeOf<Columns<'turns'>>().toExtend<Shown<JoinableTurn, 'turns'>>();
  expectTypeOf<Columns<'turns'>>().toExtend<Shown<RingRow, 'turns'>>();
  expectTypeOf<Columns<'turns'>>().toExtend<Shown<TurnState, 'turns'>>();
  expectTypeOf<Columns<'turns'>>().toExtend<Shown<CommitRow, 'turns'>>();
  expectTypeOf<Columns<'turns'>>().toExtend<Shown<CommittedRow, 'turns'>>();
  expectTypeOf<Columns<'waits'>>().toExtend<Shown<Waiter, 'waits'>>();
  // Null in the table stands for the default, which the line shows.
  type Provider = Omit<Shown<ProviderLine, 'providers'>, 'breaker_after'>;
  expectTypeOf<Columns<'providers'>>().toExtend<Provider>();
  // Times are in milliseconds, and the default replaces null.
  type Locked = Pick<LockedProvider, 'max_concurrent' | 'requests_per_minute' | 'failures' | 'openings'>;
  expectTypeOf<Columns<'providers'>>().toExtend<Locked>();
  // As texts: hashes in hex, and a time with microseconds.
  type Step = Omit<Shown<StepLine, 'steps'>, 'prompt_hash'>;
  expectTypeOf<Columns<'steps'>>().toExtend<Step>();
  expectTypeOf<Columns<'toolCalls'>>().toExtend<Shown<Omit<PendingCall, 'guard_hash'>, 'toolCalls'>>();
  expectTypeOf<Columns<'toolCalls'>>().toExtend<Shown<Omit<EarlierCall, 'guard_hash'>, 'toolCalls'>>();
  expectTypeOf<Columns<'toolCalls'>>().toExtend<Shown<Omit<OverdueCall, 'deadline_at'>, 'toolCalls'>>();
  // Never null in the rows that these types describe: tapes, and attempts that failed.
  expectTypeOf<Columns<'boxes'>>().toExtend<Shown<Omit<ListedTape, 'incarnation'>, 'boxes'>>();
  expectTypeOf<Columns<'boxes'>>().toExtend<Shown<Omit<TapePlace, 'head_position'>, 'boxes'>>();
  expectTypeOf<Columns<'steps'>>().toExtend<Shown<Omit<FailedAttempt, 'error'>, 'steps'>>();

  // The comparison detects a column of another type, and a column that may be null.
  expectTypeOf<Columns<'batches'>>().not.toExtend<Shown<{ id: number }, 'batches'>>();
  expectTypeOf<Columns<'batches'>>().not.toExtend<Shown<{ run_id: RunId }, 'batches'>>();
});

it('columns that refer to a card have an index, since a purge of cards searches each of them', async () => {
  const { rows } = await database.pool.query(`
    select k.conrelid::regclass::text as table, k.conname as name from pg_constraint k
    where k.contype = 'f' and k.confrelid = 'boxcar.cards'::regclass
      and not exists (select from pg_index i where i.indrelid = k.conrelid and i.indpred is null and i.indkey[0] = k.conkey[1])`);
  expect(rows).toEqual([]);
});
