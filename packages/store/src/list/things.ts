/** Agents and boxes of a project, newest first. Rules: `list-page.ts`. */
import type { AgentId, BoxId, ProfileId } from '@boxcar/kernel';
import type pg from 'pg';
import {
  type ListPage,
  type ListScope,
  loadPage,
  NO_SCAN,
  newestFirst,
  onlyBy,
  SCANNED,
  toPattern,
  Values,
  Window,
} from '../rows/index.js';

export interface ListedAgent {
  readonly agent_id: AgentId;
  readonly name: string;
  /** Null: the operator of the project. */
  readonly profile: string | null;
  readonly profile_version: number | null;
  /** The agent that made this agent. */
  readonly owner: string | null;
  readonly tape_box_id: BoxId | null;
  readonly created_at: Date;
}

export interface AgentFilters extends ListScope {
  /** All versions of one profile. */
  readonly profileIds?: readonly ProfileId[] | undefined;
  /** A part of the name. */
  readonly text?: string | undefined;
}

export interface ListedBox {
  readonly box_id: BoxId;
  readonly kind: 'context' | 'tape';
  /** The name of a tape. */
  readonly name: string | null;
  readonly owner_agent_id: AgentId | null;
  readonly owner: string | null;
  /** For a context box, the number of its cards. For a tape, the number of its entries. */
  readonly count: number;
  /** Null for a tape, which has no sum. */
  readonly tokens: number | null;
  readonly created_at: Date;
  readonly archived_at: Date | null;
}

export interface BoxFilters extends ListScope {
  /** The owner of the box. */
  readonly agentId?: AgentId | undefined;
  /** A part of the name of a tape. */
  readonly text?: string | undefined;
}

/**
 * SQL of `page` and `scan`.
 *
 * @param newest - The newest matching rows up to a limit, with their `name`.
 */
function ctesOf(
  values: Values,
  { limit, more }: Window,
  of: { readonly newest: (limit: string) => string; readonly text: string | undefined },
): string {
  if (of.text === undefined) return `page as materialized (${of.newest(more)}), ${NO_SCAN}`;
  const pattern = values.add(toPattern(of.text), 'text');
  return `
    walked as materialized (${of.newest(String(SCANNED))}),
    page as materialized (
      select k.created_at, k.id
      from walked k
      where lower(k.name) like lower(${pattern})
      order by ${newestFirst('k')}
      limit ${more}
    ),
    scan as (
      select k.created_at, k.id
      from walked k
      where (select count(*) from walked) = ${SCANNED}
        and (select count(*) from page) <= ${limit}
      order by k.created_at, k.id
      limit 1
    )`;
}

/** A page of agents. */
export function listAgents(pool: pg.Pool, filters: AgentFilters): Promise<ListPage<ListedAgent>> {
  const values = new Values();
  const window = new Window(values, filters);
  const profiles = filters.profileIds && values.add(filters.profileIds, 'uuid[]');
  const newest = (limit: string): string => {
    const one = (lead: string, value: string): string => `
      select x.created_at, x.id, x.name
      from boxcar.agents x
      where ${[onlyBy(lead, value), ...window.bounds('x')].join(' and ')}
      order by ${lead} desc, ${newestFirst('x')}
      limit ${limit}`;
    return profiles === undefined
      ? one('x.project_id', window.project)
      : `
        select p.*
        from unnest(${profiles}) as f(id)
        cross join lateral (${one('x.profile_id', 'f.id')}) p
        order by ${newestFirst('p')}
        limit ${limit}`;
  };
  return loadPage<ListedAgent>(pool, values, {
    window,
    ctes: ctesOf(values, window, { newest, text: filters.text }),
    columns: `
      a.id as agent_id, a.name, f.name as profile, f.version as profile_version, o.name as owner, a.tape_box_id,
      a.created_at`,
    joins: `
      cross join lateral (select x.* from boxcar.agents x where x.id = k.id offset 0) a
      left join lateral (select x.name, x.version from boxcar.profiles x where x.id = a.profile_id offset 0) f on true
      left join lateral (select x.name from boxcar.agents x where x.id = a.owner_agent_id offset 0) o on true`,
  });
}

/** A page of boxes. */
export function listBoxes(pool: pg.Pool, filters: BoxFilters): Promise<ListPage<ListedBox>> {
  const values = new Values();
  const window = new Window(values, filters);
  const { agentId, text } = filters;
  const [lead, value] =
    agentId === undefined
      ? ['x.project_id', window.project]
      : ['x.owner_agent_id', values.add(agentId, 'uuid')];
  const where = [
    onlyBy(lead, value),
    ...(text === undefined ? [] : ['x.tape_name is not null']),
    ...window.bounds('x'),
  ].join(' and ');
  const newest = (limit: string): string => `
    select x.created_at, x.id, x.tape_name as name
    from boxcar.boxes x
    where ${where}
    order by ${lead} desc, ${newestFirst('x')}
    limit ${limit}`;
  return loadPage<ListedBox>(pool, values, {
    window,
    ctes: ctesOf(values, window, { newest, text }),
    columns: `
      b.id as box_id, b.kind, b.tape_name as name, b.owner_agent_id, o.name as owner,
      coalesce(b.card_count, b.head_position) as count,
      b.token_estimate as tokens, b.created_at, b.archived_at`,
    joins: `
      cross join lateral (select x.* from boxcar.boxes x where x.id = k.id offset 0) b
      left join lateral (select x.name from boxcar.agents x where x.id = b.owner_agent_id offset 0) o on true`,
  });
}
