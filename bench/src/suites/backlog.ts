/**
 * A window with far more waiting turns than it holds: the cost of filling it and of taking a turn from it, and the shares of the
 * projects.
 */
import { newId } from '@boxcar/runtime';
import { claim, createPool, promote, registerWorker } from '@boxcar/store';
import type pg from 'pg';
import { Cleanup } from '../cleanup.js';
import { timed } from '../measure.js';
import { quantile } from '../report.js';
import { openDatabase } from '../servers.js';
import type { Bench, Figures } from '../suite.js';
import { measureNewcomer } from './newcomer.js';
import { settle } from './pair.js';

const PROJECTS = 10;
const TURNS = 100_000;
const SERVED = 2_000;
const CONCURRENCY = 50;

// The rows as submissions leave them: run, agent, tape, context box and turn, each with a separate id. Projects were filled one after the
// other, the first long ago.
const FILL = `
  with project as (
    insert into boxcar.projects (id, name, operator_agent_id, bootstrap_card_id) values ($1, 'p' || $2::int, gen_random_uuid(), gen_random_uuid())
  ),
  rows as materialized (
    select gen_random_uuid() as run, gen_random_uuid() as agent, gen_random_uuid() as tape, gen_random_uuid() as context,
      ('00000000-0000-7000-a000-' || lpad(to_hex($2::int + n), 12, '0'))::uuid as turn from generate_series(1, $3::int) n
  ),
  runs as (insert into boxcar.runs (id, project_id, root_turn_id) select run, $1, turn from rows),
  tapes as (insert into boxcar.boxes (id, project_id, kind, owner_agent_id, incarnation, head_position, last_anchor_position, view_position)
    select tape, $1, 'tape', agent, 1, 2, 1, 1 from rows),
  contexts as (insert into boxcar.boxes (id, project_id, kind, owner_agent_id, card_ids, card_tokens, segments, card_count, token_estimate)
    select context, $1, 'context', agent, '{}', '{}', '[]', 0, 0 from rows),
  agents as (insert into boxcar.agents (id, project_id, name, profile_id, tape_box_id) select agent, $1, agent::text, $1, tape from rows)
  insert into boxcar.turns (id, project_id, run_id, agent_id, profile_id, depth, primitive, status, epoch, max_steps, context_box_id, output_box_id)
  select turn, $1, run, agent, $1, 0, 'launch_principal', 'queued', 0, 50, context, tape from rows`;

const FLOOR = `
  insert into floor.turns (id, prompt_card_id, status, epoch)
  select ('00000000-0000-7000-a000-' || lpad(to_hex(n), 12, '0'))::uuid, gen_random_uuid(), 'queued', 0 from generate_series(1, $1::int) n`;

/** The minimum for a queue in Postgres: takes the oldest row, independent of other readers. */
const TAKE = {
  name: 'floor_take',
  text: `update floor.turns set status = 'running' where id = (
    select id from floor.turns where status = 'queued' order by id limit 1 for update skip locked)`,
};

const END = {
  name: 'backlog_end',
  text: "update boxcar.turns set status = 'success', holder_id = null, ended_at = now(), deliverable_card_id = id where id = $1 returning project_id",
};

interface Served {
  readonly promotes: readonly number[];
  readonly claims: readonly number[];
  readonly byProject: ReadonlyMap<string, number>;
}

/** Fills the window, takes and ends its turns one by one, until `count` turns are served. */
async function serve(
  pool: pg.Pool,
  of: { readonly count: number; readonly concurrency: number },
): Promise<Served> {
  const workerId = newId<'worker'>();
  await registerWorker(pool, {
    id: workerId,
    lockKey: '1',
    targets: [''],
    concurrency: of.concurrency,
    leaseMs: 3_600_000,
    info: {},
  });
  const promotes: number[] = [];
  const claims: number[] = [];
  const byProject = new Map<string, number>();
  const ready: { readonly turnId: Parameters<typeof claim>[1][number]['turnId']; readonly epoch: number }[] =
    [];
  while (claims.length < of.count) {
    promotes.push(await timed(async () => void ready.push(...(await promote(pool, '')))));
    const ring = ready.shift();
    if (ring === undefined) throw new Error('nothing was promoted');
    claims.push(
      await timed(async () => {
        const [outcome] = await claim(pool, [ring], workerId);
        if (outcome?.outcome !== 'claimed') throw new Error(`turn ${ring.turnId} was not to be had`);
      }),
    );
    const { rows } = await pool.query<{ project_id: string }>({ ...END, values: [ring.turnId] });
    const projectId = rows[0]?.project_id ?? '';
    byProject.set(projectId, (byProject.get(projectId) ?? 0) + 1);
  }
  return { promotes, claims, byProject };
}

export async function benchBacklog(bench: Bench): Promise<Figures> {
  return { ...(await measureQueued(bench)), newcomer: await measureNewcomer(bench) };
}

async function measureQueued({ servers, options, say }: Bench): Promise<Figures> {
  const concurrency = options.concurrency ?? CONCURRENCY;
  // Each project must be served several windows long; otherwise its share has no meaning.
  const count = Math.max(options.samples ?? SERVED, 20 * PROJECTS);
  const each = Math.ceil(Math.max(options.turns ?? TURNS, 2 * count) / PROJECTS);
  await using cleanup = new Cleanup();
  const database = await openDatabase(servers, 'backlog');
  cleanup.defer(() => database[Symbol.asyncDispose]());
  const pool = createPool({ connectionString: database.url, max: 2 });
  cleanup.defer(() => pool.end());
  for (let n = 0; n < PROJECTS; n += 1) await pool.query(FILL, [newId<'project'>(), n * each, each]);
  await pool.query(FLOOR, [each * PROJECTS]);
  await pool.query("create index on floor.turns (id) where status = 'queued'");
  await settle(database.url);
  const floor: number[] = [];
  for (let n = 0; n < count; n += 1) floor.push(await timed(() => pool.query(TAKE)));
  const { promotes, claims, byProject } = await serve(pool, { count, concurrency });
  const shares = [...byProject.values()];
  say(
    `backlog: ${claims.length} of ${each * PROJECTS} turns served, ${byProject.size} projects; p50 of claim ${quantile(claims, 0.5).toFixed(2)}, promotion ${quantile(promotes, 0.5).toFixed(2)}, floor ${quantile(floor, 0.5).toFixed(2)} ms`,
  );
  const bare = quantile(floor, 0.99);
  return {
    'claim p99': { value: quantile(claims, 0.99), floor: bare },
    'promote p99': { value: quantile(promotes, 0.99), floor: bare },
    fairness: {
      value: byProject.size < PROJECTS ? Number.MAX_SAFE_INTEGER : Math.max(...shares) / Math.min(...shares),
      floor: 1,
    },
  };
}
