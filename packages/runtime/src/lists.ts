/**
 * Lists of rows and registered names, for programs and the command line: a page, and a cursor for the next page. Rules:
 * `list-page.ts` of the store.
 */
import {
  type AgentId,
  isCleanText,
  type ProfileId,
  type ProjectId,
  parseSearch,
  parseTapeDate,
  safeParse,
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

/** Options of every list. */
export interface ListOptions {
  /** Rows of a page, 1 to 1,000; default 50. */
  readonly limit?: number | undefined;
  /** `next_cursor` of the previous page. */
  readonly cursor?: string | undefined;
  /**
   * For runs and turns: a part of the instruction (its first 65,536 characters), regardless of case, width and composition. For
   * other lists: a part of the name, regardless of case as the database defines it; in the locale C this covers only the letters
   * A to Z.
   */
  readonly text?: string | undefined;
}

/** Options of the lists of rows. A page has the newest rows of a project first. */
export interface RowListOptions extends ListOptions {
  /** Id or name; default `default`. */
  readonly projectId?: string | undefined;
  /** Only rows that were made at this time or later. */
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
  /** Only projects that were made at this time or later. */
  readonly since?: Date | undefined;
  /** False: only projects that take submissions; true: only archived projects. */
  readonly isArchived?: boolean | undefined;
}

/** For runs the filters apply to the root turns: a run is listed when one of its roots matches. */
export interface ListTurnsOptions extends RowListOptions {
  /** One status, or several of which one must match. */
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

/** How the text was searched for. */
export interface ListSearch {
  /** `scan`: no index finds the text, so the newest 20,000 rows of a page are read. */
  readonly by: 'index' | 'scan';
  /** Set when a scan ended before the oldest row: the time it reached. The next page continues there. */
  readonly scanned_to?: Date;
}

export type RowList<K extends string, T> = ListEnd & {
  readonly [name in K]: readonly T[];
} & {
  /** Present when the search had a text. */
  readonly search?: ListSearch;
};

export type RegisteredList<K extends 'tools' | 'primitives'> = ListEnd & {
  readonly [name in K]: readonly RegisteredName[];
} & {
  /** While this is 0, nothing is registered. */
  readonly live_workers: number;
  /** Live workers of older builds, which do not report their registered names. */
  readonly silent_workers: number;
};

/** The nouns that have a list. */
export type ListNoun = 'agents' | 'boxes' | 'primitives' | 'projects' | 'runs' | 'tools' | 'turns';

const encode = (text: string): string => Buffer.from(text).toString('base64url');

/** A cursor contains the name of its list: a place in one list has no meaning in another list. */
const toCursor = (noun: ListNoun, place: string | undefined): string | null =>
  place === undefined ? null : encode(`${noun} ${place}`);

/** Undefined for a cursor that no page of this list has returned. */
function readCursor(noun: ListNoun, cursor: string): string | undefined {
  const text = Buffer.from(cursor, 'base64url').toString();
  // Decoding skips characters that are not in the alphabet, so the text is encoded again and compared.
  return text.startsWith(`${noun} `) && encode(text) === cursor ? text.slice(noun.length + 1) : undefined;
}

const PLACE =
  /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z) ([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})$/;

/** False for a day that its month does not have, and for the year 0. */
function isMoment(at: string): boolean {
  try {
    return parseTapeDate(at) === at;
  } catch {
    return false;
  }
}

function placeOf(text: string): ListPlace | undefined {
  const [, at, id] = PLACE.exec(text) ?? [];
  return at !== undefined && id !== undefined && isMoment(at) ? { at, id } : undefined;
}

const nameOf = (text: string): string | undefined => (text !== '' && isCleanText(text) ? text : undefined);

const cursorBy = <T>(noun: ListNoun, read: (text: string) => T | undefined) =>
  z
    .string()
    .transform((cursor) => {
      const text = readCursor(noun, cursor);
      return text === undefined ? undefined : read(text);
    })
    .refine((place) => place !== undefined, 'must be the next_cursor of a page of this list')
    .optional();

const storable = z.string().refine(isCleanText, 'contains a NUL character or a lone surrogate');
const name = storable.trim().min(1);
/** Only years that Postgres and ISO 8601 write in the same way. */
const time = z
  .date()
  .refine((date) => /^(?!0000)\d{4}-/.test(date.toISOString()), 'must be in the years 1 to 9999');
const common = {
  limit: z.int().min(1).max(MAX_LIMIT).default(DEFAULT_LIMIT),
  text: name.optional(),
};
const rowsOfAll = (noun: ListNoun) => ({
  ...common,
  cursor: cursorBy(noun, placeOf),
  since: time.optional(),
});
const rowsOfOne = (noun: ListNoun) => ({ ...rowsOfAll(noun), projectId: storable.optional() });
const registeredNames = (noun: ListNoun) => z.strictObject({ ...common, cursor: cursorBy(noun, nameOf) });
const turnRows = (noun: 'runs' | 'turns') =>
  z.strictObject({
    ...rowsOfOne(noun),
    profile: name.optional(),
    agent: storable.optional(),
    channelId: storable.optional(),
    status: z.union([z.enum(TURN_STATUSES), z.array(z.enum(TURN_STATUSES)).min(1)]).optional(),
  });
const SCHEMAS = {
  runs: turnRows('runs'),
  turns: turnRows('turns'),
  agents: z.strictObject({ ...rowsOfOne('agents'), profile: name.optional() }),
  boxes: z.strictObject({ ...rowsOfOne('boxes'), agent: storable.optional() }),
  projects: z.strictObject({ ...rowsOfAll('projects'), isArchived: z.boolean().optional() }),
  tools: registeredNames('tools'),
  primitives: registeredNames('primitives'),
};

/** @throws KernelError `bad_request` with all findings. */
function parse<T>(schema: z.ZodType<T>, options: unknown): T {
  const parsed = safeParse(schema, options ?? {});
  if (!parsed.success) throw toBadRequest(parsed.error, '');
  return parsed.data;
}

/** Checks the options of a list without a database. @throws KernelError `bad_request` with all findings. */
export function checkListOptions(noun: ListNoun, options: unknown): void {
  parse<unknown>(SCHEMAS[noun], options);
}

interface Scope {
  readonly projectId: ProjectId;
  readonly agentId: AgentId | undefined;
  readonly profileIds: readonly ProfileId[] | undefined;
}

/** Runs at most two statements. @throws KernelError `not_found` for project, agent or profile. */
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
  readonly limit: number;
  readonly cursor?: ListPlace | undefined;
  readonly since?: Date | undefined;
}) => ({ limit: options.limit, after: options.cursor, since: options.since });

function toList<K extends ListNoun, T>(
  key: K,
  { rows, next, scannedTo }: ListPage<T>,
  by: ListSearch['by'] | undefined,
): RowList<K, T> {
  const search = by && { search: { by, ...(scannedTo === undefined ? {} : { scanned_to: scannedTo }) } };
  return { [key]: rows, next_cursor: toCursor(key, next && `${next.at} ${next.id}`), ...search } as RowList<
    K,
    T
  >;
}

/** Filters of turns and runs. With a text, the words of new turns are written first, once for each turn. */
async function turnFilters(
  pool: pg.Pool,
  noun: 'runs' | 'turns',
  options: ListTurnsOptions | undefined,
): Promise<TurnFilters> {
  const { status, channelId, text, ...rest } = parse(SCHEMAS[noun], options);
  const page = rowsOf(rest);
  const scope = await findScope(pool, rest);
  const folded = text === undefined ? undefined : parseSearch(text).text;
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
  const filters = await turnFilters(pool, 'runs', options);
  return toList('runs', await loadRuns(pool, filters), howOf(filters));
}

/** Turns, the newest first. @throws KernelError as `listRuns`. */
export async function listTurns(
  pool: pg.Pool,
  options?: ListTurnsOptions,
): Promise<RowList<'turns', ListedTurn>> {
  const filters = await turnFilters(pool, 'turns', options);
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

/**
 * Projects, the newest first, with the number of their running turns and their limits. @throws KernelError `bad_request` with all
 * findings.
 */
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
  const { limit, cursor: after = '', text = '' } = parse(SCHEMAS[kind], options);
  const { names, hasMore, liveWorkers, silentWorkers } = await listRegistered(pool, kind, {
    after,
    text,
    limit,
  });
  return {
    [kind]: names,
    next_cursor: toCursor(kind, hasMore ? names.at(-1)?.name : undefined),
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
