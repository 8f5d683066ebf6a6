import type { TestDatabase } from '@boxcar/testkit';
import pg from 'pg';
import type { Runtime } from '../../runtime.js';
import type { Scenario } from './scenario.js';

/** The table in which the tools record their runs. The connection to it has no faults. */
const EFFECTS = 'create table public.effects (tool_call_id uuid, name text)';

/** Each counted loss of a turn. The count in the row of the turn is cleared by the next committed step. */
const LOSSES = `
  create table public.losses (turn_id uuid);
  create function public.note_loss() returns trigger language plpgsql as $$
    begin insert into public.losses values (new.id); return null; end $$;
  create trigger note_loss after update of losses on boxcar.turns
    for each row when (new.losses > old.losses) execute function public.note_loss()`;

/** Rows that cases have left would slow down every check. The vacuum does not run each time, because plans are made again after it. */
const VACUUM_EVERY = 15;

/**
 * Toolsets are written once per process and project, and the process remembers in memory that it has written them. Workers may stay alive.
 */
const KEPT = ['toolsets', 'schema_version', 'workers'];

/**
 * A database that is reset to the rows of one scenario after the other. Its connections and their plans stay: a new connection plans every
 * statement again, which costs several times as much as a run.
 */
export class Scenes implements AsyncDisposable {
  readonly database: TestDatabase;
  /** A connection whose plans do not matter: each change of the replication role discards all of them. */
  readonly #putter: pg.Client;
  readonly #names: readonly string[];
  /** Statements that restore the initial rows, and those of each scene. */
  readonly #base: string;
  readonly #scenes = new Map<Scenario, string>();
  #resets = 0;

  private constructor(
    database: TestDatabase,
    {
      putter,
      names,
      base,
    }: { readonly putter: pg.Client; readonly names: readonly string[]; readonly base: string },
  ) {
    this.database = database;
    this.#putter = putter;
    this.#names = names;
    this.#base = base;
  }

  static async open(database: TestDatabase): Promise<Scenes> {
    await database.pool.query(`${EFFECTS}; ${LOSSES}`);
    const names = await tableNames(database);
    const base = await keepRows(database, { names, scene: 'scene_0' });
    const putter = new pg.Client({ connectionString: database.url });
    await putter.connect();
    return new Scenes(database, { putter, names, base });
  }

  /**
   * Restores the rows of a scenario before any of its work.
   *
   * @param runtime - Applies its profiles the first time.
   * @param workerIds - The workers that are alive.
   */
  async set(
    scenario: Scenario,
    runtime: Pick<Runtime, 'applyProfile'>,
    workerIds: readonly string[] = [],
  ): Promise<void> {
    const { pool } = this.database;
    const put = (rows: string): Promise<unknown> =>
      this.#putter.query(
        // The replica role allows changes of immutable rows: all rows are replaced here.
        `
          begin;
          set local session_replication_role = 'replica';
          delete from boxcar.workers
          where not id::text = any ('{${workerIds.join()}}');
          ${rows};
          commit`,
      );
    const known = this.#scenes.get(scenario);
    if (known !== undefined) await put(known);
    else {
      await put(this.#base);
      await apply(scenario, runtime);
      if (scenario.prepare !== undefined) await pool.query(scenario.prepare);
      const scene = `scene_${this.#scenes.size + 1}`;
      this.#scenes.set(scenario, await keepRows(this.database, { names: this.#names, scene }));
    }
    this.#resets += 1;
    if (this.#resets % VACUUM_EVERY === 0)
      await this.#putter.query(
        `vacuum (truncate off) ${this.#names.map((name) => `boxcar.${name}`).join(', ')}`,
      );
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#putter.end();
    await this.database.close();
  }
}

async function apply({ profiles }: Scenario, runtime: Pick<Runtime, 'applyProfile'>): Promise<void> {
  for (const profile of profiles)
    await runtime.applyProfile({
      instructions: `You are ${String(profile.name)}.`,
      model: 'scripted',
      ...profile,
    });
}

async function tableNames({ pool }: TestDatabase): Promise<readonly string[]> {
  const { rows } = await pool.query<{ name: string }>(
    `
      select c.relname as name
      from pg_class c
      where c.relnamespace = 'boxcar'::regnamespace and c.relkind = 'r' and c.relname <> all ($1)`,
    [KEPT],
  );
  return rows.map(({ name }) => name);
}

/** Copies all rows, and returns the statements that restore them. Tables keep their files, and plans stay valid. */
async function keepRows(
  { pool }: TestDatabase,
  { names, scene }: { readonly names: readonly string[]; readonly scene: string },
): Promise<string> {
  const isFilled = names.map((name) => `select '${name}' as name where exists (select from boxcar.${name})`);
  const { rows: filled } = await pool.query<{ name: string }>(isFilled.join(' union all '));
  const copies = filled.map(({ name }) => `create table ${scene}.${name} as table boxcar.${name}`);
  await pool.query([`create schema ${scene}`, ...copies].join('; '));
  return [
    'delete from public.effects',
    'delete from public.losses',
    ...names.map((name) => `delete from boxcar.${name}`),
    ...filled.map(({ name }) => `insert into boxcar.${name} select * from ${scene}.${name}`),
  ].join('; ');
}
