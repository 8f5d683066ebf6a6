/** Projects and their limits. */
import {
  KernelError,
  type ModelPrice,
  type ProjectId,
  type ProjectLimits,
  parseJsonValue,
  tryParseId,
} from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, runRetrying, statement } from './db.js';

const FIND_PROJECT = statement(`
  select id, name from boxcar.projects where id = $1 or name = $2 order by (id = $1) desc nulls last limit 1`);

/**
 * A project by id or name.
 *
 * @throws KernelError `not_found`.
 */
export async function findProjectByRef(
  db: Queryable,
  ref: string,
): Promise<{ readonly id: ProjectId; readonly name: string }> {
  parseJsonValue(ref, 'project_id');
  const [row] = await run<{ id: ProjectId; name: string }>(db, FIND_PROJECT, [
    tryParseId<'project'>(ref) ?? null,
    ref,
  ]);
  if (row === undefined)
    throw new KernelError('not_found', { message: `No project '${ref}'.`, details: { project_id: ref } });
  return row;
}

export interface ProjectLine extends pg.QueryResultRow {
  readonly id: ProjectId;
  readonly name: string;
  readonly limits: ProjectLimits;
  readonly created_at: Date;
  /** Turns in the window or in a worker's hands: what `max_concurrent` counts. */
  readonly active: number;
  readonly suspended: number;
}

// Counted once for all projects, from the indexes of what has not ended.
const LIST_PROJECTS = statement(`
  with open as (
    select t.project_id, count(*) filter (where t.status <> 'suspended')::int as active, count(*) filter (where t.status = 'suspended')::int as suspended
    from boxcar.turns t where t.status in ('dispatched', 'running', 'suspended') group by t.project_id
  )
  select p.id, p.name, p.limits, p.created_at, coalesce(o.active, 0) as active, coalesce(o.suspended, 0) as suspended
  from boxcar.projects p left join open o on o.project_id = p.id order by p.name`);

export const listProjects = (db: Queryable): Promise<ProjectLine[]> =>
  run<ProjectLine>(db, LIST_PROJECTS, []);

const SET_LIMITS = statement(`
  update boxcar.projects set limits = jsonb_strip_nulls(limits || $2::jsonb) where id = $1 returning limits`);

/** Changes the named limits of a project; null removes one, what is not named stays. */
export async function setProjectLimits(
  pool: pg.Pool,
  projectId: ProjectId,
  limits: { readonly [K in keyof ProjectLimits]?: ProjectLimits[K] | null },
): Promise<ProjectLimits> {
  const [row] = await runRetrying<{ limits: ProjectLimits }>(pool, SET_LIMITS, [
    projectId,
    JSON.stringify(limits),
  ]);
  if (row === undefined)
    throw new KernelError('not_found', {
      message: `No project ${projectId}.`,
      details: { project_id: projectId },
    });
  return row.limits;
}

const SET_PRICES = statement(`
  update boxcar.projects set limits = jsonb_strip_nulls(limits || jsonb_build_object('prices', coalesce(limits->'prices', '{}') || $2::jsonb)) where id = $1
  returning limits`);

/** Sets a project's own price of a model; null removes it. */
export async function setPrice(
  pool: pg.Pool,
  projectId: ProjectId,
  { model, price }: { readonly model: string; readonly price: ModelPrice | null },
): Promise<void> {
  const values = [projectId, JSON.stringify({ [model]: price })];
  const rows = await runRetrying<{ limits: ProjectLimits }>(pool, SET_PRICES, values);
  if (rows.length === 0)
    throw new KernelError('not_found', {
      message: `No project ${projectId}.`,
      details: { project_id: projectId },
    });
}

const MODELS = statement(`
  select p.name as project, c.content->'data'->>'model' as model, array_agg(f.name order by f.name) as profiles, p.limits->'prices' as prices
  from boxcar.profiles f join boxcar.projects p on p.id = f.project_id join boxcar.cards c on c.id = f.card_id
  where f.is_current and c.content->'data'->>'model' is not null and ($1::uuid is null or p.id = $1)
  group by p.id, c.content->'data'->>'model' order by p.name, model`);

/** A model that the current profiles of a project name. */
export interface UsedModel extends pg.QueryResultRow {
  readonly project: string;
  readonly model: string;
  readonly profiles: readonly string[];
  /** The project's own prices, as they stand there. */
  readonly prices: unknown;
}

export const listUsedModels = (db: Queryable, projectId?: ProjectId): Promise<UsedModel[]> =>
  run<UsedModel>(db, MODELS, [projectId ?? null]);
