/** Projects and their limits. */
import {
  type AgentId,
  type CardId,
  KernelError,
  type ModelPrice,
  type ProjectId,
  type ProjectLimits,
  parseJsonValue,
  tryParseId,
} from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, runRetrying, statement } from '../db/index.js';
import {
  type ListPage,
  type ListScope,
  loadPage,
  NO_SCAN,
  newestFirst,
  toPattern,
  Values,
  Window,
} from '../rows/index.js';

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

export interface ProjectLine {
  readonly project_id: ProjectId;
  readonly name: string;
  readonly limits: ProjectLimits;
  readonly created_at: Date;
  /** Since when it takes no new submissions. */
  readonly archived_at: Date | null;
  /** Turns in the window or in a worker's hands: what `max_concurrent` counts. */
  readonly active: number;
  readonly suspended: number;
}

export interface ProjectFilters extends Omit<ListScope, 'projectId'> {
  /** A part of the name. */
  readonly text?: string | undefined;
  /** False: only those that take submissions; true: only archived ones. */
  readonly isArchived?: boolean | undefined;
}

const COLUMNS = 'p.id as project_id, p.name, p.limits, p.created_at, p.archived_at';

/** A page of projects, newest first. Their turns are counted from the indexes of what has not ended, of those that are shown. */
export function listProjects(pool: pg.Pool, filters: ProjectFilters): Promise<ListPage<ProjectLine>> {
  const values = new Values();
  const window = new Window(values, filters);
  const { text, isArchived } = filters;
  const where = [
    'true',
    ...(text === undefined ? [] : [`lower(x.name) like lower(${values.add(toPattern(text), 'text')})`]),
    ...(isArchived === undefined
      ? []
      : [`(x.archived_at is not null) = ${values.add(isArchived, 'boolean')}`]),
    ...window.bounds('x'),
  ];
  return loadPage<ProjectLine>(pool, values, {
    window,
    ctes: `page as materialized (select x.created_at, x.id from boxcar.projects x where ${where.join(' and ')} order by ${newestFirst('x')} limit ${window.more}), ${NO_SCAN},
    open as materialized (
      select t.project_id, count(*) filter (where t.status <> 'suspended')::int as active, count(*) filter (where t.status = 'suspended')::int as suspended
      from boxcar.turns t where t.status in ('dispatched', 'running', 'suspended') group by t.project_id)`,
    columns: `${COLUMNS}, coalesce(o.active, 0) as active, coalesce(o.suspended, 0) as suspended`,
    joins: 'join boxcar.projects p on p.id = k.id left join open o on o.project_id = k.id',
  });
}

export interface ProjectReport extends ProjectLine {
  /** Turns that wait for a place in the window. */
  readonly queued: number;
  /** Profiles, each counted once whatever its versions. */
  readonly profiles: number;
}

const LOAD_PROJECT = statement(`
  select ${COLUMNS},
    (select count(*) from boxcar.turns t where t.project_id = p.id and t.status in ('dispatched', 'running'))::int as active,
    (select count(*) from boxcar.turns t where t.project_id = p.id and t.status = 'suspended')::int as suspended,
    (select count(*) from boxcar.turns t where t.project_id = p.id and t.status = 'queued')::int as queued,
    (select count(*) from boxcar.profiles f where f.project_id = p.id and f.is_current)::int as profiles
  from boxcar.projects p where p.id = $1`);

/** One statement. @throws KernelError `not_found`. */
export async function loadProject(db: Queryable, projectId: ProjectId): Promise<ProjectReport> {
  const [row] = await run<ProjectReport & pg.QueryResultRow>(db, LOAD_PROJECT, [projectId]);
  if (row === undefined) throw noProject(projectId);
  return row;
}

const noProject = (projectId: ProjectId): KernelError =>
  new KernelError('not_found', {
    message: `No project ${projectId}.`,
    details: { project_id: projectId },
  });

// The operator is an agent without a profile. The bootstrap card is the state of the first anchor of every tape of the project.
const CREATE_PROJECT = statement(`
  with project as (
    insert into boxcar.projects (id, name, limits, operator_agent_id, bootstrap_card_id) values ($1, $2, $3, $4, $5) on conflict (name) do nothing returning id),
  operator as (insert into boxcar.agents (id, project_id, name) select $4, p.id, 'operator' from project p),
  bootstrap as (
    insert into boxcar.cards (id, project_id, type, role, content, content_hash, size_bytes, token_estimate, author_id)
    select $5, p.id, 'tape.anchor', 'assistant', '{"kind":"json","data":{"owner":"human"}}', sha256(convert_to('{"data":{"owner":"human"},"kind":"json"}', 'UTF8')), 40, 10, 'operator' from project p)
  select id from project`);

export interface NewProject {
  readonly id: ProjectId;
  readonly name: string;
  readonly limits: ProjectLimits;
  readonly operatorAgentId: AgentId;
  readonly bootstrapCardId: CardId;
}

/** Makes a project with its operator. One statement. @returns False: there is one of this name. */
export async function createProject(pool: pg.Pool, project: NewProject): Promise<boolean> {
  const { id, name, limits, operatorAgentId, bootstrapCardId } = project;
  const values = [id, name, JSON.stringify(limits), operatorAgentId, bootstrapCardId];
  return (await runRetrying(pool, CREATE_PROJECT, values)).length > 0;
}

const ARCHIVE = statement(`
  update boxcar.projects p set archived_at = case when $2 then coalesce(p.archived_at, clock_timestamp()) end where p.id = $1`);

/**
 * Archives a project, or takes it back. A submission that is accepted after this is refused; one that is being committed at this moment is
 * accepted before.
 */
export async function archiveProject(
  pool: pg.Pool,
  projectId: ProjectId,
  isArchived: boolean,
): Promise<ProjectReport> {
  await runRetrying(pool, ARCHIVE, [projectId, isArchived]);
  return loadProject(pool, projectId);
}

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
  if (row === undefined) throw noProject(projectId);
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
  if (rows.length === 0) throw noProject(projectId);
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
