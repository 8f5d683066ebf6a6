import type { JsonValue } from '@boxcar/kernel';
import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import { concludeScene } from './conclude.js';
import type { Outcome } from './outcome.js';
import type { Scenario } from './scenario.js';
import { openStage, type Stage, type StageOptions } from './stage.js';

/** Later than the lease of any worker under fault; no deadline of a call has passed yet. */
export const RECOVERY_AHEAD_MS = 60_000;
const LONG_LEASE_MS = 3_600_000;

/** What cases have left would be read by every check. Not each time: plans are made anew after it. */
const VACUUM_EVERY = 15;

/** Written once per process and project; that it was is remembered in memory. */
const KEPT = ['toolsets', 'schema_version'];

/**
 * A database in which one case runs after the other, each on the rows of the scene alone, and beside it a process that no
 * fault touches: it finishes what the one under fault has left. Both are used again, because a new connection plans every
 * statement anew, which costs several times what the case itself does.
 */
export class Lane implements AsyncDisposable {
  readonly database: TestDatabase;
  readonly rescuer: Stage;
  readonly #scenario: Scenario;
  readonly #reset: string;
  readonly #vacuum: string;
  #resets = 0;

  private constructor(
    database: TestDatabase,
    scene: {
      readonly scenario: Scenario;
      readonly rescuer: Stage;
      readonly reset: string;
      readonly vacuum: string;
    },
  ) {
    this.database = database;
    this.rescuer = scene.rescuer;
    this.#scenario = scene.scenario;
    this.#reset = scene.reset;
    this.#vacuum = scene.vacuum;
  }

  /** @param scene - A database prepared for the scenario, to which nobody is connected. */
  static async open(
    scene: TestDatabase,
    options: Pick<StageOptions, 'scenario' | 'toolQueue'>,
  ): Promise<Lane> {
    const database = await testDatabase({ from: scene.name, max: 2 });
    const names = await tableNames(database);
    const reset = await keepRows(database, names);
    const rescuer = openStage({
      ...options,
      databaseUrl: database.url,
      effects: database.pool,
      leaseMs: LONG_LEASE_MS,
    });
    const { id } = await rescuer.work();
    return new Lane(database, {
      scenario: options.scenario,
      rescuer,
      reset: reset.replace('delete from boxcar.workers;', `delete from boxcar.workers where id <> '${id}';`),
      vacuum: `vacuum (truncate off) ${names.map((name) => `boxcar.${name}`).join(', ')}`,
    });
  }

  /** Back to the rows of the scene. */
  async reset(): Promise<void> {
    await this.database.pool.query(this.#reset);
    this.#resets += 1;
    if (this.#resets % VACUUM_EVERY === 0) await this.database.pool.query(this.#vacuum);
  }

  /** Checks what must hold now, and returns what came of it all. @throws Error naming what is broken. */
  conclude(driven: JsonValue): Promise<Outcome> {
    return concludeScene(this.database.pool, this.#scenario, driven);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.rescuer.close();
    await this.database.close();
  }
}

async function tableNames({ pool }: TestDatabase): Promise<readonly string[]> {
  const { rows } = await pool.query<{ name: string }>(
    `select c.relname as name from pg_class c where c.relnamespace = 'boxcar'::regnamespace and c.relkind = 'r' and c.relname <> all ($1)`,
    [KEPT],
  );
  return rows.map(({ name }) => name);
}

/** Copies all rows, and returns the statements that bring them back. Tables keep their files, and plans stay valid. */
async function keepRows({ pool }: TestDatabase, names: readonly string[]): Promise<string> {
  await pool.query(
    `create schema scene; ${names.map((name) => `create table scene.${name} as table boxcar.${name};`).join(' ')}`,
  );
  return [
    // What must never change is changed here: rows of another life.
    "begin; set local session_replication_role = 'replica'; delete from public.effects;",
    ...names.map((name) => `delete from boxcar.${name};`),
    ...names.map((name) => `insert into boxcar.${name} select * from scene.${name};`),
    'commit',
  ].join(' ');
}
