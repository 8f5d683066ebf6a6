import {
  type AgentId,
  agentNamesOf,
  type BatchId,
  type BoxId,
  type DelegationPolicy,
  type JsonValue,
  type ProjectLimits as KernelLimits,
  type Profile,
  type ProfileId,
  type ProjectId,
  type RunId,
  selectorOfView,
  spellingsOf,
  startOfView,
  type TurnId,
  type TurnStatus,
  tryParseId,
} from '@boxcar/kernel';
import type pg from 'pg';
import type { LoadBoxesOptions } from '../box/index.js';
import { type Queryable, run, statement } from '../db/index.js';

/** A turn on the caller's path to the root, nearest first. */
export interface ChainLink {
  readonly turn_id: TurnId;
  readonly agent_id: AgentId;
  readonly agent_name: string;
  readonly is_awaited: boolean;
}

/** What a project sets for itself; checked where it is used, since rows may have been changed by hand. */
interface ProjectLimits extends Omit<KernelLimits, 'run_budget' | 'prices'> {
  readonly run_budget?: unknown;
}

export interface FirstOperation {
  readonly requestHash: string;
  readonly response: JsonValue;
  readonly awaitedTurnId: TurnId | null;
  readonly awaitedBatchId: BatchId | null;
}

export interface Opening {
  readonly projectId: ProjectId;
  readonly limits: ProjectLimits;
  readonly operatorId: AgentId;
  /** How often cards of the project were erased. */
  readonly erasures: number;
  /** It takes no new submissions. */
  readonly isArchived: boolean;
  /** The agent in whose name the submission comes; undefined = the named one does not exist. */
  readonly source:
    | {
        readonly agentId: AgentId;
        readonly name: string;
        readonly isOperator: boolean;
        readonly policy: DelegationPolicy | undefined;
      }
    | undefined;
  /** The key as it is stored. */
  readonly key: string;
  /** The first answer given under this key, if any. */
  readonly operation: FirstOperation | undefined;
  /**
   * What stands under the key of an agent without its name, where older builds wrote: it is this agent's only if the request is
   * the same, which names the agent.
   */
  readonly unnamed: FirstOperation | undefined;
  /** The current versions of the profiles that were asked for, by name. */
  readonly profiles: ReadonlyMap<string, ProfileRow>;
  readonly parent:
    | {
        readonly turnId: TurnId;
        readonly runId: RunId;
        readonly agentId: AgentId;
        readonly channelId: string;
        readonly status: TurnStatus;
        readonly depth: number;
        /** The account it stands under. */
        readonly budgetId: string | null;
        readonly priority: number;
        readonly contextBoxId: BoxId;
        readonly outputBoxId: BoxId;
        readonly chain: readonly ChainLink[];
      }
    | undefined;
}

/** Its parent waits for turn `t`: for itself, or for a batch it is of. */
const IS_AWAITED = `t.is_awaited or (t.batch_ids is not null and exists (
        select from boxcar.batches b where b.id = any (t.batch_ids) and b.turn_id = t.parent_turn_id and b.tool_call_id is not null and b.status = 'running')) as is_awaited`;

const PARENT_PARTS = `,
    parent as (select t.* from boxcar.turns t join p on p.id = t.project_id where t.id = r.parent_turn_id),
    chain as (
      select t.id as turn_id, t.agent_id, ${IS_AWAITED}, t.parent_turn_id, 0 as n from parent t
      union all
      select t.id, t.agent_id, ${IS_AWAITED}, t.parent_turn_id, c.n + 1 from chain c join boxcar.turns t on t.id = c.parent_turn_id
      where c.n < 1000
    )`;

const PARENT_COLUMNS = `
      (select json_build_object('turn_id', t.id, 'run_id', t.run_id, 'agent_id', t.agent_id, 'channel_id', t.channel_id, 'status', t.status, 'depth', t.depth, 'priority', t.priority, 'budget_id', t.budget_id,
         'context_box_id', t.context_box_id, 'output_box_id', t.output_box_id) from parent t) as parent,
      (select json_agg(json_build_object('turn_id', c.turn_id, 'agent_id', c.agent_id, 'agent_name', a.name, 'is_awaited', c.is_awaited) order by c.n)
         from chain c join boxcar.agents a on a.id = c.agent_id) as chain`;

/** The keys that an agent chooses are its own. Those of the operator, and of the kernel, have no such beginning. */
const AGENT_KEYS = 'agent:';

// One row per caller. Everything hangs on keys handed in, so each part is a look-up of its own (`lateral`), and a part that
// was not asked for finds nothing at once.
const openingsText = (hasParents: boolean): string => `
  select r.n::int as n, o.*
  from rows from (json_to_recordset($1) as (project text, project_id uuid, source_id uuid, source_names text[], parent_turn_id uuid, keys text[], own_keys text[], profile_names text[]))
    with ordinality as r(project, project_id, source_id, source_names, parent_turn_id, keys, own_keys, profile_names, n)
  cross join lateral (
    with recursive p as (
      select * from boxcar.projects where id = r.project_id or name = r.project order by (id = r.project_id) desc nulls last limit 1
    ),
    source as (
      select a.id, a.name, a.id = p.operator_agent_id as is_operator, c.content->'data'->'delegation_policy' as policy
      from p join boxcar.agents a on a.project_id = p.id
        and a.id = coalesce(r.source_id, (select n.id from boxcar.agents n where n.project_id = p.id and n.name = any (r.source_names) order by array_position(r.source_names, n.name) limit 1), case when r.source_names is null then p.operator_agent_id end)
      left join boxcar.profiles f on f.id = a.profile_id
      left join boxcar.cards c on c.id = f.card_id
    )${hasParents ? PARENT_PARTS : ''}
    select p.id as project_id, p.limits, p.operator_agent_id, p.erasures, p.archived_at is not null as is_archived,
      (select row_to_json(s) from source s) as source,
      (select json_agg(json_build_object('key', o.idempotency_key, 'request_hash', encode(o.request_hash, 'hex'), 'response', o.response, 'awaited_turn_id', o.awaited_turn_id, 'awaited_batch_id', o.awaited_batch_id))
         from boxcar.operations o where o.project_id = p.id and o.idempotency_key = any (r.keys || r.own_keys
           || array(select '${AGENT_KEYS}' || s.id || ':' || k from source s cross join unnest(r.own_keys) as k where not s.is_operator))) as operations,
      (select json_agg(json_build_object('profile_id', f.id, 'name', f.name, 'version', f.version, 'box_id', f.box_id, 'tags', f.tags, 'worker_target', f.worker_target, 'max_steps', f.max_steps, 'is_capped', f.max_tokens is not null, 'is_full_view', f.view is not null, 'selector', f.selector))
         from boxcar.profiles f where f.project_id = p.id and f.name = any (r.profile_names) and f.is_current) as profiles,
      ${hasParents ? PARENT_COLUMNS : 'null::json as parent, null::json as chain'}
    from p
  ) o`;

// Who submits from outside has no caller to look up, and Postgres nothing to prepare for one.
const OPENINGS = statement(openingsText(false));
const CALLED_OPENINGS = statement(openingsText(true));

interface OpeningRow extends pg.QueryResultRow {
  n: number;
  project_id: ProjectId;
  limits: ProjectLimits;
  operator_agent_id: AgentId;
  erasures: number;
  is_archived: boolean;
  source: { id: AgentId; name: string; is_operator: boolean; policy: DelegationPolicy | null } | null;
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

export interface OpeningRequest {
  /** Id or name. */
  readonly project: string;
  readonly sourceAgentId?: AgentId | undefined;
  readonly sourceAgentName?: string | undefined;
  readonly idempotencyKey: string;
  /** The caller has chosen the key. */
  readonly isOwnKey?: boolean | undefined;
  readonly parentTurnId?: TurnId | undefined;
  /** Profiles whose current versions are wanted as well. */
  readonly profileNames: readonly string[];
}

/** Requests of one caller, which differ in their keys only. */
interface OpeningGroup {
  readonly record: Readonly<Record<string, unknown>>;
  readonly keys: string[];
  readonly ownKeys: string[];
}

function groupByCaller(requests: readonly OpeningRequest[]): {
  groups: readonly OpeningGroup[];
  groupOf: readonly number[];
} {
  const groups: OpeningGroup[] = [];
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
 * Everything about their callers that submissions need, in one statement.
 *
 * @returns One opening per request, in order; undefined = no such project.
 */
export async function loadOpenings(
  db: Queryable,
  requests: readonly OpeningRequest[],
): Promise<readonly (Opening | undefined)[]> {
  const { groups, groupOf } = groupByCaller(requests);
  const hasParents = requests.some((request) => request.parentTurnId !== undefined);
  const rows = await run<OpeningRow>(db, hasParents ? CALLED_OPENINGS : OPENINGS, [
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

function readOpening(row: OpeningRow): {
  readonly opening: Omit<Opening, 'key' | 'operation' | 'unnamed'>;
  readonly operations: ReadonlyMap<string, FirstOperation>;
} {
  const { source, parent } = row;
  const opening = {
    projectId: row.project_id,
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

/** A profile as delegation needs it. */
export interface ProfileRow {
  readonly profileId: ProfileId;
  readonly name: string;
  readonly version: number;
  readonly boxId: BoxId;
  readonly tags: readonly string[];
  readonly workerTarget: string;
  readonly maxSteps: number;
  /** True when its turns have a token limit of their own. */
  readonly isCapped: boolean;
  /** True when views of its turns show the whole tape. */
  readonly isFullView: boolean;
  /** The selector that makes the prompts of its turns. */
  readonly selector: string | null;
}

interface ProfileDbRow extends pg.QueryResultRow {
  profile_id: ProfileId;
  name: string;
  version: number;
  box_id: BoxId;
  tags: string[];
  worker_target: string;
  max_steps: number;
  is_capped: boolean;
  is_full_view: boolean;
  selector: string | null;
}

const PROFILE_COLUMNS =
  'f.id as profile_id, f.name, f.version, f.box_id, f.tags, f.worker_target, f.max_steps, f.max_tokens is not null as is_capped, f.view is not null as is_full_view, f.selector';

const toProfileRow = (row: ProfileDbRow): ProfileRow => ({
  profileId: row.profile_id,
  name: row.name,
  version: row.version,
  boxId: row.box_id,
  tags: row.tags,
  workerTarget: row.worker_target,
  maxSteps: row.max_steps,
  isCapped: row.is_capped,
  isFullView: row.is_full_view,
  selector: row.selector,
});

const FIND_PROFILES = statement(`
  select ${PROFILE_COLUMNS} from boxcar.profiles f where f.project_id = $1 and f.name = any ($2::text[]) and f.is_current`);

/** Of what is stored by name, what each given name means, whatever its spelling. */
export function byGivenName<T>(
  names: readonly string[],
  stored: ReadonlyMap<string, T>,
  spellings: (name: string) => readonly string[] = spellingsOf,
): ReadonlyMap<string, T> {
  return new Map(
    names.flatMap((name) => {
      const found = spellings(name)
        .map((spelling) => stored.get(spelling))
        .find((value) => value !== undefined);
      return found === undefined ? [] : [[name, found] as const];
    }),
  );
}

/** The current versions of profiles by their names. */
export async function findProfiles(
  db: Queryable,
  projectId: ProjectId,
  names: readonly string[],
): Promise<ReadonlyMap<string, ProfileRow>> {
  const rows = await run<ProfileDbRow>(db, FIND_PROFILES, [projectId, names.flatMap(spellingsOf)]);
  const stored = new Map(rows.map((row) => [row.name, toProfileRow(row)]));
  return byGivenName(names, stored);
}

const FIND_VERSION = statement(`
  select ${PROFILE_COLUMNS} from boxcar.profiles f where f.project_id = $1 and f.name = $2 and f.version = $3`);

/** One version of a profile, current or not. */
export async function findProfileVersion(
  db: Queryable,
  projectId: ProjectId,
  ref: { readonly name: string; readonly version: number },
): Promise<ProfileRow | undefined> {
  const [row] = await run<ProfileDbRow>(db, FIND_VERSION, [projectId, ref.name, ref.version]);
  return row === undefined ? undefined : toProfileRow(row);
}

const FIND_ACTOR = statement(`
  select p.id as project_id, p.operator_agent_id, a.id as agent_id
  from boxcar.projects p left join boxcar.agents a on a.project_id = p.id and (a.id = $3 or a.name = any ($4::text[]))
  where p.id = $1 or p.name = $2
  order by (p.id = $1) desc, (a.id = $3) desc, array_position($4::text[], a.name) limit 1`);

/** A project and one of its agents, each by id or name; undefined = no such project, `agentId` null = no such agent. */
export async function findActor(
  db: Queryable,
  ref: {
    readonly project: string;
    readonly projectId: ProjectId | undefined;
    readonly agent: string;
    readonly agentId: AgentId | undefined;
  },
): Promise<
  | { readonly projectId: ProjectId; readonly operatorId: AgentId; readonly agentId: AgentId | null }
  | undefined
> {
  const [row] = await run<{ project_id: ProjectId; operator_agent_id: AgentId; agent_id: AgentId | null }>(
    db,
    FIND_ACTOR,
    [ref.projectId ?? null, ref.project, ref.agentId ?? null, agentNamesOf(ref.agent)],
  );
  return row === undefined
    ? undefined
    : { projectId: row.project_id, operatorId: row.operator_agent_id, agentId: row.agent_id };
}

export interface AgentRow {
  readonly agentId: AgentId;
  readonly name: string;
  readonly tapeBoxId: BoxId;
  /** The version the agent was made with; agents keep theirs. */
  readonly profile: ProfileRow;
  /** Who made it. */
  readonly ownerAgentId: AgentId | null;
  /** The operator made it. */
  readonly isOperatorMade: boolean;
  /** Anyone whose policy reaches its profile may give it turns. */
  readonly isShared: boolean;
  /** The actor may append to its tape without end. */
  readonly mayAppend: boolean;
}

interface AgentDbRow extends ProfileDbRow {
  agent_id: AgentId;
  agent_name: string;
  tape_box_id: BoxId;
  owner_agent_id: AgentId | null;
  is_operator_made: boolean;
  is_shared: boolean | null;
  may_append: boolean;
}

const agentColumns = (actor: string): string => `
  a.id as agent_id, a.name as agent_name, a.tape_box_id, a.owner_agent_id, a.is_shared,
  coalesce(a.owner_agent_id = (select o.operator_agent_id from boxcar.projects o where o.id = a.project_id), true) as is_operator_made,
  exists (select from boxcar.grants g where g.agent_id = ${actor} and g.box_id = a.tape_box_id and g.mode = 'append' and g.expires_at is null) as may_append,
  ${PROFILE_COLUMNS}`;

const toAgentRow = (row: AgentDbRow): AgentRow => ({
  agentId: row.agent_id,
  name: row.agent_name,
  tapeBoxId: row.tape_box_id,
  profile: toProfileRow(row),
  ownerAgentId: row.owner_agent_id,
  isOperatorMade: row.is_operator_made,
  isShared: row.is_shared === true,
  mayAppend: row.may_append,
});

const FIND_AGENT = statement(`
  select ${agentColumns('$4')}
  from boxcar.agents a join boxcar.profiles f on f.id = a.profile_id
  where a.project_id = $1 and (a.id = $2 or a.name = any ($3::text[]))
  order by (a.id = $2) desc, array_position($3::text[], a.name) limit 1`);

/** An agent by id or name, with its profile; the operator is none. */
export async function findAgent(
  db: Queryable,
  { projectId, actorId }: LoadBoxesOptions,
  ref: { readonly id: AgentId | undefined; readonly name: string },
): Promise<AgentRow | undefined> {
  const [row] = await run<AgentDbRow>(db, FIND_AGENT, [
    projectId,
    ref.id ?? null,
    agentNamesOf(ref.name),
    actorId,
  ]);
  return row && toAgentRow(row);
}

// No key update: rows that refer to the agents (grants, turns of others) are written meanwhile.
const LOCK_AGENTS = statement(`
  with r as (select id from boxcar.runs where id = $2 for no key update)
  select a.id, a.tape_box_id from boxcar.agents a
  where a.id = any ($1::uuid[]) and ($2::uuid is null or (select count(*) from r) > 0) order by a.id for no key update of a`);

/**
 * Serialises queue-or-dispatch decisions about agents; they are locked by id. Turns below another one are filed under the lock
 * of their run, which comes first.
 *
 * @returns The tapes of those that exist and have one.
 */
export async function lockAgents(
  tx: Queryable,
  agentIds: readonly AgentId[],
  runId: RunId | null = null,
): Promise<ReadonlyMap<AgentId, BoxId>> {
  const rows = await run<{ id: AgentId; tape_box_id: BoxId | null }>(tx, LOCK_AGENTS, [agentIds, runId]);
  return new Map(rows.flatMap((row) => (row.tape_box_id === null ? [] : [[row.id, row.tape_box_id]])));
}

const HAS_PROFILE = statement('select id from boxcar.profiles where id = $1 and project_id = $2');

/** Whether the project has this version of a profile. */
export async function hasProfile(
  db: Queryable,
  profileId: ProfileId,
  projectId: ProjectId,
): Promise<boolean> {
  return (await run(db, HAS_PROFILE, [profileId, projectId])).length > 0;
}

const FIND_AGENTS = statement(`
  select ${agentColumns('$4')}
  from boxcar.agents a join boxcar.profiles f on f.id = a.profile_id
  where a.project_id = $1 and (a.id = any ($2::uuid[]) or a.name = any ($3::text[]))`);

/** Agents by ids and names, in no order; what does not exist is left out. */
export async function findAgents(
  db: Queryable,
  { projectId, actorId }: LoadBoxesOptions,
  refs: { readonly ids: readonly AgentId[]; readonly names: readonly string[] },
): Promise<readonly AgentRow[]> {
  return (
    await run<AgentDbRow>(db, FIND_AGENTS, [projectId, refs.ids, refs.names.flatMap(agentNamesOf), actorId])
  ).map(toAgentRow);
}

// The old versions give way first: of one name one version is current.
const INSERT_PROFILES = statement(`
  with wanted as materialized (
    select x.* from json_to_recordset($2) as x(id uuid, name text, box_id uuid, card_id uuid, tags text[], worker_target text, max_steps int, max_tokens bigint, view text, selector text)
  ),
  latest as materialized (
    select w.name, (select max(p.version) from boxcar.profiles p where p.project_id = $1 and p.name = w.name) as version from wanted w
  ),
  old as (
    update boxcar.profiles set is_current = false where project_id = $1 and name = any (array(select name from wanted)) and is_current returning version
  )
  insert into boxcar.profiles (id, project_id, name, version, box_id, card_id, tags, worker_target, max_steps, max_tokens, view, selector, is_current)
  select w.id, $1, w.name, coalesce(l.version, 0) + 1, w.box_id, w.card_id, w.tags, w.worker_target, w.max_steps, w.max_tokens, w.view, w.selector, true
  from wanted w join latest l on l.name = w.name cross join (select count(*) from old) after_old
  returning name, version`);

export interface NewProfile {
  readonly id: ProfileId;
  readonly boxId: BoxId;
  readonly cardId: string;
  readonly profile: Profile;
}

/**
 * Makes profiles the current versions of their names; their boxes and cards must be written in the same transaction. One statement.
 *
 * @param profiles - Each of another name.
 * @returns The new version of each name.
 */
export async function insertProfiles(
  tx: Queryable,
  projectId: ProjectId,
  profiles: readonly NewProfile[],
): Promise<ReadonlyMap<string, number>> {
  const records = profiles.map(({ id, boxId, cardId, profile }) => ({
    id,
    name: profile.name,
    box_id: boxId,
    card_id: cardId,
    tags: profile.tags,
    worker_target: profile.worker_target,
    max_steps: profile.limits.max_steps,
    max_tokens: profile.limits.tokens ?? null,
    view: startOfView(profile.view) === 'full' ? 'full' : null,
    selector: selectorOfView(profile.view),
  }));
  const rows = await run<{ name: string; version: number }>(tx, INSERT_PROFILES, [
    projectId,
    JSON.stringify(records),
  ]);
  return new Map(rows.map((row) => [row.name, row.version]));
}

const CURRENT_PROFILES = statement(`
  select ${PROFILE_COLUMNS}, encode(c.content_hash, 'hex') as content_hash
  from boxcar.profiles f join boxcar.cards c on c.id = f.card_id where f.project_id = $1 and f.name = any ($2::text[]) and f.is_current`);

/** The current versions of these names with the hash of their content, for "new version on change". */
export async function findProfileHashes(
  db: Queryable,
  projectId: ProjectId,
  names: readonly string[],
): Promise<ReadonlyMap<string, ProfileRow & { readonly contentHash: string }>> {
  const rows = await run<ProfileDbRow & { content_hash: string }>(db, CURRENT_PROFILES, [projectId, names]);
  return new Map(rows.map((row) => [row.name, { ...toProfileRow(row), contentHash: row.content_hash }]));
}

const LOCK_PROFILE_NAMES = statement(
  'select pg_advisory_xact_lock(hashtextextended(n, 7)) from unnest($1::text[]) as n',
);

/** Serialises versions of profile names until the transaction ends, in one order for all that ask. */
export async function lockProfileNames(
  tx: Queryable,
  projectId: ProjectId,
  names: readonly string[],
): Promise<void> {
  await run(tx, LOCK_PROFILE_NAMES, [names.map((name) => `${projectId}/${name}`).toSorted()]);
}
