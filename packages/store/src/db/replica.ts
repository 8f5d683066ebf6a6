/**
 * Reads on a standby (streaming replication) in place of the primary server.
 *
 * S1  A read on the standby sees everything that was committed before the read began. The primary tells the position up to which its
 *     log is flushed, and the standby is read after it has replayed the log up to this position. If this takes too long, the primary is
 *     read. All connections must lead to one standby: behind an address of several standbys, the read could reach another one.
 * S2  A read that fails on the standby is repeated on the primary. The answer or failure of the primary counts.
 * S3  A server that does not answer, or is not a standby of this primary, is not used for a while.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { errorText } from '@boxcar/kernel/base';
import type pg from 'pg';
import { isServerTrouble } from './errors.js';
import { createPool, dropConnections, endPool } from './pool.js';
import { run, statement } from './statement.js';

/**
 * The current state of a read replica.
 *
 * - `ready`: it has everything that the primary has.
 * - `behind`: it is a standby of the primary and lacks some of the log.
 * - `not_a_standby`: it accepts writes itself.
 * - `other_server`: it was not copied from this primary, or follows another timeline since a failover. For up to `checkpoint_timeout`
 *   after a failover, a standby still reports the old timeline.
 * - `busy`: all connections of this process to it are in use.
 * - `unavailable`: it does not answer, or the primary does not tell its own position.
 */
export type ReplicaState = 'ready' | 'behind' | 'busy' | 'not_a_standby' | 'other_server' | 'unavailable';

export interface ReplicaFacts {
  readonly state: ReplicaState;
  /** The age of the newest transaction that the replica has; 0 when it has all, null when the age is not known. */
  readonly lagMs: number | null;
  /** The bytes of the log that the replica has not replayed; null when the number is not known. */
  readonly behindBytes: number | null;
  /** The reason why the replica is unavailable. */
  readonly problem?: string;
}

export interface ReplicaRead<T> {
  readonly value: T;
  /** `primary`: the replica lacked some of the log, could not be asked, or failed. */
  readonly from: 'replica' | 'primary';
  /** The state of the replica before the read. */
  readonly replica: ReplicaFacts;
}

export interface ReadReplicaOptions {
  /** The pool of the primary. The caller ends it. */
  readonly primary: pg.Pool;
  /** The address of the standby. */
  readonly url: string;
  readonly applicationName?: string;
  /** The largest number of connections to the standby. Default 5. */
  readonly maxConnections?: number;
  /** Called for each read that the standby could not serve, but not for reads while the standby is not used (S3). */
  readonly onPrimary?: (facts: ReplicaFacts) => void;
}

/** How long a read waits for the standby to replay the missing log. */
const CATCH_UP_MS = 500;
const LOOK_AGAIN_MS = 20;
/** How long the standby may take to report its position. */
const LOOK_MS = 2_000;
/** The limit for one statement of a read. The primary has its own limit, which is longer. */
const STATEMENT_MS = 10_000;
/** How long a failed standby is not used. */
const AWAY_MS = 10_000;

interface Mark {
  readonly lsn: string;
  readonly system: string;
  readonly timeline: number;
}

// The name of a log file begins with the timeline that is being written.
const MARK = statement(`
  select /* replica.mark */
    w.lsn::text, c.system_identifier::text as system,
    ('x' || left(pg_walfile_name(w.lsn), 8))::bit(32)::int as timeline
  from (
    select case
      when current_setting('synchronous_commit') = 'off' then pg_current_wal_insert_lsn()
      else pg_current_wal_flush_lsn()
    end as lsn
  ) w,
    pg_control_system() c`);

const LOOK = statement(`
  select /* replica.look */
    pg_is_in_recovery() as is_standby,
    c.system_identifier::text = $2 and p.timeline_id = $3::int as is_same,
    greatest(pg_wal_lsn_diff($1::pg_lsn, pg_last_wal_replay_lsn()), 0)::float8 as behind,
    greatest(extract(epoch from clock_timestamp() - pg_last_xact_replay_timestamp()) * 1000, 0)::float8 as age
  from pg_control_system() c, pg_control_checkpoint() p`);

interface Look {
  readonly is_standby: boolean;
  readonly is_same: boolean;
  readonly behind: number | null;
  readonly age: number | null;
}

function toFacts({ is_standby, is_same, behind, age }: Look): ReplicaFacts {
  if (!is_standby) return { state: 'not_a_standby', lagMs: null, behindBytes: null };
  if (!is_same) return { state: 'other_server', lagMs: null, behindBytes: null };
  if (behind === 0) return { state: 'ready', lagMs: 0, behindBytes: 0 };
  return { state: 'behind', lagMs: age, behindBytes: behind };
}

const unavailable = (error: unknown): ReplicaFacts => ({
  state: 'unavailable',
  lagMs: null,
  behindBytes: null,
  problem: errorText(error),
});

/** A standby in one of these states can serve the next read. */
const STAYS: ReadonlySet<ReplicaState> = new Set(['ready', 'behind', 'busy']);

/** A standby of the primary. It connects with the first read. */
export class ReadReplica implements AsyncDisposable {
  readonly #pool: pg.Pool;
  readonly #primary: pg.Pool;
  readonly #onPrimary: (facts: ReplicaFacts) => void;
  /** Until this time, by the monotonic clock, the standby is not used; `facts` has the reason. */
  #away: { readonly until: number; readonly facts: ReplicaFacts } | undefined;

  constructor({ primary, url, applicationName, maxConnections, onPrimary }: ReadReplicaOptions) {
    this.#primary = primary;
    this.#onPrimary = onPrimary ?? (() => undefined);
    this.#pool = createPool({
      connectionString: url,
      max: maxConnections ?? 5,
      statementMs: STATEMENT_MS,
      ...(applicationName === undefined ? {} : { applicationName }),
    });
  }

  /**
   * Runs a read. `ask` may be called twice, with either pool, and must not write.
   *
   * @throws the error of `ask` on the primary.
   */
  async read<T>(ask: (pool: pg.Pool) => Promise<T>): Promise<ReplicaRead<T>> {
    if (this.#away !== undefined && performance.now() < this.#away.until)
      return { value: await ask(this.#primary), from: 'primary', replica: this.#away.facts };
    this.#away = undefined;
    let replica = await this.inspect({ waitMs: CATCH_UP_MS });
    if (replica.state === 'ready') {
      try {
        return { value: await ask(this.#pool), from: 'replica', replica };
      } catch (error) {
        // Any other error is due to the query itself, and the primary fails in the same way.
        if (isServerTrouble(error)) replica = unavailable(error);
      }
    }
    if (replica.state !== 'ready') this.#onPrimary(replica);
    if (!STAYS.has(replica.state)) this.#away = { until: performance.now() + AWAY_MS, facts: replica };
    return { value: await ask(this.#primary), from: 'primary', replica };
  }

  /**
   * Reports the state of the replica. Errors are part of the report and are never thrown.
   *
   * @param options.waitMs - The time for which the replica may catch up. Default 0.
   */
  async inspect({ waitMs = 0 }: { readonly waitMs?: number } = {}): Promise<ReplicaFacts> {
    try {
      const [mark] = await run<Mark & pg.QueryResultRow>(this.#primary, MARK, []);
      if (mark === undefined) throw new Error('the server gave no answer');
      const deadline = performance.now() + waitMs;
      for (;;) {
        const facts = await this.#look(mark);
        if (facts.state !== 'behind' || performance.now() >= deadline) return facts;
        await delay(LOOK_AGAIN_MS);
      }
    } catch (error) {
      return unavailable(error);
    }
  }

  async #look({ lsn, system, timeline }: Mark): Promise<ReplicaFacts> {
    const { idleCount, totalCount, options } = this.#pool;
    // The wait for a connection would look like silence of the standby.
    if (idleCount === 0 && totalCount >= options.max)
      return { state: 'busy', lagMs: null, behindBytes: null };
    const asked = run<Look & pg.QueryResultRow>(this.#pool, LOOK, [lsn, system, timeline]);
    const end = new AbortController();
    const silent = delay(LOOK_MS, undefined, { signal: end.signal }).then(() => {
      dropConnections(this.#pool);
      throw new Error(`no answer within ${LOOK_MS} ms`);
    });
    try {
      const [row] = await Promise.race([asked, silent]);
      if (row === undefined) throw new Error('the server gave no answer');
      return toFacts(row);
    } finally {
      asked.catch(() => undefined);
      silent.catch(() => undefined);
      end.abort();
    }
  }

  /** Ends the connections to the standby. */
  async close(): Promise<void> {
    await endPool(this.#pool);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/** Reads on the replica if there is one. */
export async function readOn<T>(
  replica: ReadReplica | undefined,
  primary: pg.Pool,
  ask: (pool: pg.Pool) => Promise<T>,
): Promise<T> {
  return replica === undefined ? ask(primary) : (await replica.read(ask)).value;
}
