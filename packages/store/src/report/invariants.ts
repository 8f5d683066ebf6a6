/**
 * Conditions on the rows that hold at every moment, also after crashes, races and repeated deliveries. Each is one statement that selects
 * its violations; `boxcar doctor` and the tests use them. To add an invariant, add it to the list, and to the test that breaks it. Source:
 * docs/reference/operations.md, "Invariants".
 *
 * Statements read the turns in `scope`: all turns that have not ended and the newest turns, up to the requested number of each.
 *
 * No statement takes locks, and none disturbs the work. They read one snapshot, so each sees a transaction as a whole or not at all, and
 * a rule with `always` must hold at every commit. With a time limit each statement has a snapshot of its own.
 */

import { checkDuration } from '@boxcar/kernel';
import type pg from 'pg';
import {
  type Queryable,
  readSnapshot,
  retryTransient,
  type Statement,
  sqlStateOf,
  statement,
  statementTimeoutOf,
  unlimited,
} from '../db/index.js';
import type { Invariant } from './invariant.js';
import { BOX_INVARIANTS } from './invariants-boxes.js';
import { HANDOFF_INVARIANTS } from './invariants-handoffs.js';
import { SESSION_INVARIANTS } from './invariants-sessions.js';
import { TAPE_INVARIANTS } from './invariants-tapes.js';
import { TURN_INVARIANTS } from './invariants-turns.js';

/** Replaced by `limit` and the requested number of turns, or by nothing. */
const LIMIT = 'limit :turns';

/** All turns: not materialized, so that the planner knows their number and their indexes. */
const ALL_TURNS = 'scope as not materialized (select * from boxcar.turns)';

/** Some turns, each found by an index: the newest, and the oldest of those that have not ended. */
const NEWEST_TURNS = `
  scope as materialized (
    select *
    from boxcar.turns
    where id in (
      (
        select id
        from boxcar.turns
        order by id desc
        ${LIMIT}
      )
      union
      (
        select id
        from boxcar.turns
        where status in ('dispatched', 'running', 'suspended')
        order by id
        ${LIMIT}
      )
      union
      (
        select id
        from boxcar.turns
        where status = 'queued'
        order by id
        ${LIMIT}
      )
    )
  )`;

export const INVARIANTS: readonly Invariant[] = [
  ...TURN_INVARIANTS,
  ...BOX_INVARIANTS,
  ...TAPE_INVARIANTS,
  ...HANDOFF_INVARIANTS,
  ...SESSION_INVARIANTS,
];

export interface InvariantOptions {
  /** True when all accepted work should have ended. */
  readonly isSettled?: boolean;
  /** How many of the newest turns, and of the turns that have not ended, are checked. Default: all turns, and the `wide` invariants too. */
  readonly turns?: number;
  /** How many violations of one invariant are listed. Default 20. */
  readonly limit?: number;
  /** How long one statement may take, at most 30 days. Default: no limit. */
  readonly timeoutMs?: number;
  /** Called before each invariant is checked. */
  readonly onProgress?: (progress: InvariantProgress) => void;
}

export interface InvariantProgress {
  /** The invariant that is checked next. */
  readonly name: string;
  readonly checked: number;
  readonly total: number;
}

export interface InvariantReport {
  readonly name: string;
  readonly rule: string;
  /** `unchecked`: the check exceeded its time limit. */
  readonly state: 'holds' | 'broken' | 'unchecked';
  readonly broken: readonly { readonly id: string; readonly what: string }[];
  /** True when more violations exist than are listed. */
  readonly hasMore: boolean;
}

/** The default number of listed violations of one invariant. */
const LISTED = 20;

/** The planner settings of the pool are made for reads by key; these statements read tables. */
const SETTINGS = [
  'set local enable_seqscan = on; set local enable_hashjoin = on; set local enable_mergejoin = on; set local jit = off',
  "set local work_mem = '64MB'",
];

const isCutOff = (error: unknown): boolean => sqlStateOf(error) === '57014';

/**
 * Checks the invariants, each by one statement: all on one snapshot, or each on a separate snapshot when a time limit is given.
 *
 * @throws KernelError `database_unavailable`, `bad_request` for a `timeoutMs` that is not a duration.
 */
export async function inspectInvariants(
  pool: pg.Pool,
  options: InvariantOptions = {},
): Promise<readonly InvariantReport[]> {
  const wanted = INVARIANTS.filter(
    ({ when }) =>
      (when !== 'settled' || options.isSettled === true) && (when !== 'wide' || options.turns === undefined),
  );
  const tell = (one: Invariant): void =>
    options.onProgress?.({ name: one.name, checked: wanted.indexOf(one), total: wanted.length });
  if (options.timeoutMs !== undefined) checkDuration(options.timeoutMs, 'timeoutMs');
  if (options.timeoutMs === undefined) return (await ask(pool, wanted, { ...options, tell })) ?? [];
  const reports: InvariantReport[] = [];
  for (const one of wanted) {
    const { name, rule } = one;
    const unchecked: InvariantReport = { name, rule, state: 'unchecked', broken: [], hasMore: false };
    reports.push(...((await ask(pool, [one], { ...options, tell })) ?? [unchecked]));
  }
  return reports;
}

/**
 * Checks some invariants on one snapshot, one after the other: the pool may be the caller's, and only connections of `createPool` accept
 * several statements at once.
 *
 * @returns Undefined when a statement exceeded its time limit.
 */
function ask(
  pool: pg.Pool,
  some: readonly Invariant[],
  options: InvariantOptions & { readonly tell: (one: Invariant) => void },
): Promise<InvariantReport[] | undefined> {
  const statementMs = options.timeoutMs === undefined ? 0 : statementTimeoutOf(options.timeoutMs);
  const lookAt = async (db: Queryable): Promise<InvariantReport[]> => {
    const reports: InvariantReport[] = [];
    for (const one of some) {
      options.tell(one);
      reports.push(await checkOne(db, one, options));
    }
    return reports;
  };
  const settings = [...SETTINGS, `set local statement_timeout = ${statementMs}`];
  return retryTransient(async () => {
    try {
      return await readSnapshot(pool, lookAt, { settings });
    } catch (error) {
      if (isCutOff(error)) return undefined;
      throw error;
    }
  });
}

/**
 * The statement that lists at most `$1` violations of an invariant.
 *
 * - The number of turns is part of the text, since a plan for a parameter expects a tenth of the table.
 * - `found` is materialized. Because of a limit the planner expects the first rows soon and chooses nested loops over whole tables, but an
 *   invariant that holds has no first row.
 */
export function invariantStatement({ broken }: Invariant, turns: number | undefined): Statement {
  const scope = turns === undefined ? ALL_TURNS : NEWEST_TURNS;
  const text = `
    with /* invariants.broken */
    ${scope},
    found as materialized (${broken})
    select found.id::text as id, found.what
    from found
    limit $1`;
  // Named, so that it is planned once: the tests run it many times on one connection.
  return statement(text.replaceAll(LIMIT, turns === undefined ? '' : `limit ${turns}`));
}

async function checkOne(
  db: Queryable,
  invariant: Invariant,
  { turns, limit = LISTED }: InvariantOptions,
): Promise<InvariantReport> {
  const { name, rule } = invariant;
  const { rows } = await db.query<{ id: string; what: string }>(
    unlimited({ ...invariantStatement(invariant, turns), values: [limit + 1] }),
  );
  const state = rows.length === 0 ? 'holds' : 'broken';
  return { name, rule, state, broken: rows.slice(0, limit), hasMore: rows.length > limit };
}
