/** Turns and runs of a project, newest first. Rules: `list-page.ts`. */
import {
  type AgentId,
  CARD_TYPES,
  type ProfileId,
  type RunId,
  type TurnId,
  type TurnStatus,
} from '@boxcar/kernel';
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

/** Statuses with which few turns end. They have a separate index (`turns_unwell`). */
const UNWELL: readonly TurnStatus[] = ['partial', 'failed', 'timeout', 'canceled'];
/**
 * This many of the newest turns are searched before the index of words is used: a frequent text is found among them, so that its many
 * index entries need not be read.
 */
const WALKED = 1_000;
const PREVIEW_LENGTH = 200;

/** The filters of turns, and of the roots of runs. */
export interface TurnFilters extends ListScope {
  readonly statuses?: readonly TurnStatus[] | undefined;
  readonly agentId?: AgentId | undefined;
  /** All versions of one profile. */
  readonly profileIds?: readonly ProfileId[] | undefined;
  readonly channelId?: string | undefined;
  /** A part of the instruction, folded like its words. `isIndexed`: an index finds it (`turn-words.ts`). */
  readonly text?: { readonly folded: string; readonly isIndexed: boolean } | undefined;
}

/** A turn, as a list shows it. */
export interface ListedTurn {
  readonly turn_id: TurnId;
  readonly run_id: RunId;
  readonly parent_turn_id: TurnId | null;
  readonly status: TurnStatus;
  readonly agent_id: AgentId;
  readonly agent: string;
  readonly profile: string;
  readonly profile_version: number;
  readonly primitive: string;
  readonly channel_id: string;
  readonly steps: number;
  readonly error_code: string | null;
  /** The first 200 characters; null without an instruction. */
  readonly instruction: string | null;
  readonly created_at: Date;
  readonly ended_at: Date | null;
}

/** A run, as a list shows it. Agent, profile, primitive, channel and instruction are those of its first root. */
export interface ListedRun {
  readonly run_id: RunId;
  readonly root_turn_id: TurnId;
  /** The number of roots per status; an external `fork_join` has several roots. */
  readonly roots: Readonly<Partial<Record<TurnStatus, number>>>;
  /** The number of all turns of the run. */
  readonly turns: number;
  readonly agent_id: AgentId;
  readonly agent: string;
  readonly profile: string;
  readonly profile_version: number;
  readonly primitive: string;
  readonly channel_id: string;
  readonly instruction: string | null;
  readonly created_at: Date;
  /** When it was canceled. */
  readonly canceled_at: Date | null;
}

/** SQL of the card with the instruction of a turn `alias`, as `card`. */
export const joinInstruction = (alias: string): string => `
  left join lateral (
    select c.id, c.content, c.size_bytes
    from boxcar.boxes b
    cross join lateral jsonb_array_elements(b.segments) with ordinality as s(value, ord)
    cross join lateral unnest(
      b.card_ids[(s.value->>'from')::int:(s.value->>'to')::int]
    ) with ordinality as i(card_id, m)
    cross join lateral (
      select x.*
      from boxcar.cards x
      where x.id = i.card_id and x.type = '${CARD_TYPES.instruction}'
      offset 0
    ) c
    where b.id = ${alias}.context_box_id
      and s.value->>'rule' = 'pack_arguments'
      and s.value->>'source' is null
    order by s.ord, i.m
    limit 1
  ) card on true`;

const INSTRUCTION = `
  case
    when card.id is not null
      then left(coalesce(
        card.content->>'text', card.content->>'data', card.content->>'fields', card.content->>'uri',
        card.content::text, '(erased)'
      ), ${PREVIEW_LENGTH})
  end`;

const hasWords = (turn: string, pattern: string): string => `
  (
    select true
    from boxcar.tape_words w
    where w.box_id = ${turn} and w.position = 0 and w.words like ${pattern}
  ) is true`;

/** Chooses turns, or runs by their roots: one of the matching roots represents the run. */
class Choice {
  readonly window: Window;
  readonly #filters: TurnFilters;
  readonly #isOfRuns: boolean;
  readonly #agent: string | undefined;
  readonly #profiles: string | undefined;
  readonly #channel: string | undefined;
  readonly #pattern: string | undefined;

  constructor(values: Values, filters: TurnFilters, isOfRuns: boolean) {
    const { agentId, profileIds, channelId, text } = filters;
    this.#filters = filters;
    this.#isOfRuns = isOfRuns;
    this.window = new Window(values, filters);
    this.#agent = agentId && values.add(agentId, 'uuid');
    this.#profiles = profileIds && values.add(profileIds, 'uuid[]');
    this.#channel = channelId === undefined ? undefined : values.add(channelId, 'text');
    this.#pattern = text && values.add(toPattern(text.folded), 'text');
  }

  /** The conditions of all matching turns, however the turns are found. */
  #always(t: string): readonly string[] {
    return [
      ...(this.#channel === undefined ? [] : [`${t}.channel_id = ${this.#channel}`]),
      // Tells the planner that the index of channels contains the turn.
      ...(this.#channel === undefined || this.#filters.channelId === 'public'
        ? []
        : [`${t}.channel_id <> 'public'`]),
      ...(this.#isOfRuns ? [`${t}.parent_turn_id is null`] : []),
    ];
  }

  /** All filters except the text. */
  #fits(t: string): readonly string[] {
    const { statuses } = this.#filters;
    return [
      ...this.#always(t),
      ...(this.#agent === undefined ? [] : [`${t}.agent_id = ${this.#agent}`]),
      ...(this.#profiles === undefined ? [] : [`${t}.profile_id = any (${this.#profiles})`]),
      ...(statuses === undefined ? [] : [`${t}.status in (${statuses.map((one) => `'${one}'`).join()})`]),
    ];
  }

  /**
   * For runs: the condition that a root represents its run. That is the first root if it matches, which two look-ups by key decide;
   * otherwise the last matching root. All roots are written in one transaction.
   */
  #standsForRun(t: string): readonly string[] {
    if (!this.#isOfRuns) return [];
    const words = this.#pattern === undefined ? [] : [hasWords('o.id', this.#pattern)];
    const fits = [...this.#fits('o'), ...words].join(' and ');
    return [
      `
        coalesce(
          (
            select ${t}.id = o.id
            from boxcar.runs r
            cross join lateral (select x.* from boxcar.turns x where x.id = r.root_turn_id offset 0) o
            where r.id = ${t}.run_id and ${fits}
          ),
          (
            select false
            from boxcar.turns o
            where o.project_id = ${t}.project_id
              and o.created_at = ${t}.created_at
              and o.id > ${t}.id
              and o.run_id = ${t}.run_id
              and ${fits}
            limit 1
          ),
          true
        )`,
    ];
  }

  /** The newest matching turns up to a limit, without the text filter. */
  #newest(limit: string, conditions: readonly string[]): string {
    const { statuses = [undefined], channelId = 'public' } = this.#filters;
    // A channel other than `public` has few turns, of any agent: the index of channels begins with the project.
    const isOfChannel = channelId !== 'public';
    const ways = statuses.map((status) => {
      const isUnwell = UNWELL.some((rare) => rare === status);
      const lead =
        isUnwell || isOfChannel
          ? 't.project_id'
          : this.#agent !== undefined
            ? 't.agent_id'
            : this.#profiles !== undefined
              ? 't.profile_id'
              : 't.project_id';
      const where = [
        lead === 't.project_id' ? onlyBy(lead, this.window.project) : undefined,
        this.#agent && (lead === 't.agent_id' ? onlyBy(lead, this.#agent) : `t.agent_id = ${this.#agent}`),
        this.#profiles &&
          (lead === 't.profile_id' ? onlyBy(lead, 'f.id') : `t.profile_id = any (${this.#profiles})`),
        status && `t.status = '${status}'`,
        ...this.#always('t'),
        ...this.window.bounds('t'),
        ...conditions,
      ].filter((condition) => condition !== undefined);
      const one = `
        select t.created_at, t.id
        from boxcar.turns t
        where ${where.join(' and ')}
        order by ${lead} desc, ${newestFirst('t')}
        limit ${limit}`;
      // With another leading column, one index scan finds all versions of the profile.
      return lead === 't.profile_id'
        ? `(select x.* from unnest(${this.#profiles}) as f(id) cross join lateral (${one}) x)`
        : `(${one})`;
    });
    return `select x.created_at, x.id from (${ways.join(' union all ')}) x order by ${newestFirst('x')} limit ${limit}`;
  }

  /** SQL of `page` and `scan`: the rows to show, and how far the search for a text has reached. */
  get ctes(): string {
    const { limit, more } = this.window;
    const { text } = this.#filters;
    if (text === undefined || this.#pattern === undefined)
      return `page as materialized (${this.#newest(more, this.#standsForRun('t'))}), ${NO_SCAN}`;
    const depth = text.isIndexed ? WALKED : SCANNED;
    const standsForRun = this.#standsForRun('t')
      .map((condition) => `and ${condition}`)
      .join(' ');
    const walked = `
      walked as materialized (${this.#newest(String(depth), [])}),
      near as materialized (
        select k.created_at, k.id
        from walked k
        cross join lateral (select x.* from boxcar.turns x where x.id = k.id offset 0) t
        where ${hasWords('k.id', this.#pattern)}
        ${standsForRun}
        order by ${newestFirst('k')}
        limit ${more}
      ),
      rest as materialized (
        select (select count(*) from near) <= ${limit} and (select count(*) from walked) = ${depth} as is_wanted
      )`;
    if (!text.isIndexed)
      return `
        ${walked},
        page as materialized (select * from near),
        scan as (
          select k.created_at, k.id
          from walked k
          where (select is_wanted from rest)
          order by k.created_at, k.id
          limit 1
        )`;
    // `+ 0` keeps the planner from using the key of the table.
    return `
      ${walked},
      far as materialized (
        select t.created_at, t.id
        from boxcar.tape_words w
        cross join lateral (select x.* from boxcar.turns x where x.id = w.box_id offset 0) t
        where (select is_wanted from rest)
          and w.words like ${this.#pattern}
          and w.position + 0 = 0
          and t.project_id = ${this.window.project}
          and ${[...this.#fits('t'), ...this.window.bounds('t'), 'true'].join(' and ')}
        ${standsForRun}
      ),
      page as materialized (
        select u.*
        from (
          select *
          from near
          union
          select *
          from far
        ) u
        order by ${newestFirst('u')}
        limit ${more}
      ),
      ${NO_SCAN}`;
  }
}

const NAMES = `
  cross join lateral (select x.name from boxcar.agents x where x.id = t.agent_id offset 0) a
  cross join lateral (select x.name, x.version from boxcar.profiles x where x.id = t.profile_id offset 0) f`;

/** A page of turns. */
export function listTurns(pool: pg.Pool, filters: TurnFilters): Promise<ListPage<ListedTurn>> {
  const values = new Values();
  const choice = new Choice(values, filters, false);
  return loadPage<ListedTurn>(pool, values, {
    window: choice.window,
    ctes: choice.ctes,
    columns: `
      t.id as turn_id, t.run_id, t.parent_turn_id, t.status, t.agent_id, a.name as agent, f.name as profile,
      f.version as profile_version, t.primitive, t.channel_id, t.step_count as steps, t.error->>'code' as error_code,
      ${INSTRUCTION} as instruction, t.created_at, t.ended_at`,
    joins: `
      cross join lateral (select x.* from boxcar.turns x where x.id = k.id offset 0) t
      ${NAMES}
      ${joinInstruction('t')}`,
  });
}

const hasFilter = ({ statuses, agentId, profileIds, channelId, text }: TurnFilters): boolean =>
  (statuses ?? agentId ?? profileIds ?? channelId ?? text) !== undefined;

/** A page of runs with at least one matching root. */
export function listRuns(pool: pg.Pool, filters: TurnFilters): Promise<ListPage<ListedRun>> {
  const values = new Values();
  const isFiltered = hasFilter(filters);
  const choice = isFiltered ? new Choice(values, filters, true) : undefined;
  const window = choice?.window ?? new Window(values, filters);
  const all = (): string => `
    page as materialized (
      select r.created_at, r.id
      from boxcar.runs r
      where ${[onlyBy('r.project_id', window.project), ...window.bounds('r')].join(' and ')}
      order by r.project_id desc, ${newestFirst('r')}
      limit ${window.more}
    ),
    ${NO_SCAN}`;
  return loadPage<ListedRun>(pool, values, {
    window,
    ctes: choice?.ctes ?? all(),
    columns: `
      r.id as run_id, r.root_turn_id, roots.by_status as roots, r.turn_count as turns, t.agent_id, a.name as agent,
      f.name as profile, f.version as profile_version, t.primitive, t.channel_id, ${INSTRUCTION} as instruction,
      r.created_at, r.canceled_at`,
    // The roots are written in the transaction that made the run. They are read by the index of lists, because the index of the tree would
    // read all turns of the run.
    joins: `
      cross join lateral (
        select x.*
        from boxcar.runs x
        where x.id = ${isFiltered ? '(select o.run_id from boxcar.turns o where o.id = k.id)' : 'k.id'}
        offset 0
      ) r
      cross join lateral (select x.* from boxcar.turns x where x.id = r.root_turn_id offset 0) t
      ${NAMES}
      ${joinInstruction('t')}
      cross join lateral (
        select json_object_agg(s.status, s.n) as by_status
        from (
          select m.status, count(*)::int as n
          from (
            select x.status, x.run_id, x.parent_turn_id
            from boxcar.turns x
            where x.project_id = r.project_id and x.created_at = r.created_at
            offset 0
          ) m
          where m.run_id = r.id and m.parent_turn_id is null
          group by m.status
        ) s
      ) roots`,
  });
}
