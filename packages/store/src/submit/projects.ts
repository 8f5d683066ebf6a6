/** Projects and their limits. */
import {
  type AgentId,
  type CardId,
  KernelError,
  type ModelPrice,
  type ProjectId,
  type ProjectLimits,
  parseJsonValue,
  type TurnStatus,
  tryParseId,
} from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, runRetrying, statement } from '../db/index.js';
import { query, queryRetrying } from '../query/query.js';
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
  const id = tryParseId<'project'>(ref);
  const [row] = await query(
    db,
    'projects.find_project_by_ref',
    ({ orm, tables: { projects }, eq, or, sql }) => {
      const isId = id && eq(projects.id, id);
      return orm
        .select({ id: projects.id, name: projects.name })
        .from(projects)
        .where(or(isId, eq(projects.name, ref)))
        .orderBy(...(isId === undefined ? [] : [sql`${isId} desc`]))
        .limit(1);
    },
  );
  if (row === undefined)
    throw new KernelError('not_found', { message: `No project '${ref}'.`, details: { project_id: ref } });
  return row;
}

export interface ProjectLine {
  readonly project_id: ProjectId;
  readonly name: string;
  readonly limits: ProjectLimits;
  readonly created_at: Date;
  /** The time since which the project accepts no new submissions. */
  readonly archived_at: Date | null;
  /** Turns that are in the window or that a worker holds: `max_concurrent` limits their number. */
  readonly active: number;
  readonly suspended: number;
}

export interface ProjectFilters extends Omit<ListScope, 'projectId'> {
  /** A part of the name. */
  readonly text?: string | undefined;
  /** False: only projects that accept submissions; true: only archived projects. */
  readonly isArchived?: boolean | undefined;
}

const COLUMNS = 'p.id as project_id, p.name, p.limits, p.created_at, p.archived_at';

/** A page of projects, newest first. The turns of the shown projects are counted from the indexes of unfinished turns. */
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
    ctes: `
      page as materialized (
        select x.created_at, x.id
        from boxcar.projects x
        where ${where.join(' and ')}
        order by ${newestFirst('x')}
        limit ${window.more}
      ),
      ${NO_SCAN},
      open as materialized (
        select
          t.project_id,
          count(*) filter (where t.status <> 'suspended')::int as active,
          count(*) filter (where t.status = 'suspended')::int as suspended
        from boxcar.turns t
        where t.status in ('dispatched', 'running', 'suspended')
        group by t.project_id
      )`,
    columns: `${COLUMNS}, coalesce(o.active, 0) as active, coalesce(o.suspended, 0) as suspended`,
    joins: 'join boxcar.projects p on p.id = k.id left join open o on o.project_id = k.id',
  });
}

export interface ProjectReport extends ProjectLine {
  /** Turns that wait for a place in the window. */
  readonly queued: number;
  /** The number of profiles. All versions of a profile count as one. */
  readonly profiles: number;
}

/** One statement. @throws KernelError `not_found`. */
export async function loadProject(db: Queryable, projectId: ProjectId): Promise<ProjectReport> {
  const [row] = await query(
    db,
    'projects.load_project',
    ({ orm, tables: { projects, profiles, turns }, and, eq, inArray, inline }) => {
      const turnsIn = (...statuses: readonly TurnStatus[]) =>
        orm.$count(turns, and(eq(turns.projectId, projects.id), inline(inArray(turns.status, statuses))));
      return orm
        .select({
          project_id: projects.id,
          name: projects.name,
          limits: projects.limits,
          created_at: projects.createdAt,
          archived_at: projects.archivedAt,
          active: turnsIn('dispatched', 'running'),
          suspended: turnsIn('suspended'),
          queued: turnsIn('queued'),
          profiles: orm.$count(profiles, and(eq(profiles.projectId, projects.id), profiles.isCurrent)),
        })
        .from(projects)
        .where(eq(projects.id, projectId));
    },
  );
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
  with /* projects.create_project */
  project as (
    insert into boxcar.projects (id, name, limits, operator_agent_id, bootstrap_card_id)
    values ($1, $2, $3, $4, $5)
    on conflict (name) do nothing
    returning id
  ),
  operator as (
    insert into boxcar.agents (id, project_id, name)
    select $4, p.id, 'operator'
    from project p
  ),
  bootstrap as (
    insert into boxcar.cards (
      id, project_id, type, role, content, content_hash, size_bytes, token_estimate, author_id
    )
    select
      $5, p.id, 'tape.anchor', 'assistant', '{"kind":"json","data":{"owner":"human"}}',
      sha256(convert_to('{"data":{"owner":"human"},"kind":"json"}', 'UTF8')),
      40, 10, 'operator'
    from project p
  )
  select id
  from project`);

export interface NewProject {
  readonly id: ProjectId;
  readonly name: string;
  readonly limits: ProjectLimits;
  readonly operatorAgentId: AgentId;
  readonly bootstrapCardId: CardId;
}

/** Creates a project with its operator, in one statement. @returns False when a project with this name exists. */
export async function createProject(pool: pg.Pool, project: NewProject): Promise<boolean> {
  const { id, name, limits, operatorAgentId, bootstrapCardId } = project;
  const values = [id, name, JSON.stringify(limits), operatorAgentId, bootstrapCardId];
  return (await runRetrying(pool, CREATE_PROJECT, values)).length > 0;
}

/**
 * Archives a project, or makes it active again. Submissions after the archiving are refused. A submission that is being committed at
 * this moment still counts as accepted before it.
 */
export async function archiveProject(
  pool: pg.Pool,
  projectId: ProjectId,
  isArchived: boolean,
): Promise<ProjectReport> {
  await queryRetrying(pool, 'projects.archive_project', ({ orm, tables: { projects }, eq, sql }) =>
    orm
      .update(projects)
      .set({ archivedAt: isArchived ? sql`coalesce(${projects.archivedAt}, clock_timestamp())` : null })
      .where(eq(projects.id, projectId)),
  );
  return loadProject(pool, projectId);
}

/** Changes the named limits of a project. Null removes a limit; limits that are not named stay. */
export async function setProjectLimits(
  pool: pg.Pool,
  projectId: ProjectId,
  limits: { readonly [K in keyof ProjectLimits]?: ProjectLimits[K] | null },
): Promise<ProjectLimits> {
  const [row] = await queryRetrying(
    pool,
    'projects.set_project_limits',
    ({ orm, tables: { projects }, eq, sql }) =>
      orm
        .update(projects)
        .set({ limits: sql`jsonb_strip_nulls(${projects.limits} || ${JSON.stringify(limits)}::jsonb)` })
        .where(eq(projects.id, projectId))
        .returning({ limits: projects.limits }),
  );
  if (row === undefined) throw noProject(projectId);
  return row.limits;
}

/** Sets a project's own price of a model; null removes it. */
export async function setPrice(
  pool: pg.Pool,
  projectId: ProjectId,
  { model, price }: { readonly model: string; readonly price: ModelPrice | null },
): Promise<void> {
  const changed = JSON.stringify({ [model]: price });
  const rows = await queryRetrying(pool, 'projects.set_price', ({ orm, tables: { projects }, eq, sql }) => {
    const { limits } = projects;
    const prices = sql`coalesce(${limits}->'prices', '{}') || ${changed}::jsonb`;
    return orm
      .update(projects)
      .set({ limits: sql`jsonb_strip_nulls(${limits} || jsonb_build_object('prices', ${prices}))` })
      .where(eq(projects.id, projectId))
      .returning({ id: projects.id });
  });
  if (rows.length === 0) throw noProject(projectId);
}

/** A model that a current profile of a project names. */
export interface UsedModel {
  readonly project: string;
  readonly model: string;
  readonly profiles: readonly string[];
  /** The project's own prices, as they are stored there. */
  readonly prices: unknown;
}

export const listUsedModels = (db: Queryable, projectId?: ProjectId): Promise<UsedModel[]> =>
  query(
    db,
    'projects.list_used_models',
    ({ orm, tables: { cards, profiles, projects }, and, asc, eq, isNotNull, sql }) => {
      const model = sql<string>`${cards.content}->'data'->>'model'`;
      return orm
        .select({
          project: projects.name,
          model: model.as('model'),
          profiles: sql<string[]>`array_agg(${profiles.name} order by ${profiles.name})`,
          prices: sql<unknown>`${projects.limits}->'prices'`,
        })
        .from(profiles)
        .innerJoin(projects, eq(projects.id, profiles.projectId))
        .innerJoin(cards, eq(cards.id, profiles.cardId))
        .where(and(profiles.isCurrent, isNotNull(model), projectId && eq(projects.id, projectId)))
        .groupBy(projects.id, model)
        .orderBy(asc(projects.name), sql`model`);
    },
  );
