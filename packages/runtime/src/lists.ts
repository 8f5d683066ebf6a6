/** Lists of what there is, for programs and the command line: a page, and a cursor for the next. Rules: `list-page.ts` of the store. */
import {
  type AgentId,
  KernelError,
  type ProfileId,
  type ProjectId,
  parseSearch,
  safeParse,
  sanitizeText,
  TURN_STATUSES,
  type TurnStatus,
  toBadRequest,
} from '@boxcar/kernel';
import {
  findVersionIds,
  type ListPage,
  type ListPlace,
  listProjects as loadProjects,
  type ProjectLine,
} from '@boxcar/store';
import {
  type ListedAgent,
  type ListedBox,
  type ListedRun,
  type ListedTurn,
  listRegistered,
  listAgents as loadAgents,
  listBoxes as loadBoxes,
  listRuns as loadRuns,
  listTurns as loadTurns,
  type RegisteredName,
  type TurnFilters,
  writeTurnWords,
} from '@boxcar/store/report';
import type pg from 'pg';
import { z } from 'zod';
import { findActor } from './lib/index.js';
import { findProject, profileNotFound } from './profile/index.js';

const DEFAULT_LIMIT = 50;
const MAX_LIMIT = 1_000;

/** What every list takes. */
export interface ListOptions {
  /** Rows of a page, 1 to 1,000; default 50. */
  readonly limit?: number | undefined;
  /** `next_cursor` of the page before. */
  readonly cursor?: string | undefined;
  /** A part of the instruction of runs and turns, else of the name; without regard to case. */
  readonly text?: string | undefined;
}

/** What lists of rows take: of one project, the newest first. */
export interface RowListOptions extends ListOptions {
  /** Id or name; default `default`. */
  readonly projectId?: string | undefined;
  /** Only what was made then or later. */
  readonly since?: Date | undefined;
}

export interface ListAgentsOptions extends RowListOptions {
  /** The name of a profile, in any version. */
  readonly profile?: string | undefined;
}

export interface ListBoxesOptions extends RowListOptions {
  /** Id or name of the owner. */
  readonly agent?: string | undefined;
}

export interface ListProjectsOptions extends ListOptions {
  /** Only what was made then or later. */
  readonly since?: Date | undefined;
  /** False: only those that take submissions; true: only archived ones. */
  readonly isArchived?: boolean | undefined;
}

/** Of a run its roots count: it is listed when one of them fits. */
export interface ListTurnsOptions extends RowListOptions {
  /** One status, or any of several. */
  readonly status?: TurnStatus | readonly TurnStatus[] | undefined;
  /** The name of a profile, in any version. */
  readonly profile?: string | undefined;
  /** Id or name. */
  readonly agent?: string | undefined;
  readonly channelId?: string | undefined;
}

export interface ListEnd {
  /** The `cursor` of the next page; null at the end. */
  readonly next_cursor: string | null;
}

/** How a text was looked for. */
export interface ListSearch {
  /** `scan`: the newest 20,000 rows of a page, since no index finds the text. */
  readonly by: 'index' | 'scan';
  /** Of a scan that has ended before the oldest row: how far it came. The next page continues there. */
  readonly scanned_to?: Date;
}

export type RowList<K extends string, T> = ListEnd & {
  readonly [name in K]: readonly T[];
} & {
  /** When a text was given. */
  readonly search?: ListSearch;
};

export type RegisteredList<K extends 'tools' | 'primitives'> = ListEnd & {
  readonly [name in K]: readonly RegisteredName[];
} & {
  /** Nothing is registered while there is none. */
  readonly live_workers: number;
  /** Live workers of older builds, which do not say what they have. */
  readonly silent_workers: number;
};

const name = z.string().trim().min(1);
const common = {
  limit: z.int().min(1).max(MAX_LIMIT).optional(),
  cursor: z.string().optional(),
  text: name.optional(),
};
const ofRows = { ...common, projectId: z.string().optional(), since: z.date().optional() };
const SCHEMAS = {
  registered: z.strictObject(common),
  projects: z.strictObject({ ...common, since: z.date().optional(), isArchived: z.boolean().optional() }),
  agents: z.strictObject({ ...ofRows, profile: name.optional() }),
  boxes: z.strictObject({ ...ofRows, agent: z.string().optional() }),
  turns: z.strictObject({
    ...ofRows,
    profile: name.optional(),
    agent: z.string().optional(),
    channelId: z.string().optional(),
    status: z.union([z.enum(TURN_STATUSES), z.array(z.enum(TURN_STATUSES)).min(1)]).optional(),
  }),
};

/** @throws KernelError `bad_request` with all findings. */
function parse<T>(schema: z.ZodType<T>, options: unknown): T {
  const parsed = safeParse(schema, options ?? {});
  if (!parsed.success) throw toBadRequest(parsed.error, '');
  return parsed.data;
}

const encode = (text: string): string => Buffer.from(text).toString('base64url');
const decode = (cursor: string): string => Buffer.from(cursor, 'base64url').toString();
const toCursor = (place: ListPlace | undefined): string | null =>
  place === undefined ? null : encode(`${place.at} ${place.id}`);

const PLACE =
  /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z) ([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})$/;

function badCursor(): KernelError {
  const issue = { path: 'cursor', message: 'must be the next_cursor of a page of this list' };
  return new KernelError('bad_request', {
    message: `${issue.path}: ${issue.message}.`,
    details: { issues: [issue] },
  });
}

function parseCursor(cursor: string | undefined): ListPlace | undefined {
  if (cursor === undefined) return undefined;
  const [, at, id] = PLACE.exec(decode(cursor)) ?? [];
  if (at === undefined || id === undefined || Number.isNaN(Date.parse(at))) throw badCursor();
  return { at, id };
}

interface Scope {
  readonly projectId: ProjectId;
  readonly agentId: AgentId | undefined;
  readonly profileIds: readonly ProfileId[] | undefined;
}

/** Two statements at most. @throws KernelError `not_found` for project, agent or profile. */
async function findScope(
  pool: pg.Pool,
  of: {
    readonly projectId?: string | undefined;
    readonly agent?: string | undefined;
    readonly profile?: string | undefined;
  },
): Promise<Scope> {
  const { projectId: project = 'default', agent, profile } = of;
  const { projectId, agentId } =
    agent === undefined
      ? { projectId: (await findProject(pool, project)).projectId, agentId: undefined }
      : await findActor(pool, project, agent);
  if (profile === undefined) return { projectId, agentId, profileIds: undefined };
  const profileIds = await findVersionIds(pool, projectId, profile);
  if (profileIds.length === 0) throw profileNotFound({ name: profile }, project);
  return { projectId, agentId, profileIds };
}

const rowsOf = (options: {
  readonly limit?: number | undefined;
  readonly cursor?: string | undefined;
  readonly since?: Date | undefined;
}) => ({
  limit: options.limit ?? DEFAULT_LIMIT,
  after: parseCursor(options.cursor),
  since: options.since,
});

function toList<K extends string, T>(
  key: K,
  { rows, next, scannedTo }: ListPage<T>,
  by: ListSearch['by'] | undefined,
): RowList<K, T> {
  const search = by && { search: { by, ...(scannedTo === undefined ? {} : { scanned_to: scannedTo }) } };
  return { [key]: rows, next_cursor: toCursor(next), ...search } as RowList<K, T>;
}

/** Filters of turns and runs. A text costs what writes the words of new turns first: once for each of them. */
async function turnFilters(pool: pg.Pool, options: ListTurnsOptions | undefined): Promise<TurnFilters> {
  const { status, channelId, text, ...rest } = parse(SCHEMAS.turns, options);
  const page = rowsOf(rest);
  const scope = await findScope(pool, rest);
  const folded = text === undefined ? undefined : parseSearch(sanitizeText(text).value).text;
  return {
    ...page,
    ...scope,
    channelId,
    statuses: status === undefined ? undefined : [...new Set([status].flat())],
    text:
      folded === undefined ? undefined : { folded, ...(await writeTurnWords(pool, scope.projectId, folded)) },
  };
}

const howOf = ({ text }: TurnFilters): ListSearch['by'] | undefined =>
  text && (text.isIndexed ? 'index' : 'scan');

/** Runs, the newest first. @throws KernelError `bad_request` with all findings; `not_found` for project, profile or agent. */
export async function listRuns(
  pool: pg.Pool,
  options?: ListTurnsOptions,
): Promise<RowList<'runs', ListedRun>> {
  const filters = await turnFilters(pool, options);
  return toList('runs', await loadRuns(pool, filters), howOf(filters));
}

/** Turns, the newest first. @throws KernelError as `listRuns`. */
export async function listTurns(
  pool: pg.Pool,
  options?: ListTurnsOptions,
): Promise<RowList<'turns', ListedTurn>> {
  const filters = await turnFilters(pool, options);
  return toList('turns', await loadTurns(pool, filters), howOf(filters));
}

/** Agents, the newest first. @throws KernelError as `listRuns`. */
export async function listAgents(
  pool: pg.Pool,
  options?: ListAgentsOptions,
): Promise<RowList<'agents', ListedAgent>> {
  const { text, ...rest } = parse(SCHEMAS.agents, options);
  const page = rowsOf(rest);
  const scope = await findScope(pool, rest);
  return toList(
    'agents',
    await loadAgents(pool, { ...page, ...scope, text }),
    text === undefined ? undefined : 'scan',
  );
}

/** Context boxes and tapes, the newest first. @throws KernelError as `listRuns`. */
export async function listBoxes(
  pool: pg.Pool,
  options?: ListBoxesOptions,
): Promise<RowList<'boxes', ListedBox>> {
  const { text, ...rest } = parse(SCHEMAS.boxes, options);
  const page = rowsOf(rest);
  const scope = await findScope(pool, rest);
  return toList(
    'boxes',
    await loadBoxes(pool, { ...page, ...scope, text }),
    text === undefined ? undefined : 'scan',
  );
}

/** Projects, the newest first, with their turns under way and their limits. @throws KernelError `bad_request` with all findings. */
export async function listProjects(
  pool: pg.Pool,
  options?: ListProjectsOptions,
): Promise<RowList<'projects', ProjectLine>> {
  const { text, isArchived, ...rest } = parse(SCHEMAS.projects, options);
  return toList('projects', await loadProjects(pool, { ...rowsOf(rest), text, isArchived }), undefined);
}

async function registered<K extends 'tools' | 'primitives'>(
  pool: pg.Pool,
  kind: K,
  options: ListOptions | undefined,
): Promise<RegisteredList<K>> {
  const { limit = DEFAULT_LIMIT, cursor, text = '' } = parse(SCHEMAS.registered, options);
  const after = cursor === undefined ? '' : decode(cursor);
  if (cursor !== undefined && encode(after) !== cursor) throw badCursor();
  const { names, hasMore, liveWorkers, silentWorkers } = await listRegistered(pool, kind, {
    after,
    text,
    limit,
  });
  return {
    [kind]: names,
    next_cursor: hasMore ? encode(names.at(-1)?.name ?? '') : null,
    live_workers: liveWorkers,
    silent_workers: silentWorkers,
  } as unknown as RegisteredList<K>;
}

/** The tools that live workers have registered, by name; of all projects. @throws KernelError `bad_request`. */
export const listTools = (pool: pg.Pool, options?: ListOptions): Promise<RegisteredList<'tools'>> =>
  registered(pool, 'tools', options);

/** The primitives that live workers and doors have registered, by name; of all projects. @throws KernelError `bad_request`. */
export const listPrimitives = (pool: pg.Pool, options?: ListOptions): Promise<RegisteredList<'primitives'>> =>
  registered(pool, 'primitives', options);
