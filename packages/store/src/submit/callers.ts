import {
  type AgentId,
  agentNamesOf,
  type BatchId,
  type BoxId,
  type DelegationPolicy,
  type JsonValue,
  type ProjectLimits as KernelLimits,
  type ProjectId,
  type RunId,
  type TurnId,
  type TurnStatus,
  tryParseId,
} from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement } from '../db/index.js';
import { type ProfileDbRow, type ProfileRow, toProfileRow } from './profile-versions.js';

/** A turn on the caller's path to the root. The nearest turn is first. */
export interface ChainLink {
  readonly turn_id: TurnId;
  readonly agent_id: AgentId;
  readonly agent_name: string;
  readonly is_awaited: boolean;
}

/** The limits that a project sets. They are checked where they are used, since rows may have been changed by hand. */
interface ProjectLimits extends Omit<KernelLimits, 'run_budget' | 'prices'> {
  readonly run_budget?: unknown;
}

export interface FirstOperation {
  readonly requestHash: string;
  readonly response: JsonValue;
  readonly awaitedTurnId: TurnId | null;
  readonly awaitedBatchId: BatchId | null;
}

export interface CallerFacts {
  readonly projectId: ProjectId;
  /** The version of the project's row, which differs after each change. */
  readonly projectVersion: string;
  readonly limits: ProjectLimits;
  readonly operatorId: AgentId;
  /** The number of erasures of cards in the project. */
  readonly erasures: number;
  /** True when the project accepts no new submissions. */
  readonly isArchived: boolean;
  /** The agent in whose name the submission is made; undefined when the named agent does not exist. */
  readonly source:
    | {
        readonly agentId: AgentId;
        readonly name: string;
        /** The version of the agent's row, which differs after each change. */
        readonly version: string;
        readonly isOperator: boolean;
        readonly policy: DelegationPolicy | undefined;
      }
    | undefined;
  /** The key as it is stored. */
  readonly key: string;
  /** The first answer given under this key, if there is one. */
  readonly operation: FirstOperation | undefined;
  /**
   * The operation under an agent's key without the agent's name, where older builds wrote it. It belongs to this agent only if the
   * request is the same: the request names the agent.
   */
  readonly unnamed: FirstOperation | undefined;
  /** The current versions of the requested profiles, by name. */
  readonly profiles: ReadonlyMap<string, ProfileRow>;
  readonly parent:
    | {
        readonly turnId: TurnId;
        readonly runId: RunId;
        readonly agentId: AgentId;
        readonly channelId: string;
        readonly status: TurnStatus;
        readonly depth: number;
        /** The account above the turn. */
        readonly budgetId: string | null;
        readonly priority: number;
        readonly contextBoxId: BoxId;
        readonly outputBoxId: BoxId;
        readonly chain: readonly ChainLink[];
      }
    | undefined;
}

/** The parent of turn `t` waits for it: for the turn itself, or for a batch that has it as a member. */
const IS_AWAITED = `
  t.is_awaited
  or (
    t.batch_ids is not null
    and exists (
      select from boxcar.batches b
      where b.id = any (t.batch_ids)
        and b.turn_id = t.parent_turn_id
        and b.tool_call_id is not null
        and b.status = 'running'
    )
  ) as is_awaited`;

const PARENT_PARTS = `
  , parent as (
    select t.*
    from boxcar.turns t
    join p on p.id = t.project_id
    where t.id = r.parent_turn_id
  ),
  chain as (
    select t.id as turn_id, t.agent_id, ${IS_AWAITED}, t.parent_turn_id, 0 as n
    from parent t
    union all
    select t.id, t.agent_id, ${IS_AWAITED}, t.parent_turn_id, c.n + 1
    from chain c
    join boxcar.turns t on t.id = c.parent_turn_id
    where c.n < 1000
  )`;

const PARENT_COLUMNS = `
  (
    select json_build_object(
      'turn_id', t.id, 'run_id', t.run_id, 'agent_id', t.agent_id, 'channel_id', t.channel_id, 'status', t.status,
      'depth', t.depth, 'priority', t.priority, 'budget_id', t.budget_id, 'context_box_id', t.context_box_id,
      'output_box_id', t.output_box_id
    )
    from parent t
  ) as parent,
  (
    select json_agg(json_build_object(
      'turn_id', c.turn_id, 'agent_id', c.agent_id, 'agent_name', a.name, 'is_awaited', c.is_awaited
    ) order by c.n)
    from chain c
    join boxcar.agents a on a.id = c.agent_id
  ) as chain`;

/** Separates the keys that an agent chooses from those of other agents. Keys of the operator and of the kernel have no such prefix. */
const AGENT_KEYS = 'agent:';

// One row per caller. All parts depend on keys in the parameters, so each part is a separate look-up (`lateral`), and a part that was
// not requested ends at once without a row. It takes no locks. The write checks again what may change in the meantime: the keys, the fence
// of the calling turn and, for facts that a process keeps, the versions of project and agent (`xmin`).
const openingsText = (hasParents: boolean): string => `
  select /* callers.openings */ r.n::int as n, o.*
  from rows from (json_to_recordset($1) as (
    project text, project_id uuid, source_id uuid, source_names text[], parent_turn_id uuid, keys text[],
    own_keys text[], profile_names text[]
  )) with ordinality as r(
    project, project_id, source_id, source_names, parent_turn_id, keys, own_keys, profile_names, n
  )
  cross join lateral (
    with recursive p as (
      select *, xmin::text as version
      from boxcar.projects
      where id = r.project_id or name = r.project
      order by (id = r.project_id) desc nulls last
      limit 1
    ),
    source as (
      select
        a.id, a.name, a.xmin::text as version, a.id = p.operator_agent_id as is_operator,
        c.content->'data'->'delegation_policy' as policy
      from p
      join boxcar.agents a
        on a.project_id = p.id
        and a.id = coalesce(
          r.source_id,
          (
            select n.id
            from boxcar.agents n
            where n.project_id = p.id and n.name = any (r.source_names)
            order by array_position(r.source_names, n.name)
            limit 1
          ),
          case when r.source_names is null then p.operator_agent_id end
        )
      left join boxcar.profiles f on f.id = a.profile_id
      left join boxcar.cards c on c.id = f.card_id
    )${hasParents ? PARENT_PARTS : ''}
    select
      p.id as project_id, p.version as project_version, p.limits, p.operator_agent_id, p.erasures,
      p.archived_at is not null as is_archived,
      (select row_to_json(s) from source s) as source,
      (
        select json_agg(json_build_object(
          'key', o.idempotency_key, 'request_hash', encode(o.request_hash, 'hex'), 'response', o.response,
          'awaited_turn_id', o.awaited_turn_id, 'awaited_batch_id', o.awaited_batch_id
        ))
        from boxcar.operations o
        where o.project_id = p.id
          and o.idempotency_key = any (
            r.keys
              || r.own_keys
              || array(
                select '${AGENT_KEYS}' || s.id || ':' || k
                from source s
                cross join unnest(r.own_keys) as k
                where not s.is_operator
              )
          )
      ) as operations,
      (
        select json_agg(json_build_object(
          'profile_id', f.id, 'name', f.name, 'version', f.version, 'box_id', f.box_id, 'tags', f.tags,
          'worker_target', f.worker_target, 'max_steps', f.max_steps, 'is_capped', f.max_tokens is not null,
          'is_full_view', f.view is not null, 'selector', f.selector
        ))
        from boxcar.profiles f
        where f.project_id = p.id and f.name = any (r.profile_names) and f.is_current
      ) as profiles,
      ${hasParents ? PARENT_COLUMNS : 'null::json as parent, null::json as chain'}
    from p
  ) o`;

// Submissions from outside have no caller to look up. Their statement omits these parts, so Postgres has nothing to prepare for them.
const OPENINGS = statement(openingsText(false));
const CALLED_OPENINGS = statement(openingsText(true));

interface CallerRow extends pg.QueryResultRow {
  n: number;
  project_id: ProjectId;
  project_version: string;
  limits: ProjectLimits;
  operator_agent_id: AgentId;
  erasures: number;
  is_archived: boolean;
  source: {
    id: AgentId;
    name: string;
    version: string;
    is_operator: boolean;
    policy: DelegationPolicy | null;
  } | null;
  operations:
    | {
        key: string;
        request_hash: string;
        response: JsonValue;
        awaited_turn_id: TurnId | null;
        awaited_batch_id: BatchId | null;
      }[]
    | null;
  profiles: ProfileDbRow[] | null;
  parent: {
    turn_id: TurnId;
    run_id: RunId;
    agent_id: AgentId;
    channel_id: string;
    status: TurnStatus;
    depth: number;
    budget_id: string | null;
    priority: number;
    context_box_id: BoxId;
    output_box_id: BoxId;
  } | null;
  chain: ChainLink[] | null;
}

export interface CallerRequest {
  /** The id or the name of the project. */
  readonly project: string;
  readonly sourceAgentId?: AgentId | undefined;
  readonly sourceAgentName?: string | undefined;
  readonly idempotencyKey: string;
  /** True when the caller has chosen the key. */
  readonly isOwnKey?: boolean | undefined;
  readonly parentTurnId?: TurnId | undefined;
  /** Profiles whose current versions are also needed. */
  readonly profileNames: readonly string[];
}

/** Requests of one caller, which differ only in their keys. */
interface CallerGroup {
  readonly record: Readonly<Record<string, unknown>>;
  readonly keys: string[];
  readonly ownKeys: string[];
}

function groupByCaller(requests: readonly CallerRequest[]): {
  groups: readonly CallerGroup[];
  groupOf: readonly number[];
} {
  const groups: CallerGroup[] = [];
  const known = new Map<string, number>();
  const groupOf = requests.map((request) => {
    const record = {
      project: request.project,
      project_id: tryParseId<'project'>(request.project) ?? null,
      source_id: request.sourceAgentId ?? null,
      source_names: request.sourceAgentName === undefined ? null : agentNamesOf(request.sourceAgentName),
      parent_turn_id: request.parentTurnId ?? null,
      profile_names: request.profileNames,
    };
    const caller = JSON.stringify(record);
    const index = known.get(caller) ?? groups.push({ record, keys: [], ownKeys: [] }) - 1;
    known.set(caller, index);
    groups[index]?.[request.isOwnKey === true ? 'ownKeys' : 'keys'].push(request.idempotencyKey);
    return index;
  });
  return { groups, groupOf };
}

/**
 * Loads all facts about their callers that submissions need, in one statement.
 *
 * @returns One result per request, in order; undefined when the project does not exist.
 */
export async function loadCallers(
  db: Queryable,
  requests: readonly CallerRequest[],
): Promise<readonly (CallerFacts | undefined)[]> {
  const { groups, groupOf } = groupByCaller(requests);
  const hasParents = requests.some((request) => request.parentTurnId !== undefined);
  const rows = await run<CallerRow>(db, hasParents ? CALLED_OPENINGS : OPENINGS, [
    JSON.stringify(groups.map(({ record, keys, ownKeys }) => ({ ...record, keys, own_keys: ownKeys }))),
  ]);
  const openings = new Map(rows.map((row) => [row.n - 1, readOpening(row)]));
  return requests.map((request, index) => {
    const found = openings.get(groupOf[index] ?? -1);
    if (found === undefined) return undefined;
    const { opening, operations } = found;
    const { idempotencyKey } = request;
    const { source } = opening;
    if (request.isOwnKey !== true || source === undefined || source.isOperator)
      return {
        ...opening,
        key: idempotencyKey,
        operation: operations.get(idempotencyKey),
        unnamed: undefined,
      };
    const key = `${AGENT_KEYS}${source.agentId}:${idempotencyKey}`;
    return { ...opening, key, operation: operations.get(key), unnamed: operations.get(idempotencyKey) };
  });
}

function readOpening(row: CallerRow): {
  readonly opening: Omit<CallerFacts, 'key' | 'operation' | 'unnamed'>;
  readonly operations: ReadonlyMap<string, FirstOperation>;
} {
  const { source, parent } = row;
  const opening = {
    projectId: row.project_id,
    projectVersion: row.project_version,
    limits: row.limits,
    operatorId: row.operator_agent_id,
    erasures: row.erasures,
    isArchived: row.is_archived,
    source:
      source === null
        ? undefined
        : {
            agentId: source.id,
            name: source.name,
            version: source.version,
            isOperator: source.is_operator,
            policy: source.policy ?? undefined,
          },
    profiles: new Map((row.profiles ?? []).map((profile) => [profile.name, toProfileRow(profile)])),
    parent:
      parent === null
        ? undefined
        : {
            turnId: parent.turn_id,
            runId: parent.run_id,
            agentId: parent.agent_id,
            channelId: parent.channel_id,
            status: parent.status,
            depth: parent.depth,
            budgetId: parent.budget_id,
            priority: parent.priority,
            contextBoxId: parent.context_box_id,
            outputBoxId: parent.output_box_id,
            chain: row.chain ?? [],
          },
  };
  const operations = new Map(
    (row.operations ?? []).map((operation) => [
      operation.key,
      {
        requestHash: operation.request_hash,
        response: operation.response,
        awaitedTurnId: operation.awaited_turn_id,
        awaitedBatchId: operation.awaited_batch_id,
      },
    ]),
  );
  return { opening, operations };
}
