import type { ProjectId, ToldProfiles, TurnId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, runRetrying, statement } from '../db/index.js';
import type { OfferedTool } from '../kinds/row-kinds.js';

const WRITE_TOOLSET = statement(`
  insert /* toolsets.write_toolset */ into boxcar.toolsets (project_id, hash, schemas)
  values ($1, decode($2, 'hex'), $3::json)
  on conflict do nothing`);

/** Stores a list of tool schemas under its hash. A list that is already stored does not change. */
export async function writeToolset(
  pool: pg.Pool,
  toolset: {
    readonly projectId: ProjectId;
    readonly hash: string;
    readonly schemas: readonly OfferedTool[];
  },
): Promise<void> {
  const schemas = toolset.schemas.map(({ name, description, parameters, source, profiles }) => ({
    name,
    description,
    parameters,
    source,
    ...(profiles === undefined ? {} : { profiles }),
  }));
  await runRetrying(pool, WRITE_TOOLSET, [toolset.projectId, toolset.hash, JSON.stringify(schemas)]);
}

const LOAD_TOOLSETS = statement(`
  select /* toolsets.load_toolsets */ encode(hash, 'hex') as hash, schemas
  from boxcar.toolsets
  where project_id = $1 and hash = any ($2::bytea[])`);

/** The lists with these hashes that the project has. */
export async function loadToolsets(
  db: Queryable,
  projectId: ProjectId,
  hashes: readonly string[],
): Promise<ReadonlyMap<string, readonly OfferedTool[]>> {
  const rows = await run<{ hash: string; schemas: readonly OfferedTool[] }>(db, LOAD_TOOLSETS, [
    projectId,
    hashes.map((hash) => Buffer.from(hash, 'hex')),
  ]);
  return new Map(rows.map((row) => [row.hash, row.schemas]));
}

const FIND_TOLD = statement(`
  select /* toolsets.find_told */ e.value->'profiles' as told
  from (
    select t.schemas
    from boxcar.steps s
    join boxcar.toolsets t on t.project_id = $1 and t.hash = s.toolset_hash
    where s.turn_id = $2
    order by s.step, s.attempt
    limit 1
  ) first
  cross join lateral json_array_elements(first.schemas) e
  where e.value->'profiles' is not null
  limit 1`);

/** The profiles that the first prompt of a turn offered to it; undefined while no prompt of the turn is stored. */
export async function findToldProfiles(
  db: Queryable,
  projectId: ProjectId,
  turnId: TurnId,
): Promise<ToldProfiles | undefined> {
  const [row] = await run<{ told: ToldProfiles }>(db, FIND_TOLD, [projectId, turnId]);
  return row?.told;
}
