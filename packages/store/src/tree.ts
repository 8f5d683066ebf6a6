/**
 * The tree below a turn, for people who watch it: one statement per look, whatever its size. A few children of each
 * parent are listed, those under way first, and of the others how many there are of which status.
 */
import {
  type AgentId,
  type ErrorBody,
  KernelError,
  type RunId,
  type ToolCallId,
  type TurnId,
  type TurnStatus,
  tryParseId,
} from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, runRetrying, statement } from './db.js';
import type { Usage } from './inspect.js';
import type { WaitLine } from './waits.js';

const MIN_PREFIX = 8;

/** A call without a result, and what it waits for. */
export interface OpenCall {
  readonly tool_call_id: ToolCallId;
  readonly name: string;
  readonly deadline_at: string;
  /** The turn whose end is its result. */
  readonly awaited_turn_id: TurnId | null;
}

export interface TreeNode {
  readonly turn_id: TurnId;
  readonly parent_turn_id: TurnId | null;
  readonly status: TurnStatus;
  readonly agent_id: AgentId;
  readonly agent: string;
  readonly profile: string;
  readonly profile_version: number;
  readonly primitive: string;
  readonly worker_target: string;
  readonly steps: number;
  readonly max_steps: number;
  readonly usage: Usage;
  /** By the prices of when its steps were made; what nobody knew the price of is left out and counted beside it. */
  readonly cost_micros: number;
  readonly unpriced_steps: number;
  /** The turn and all below it, listed or not. */
  readonly subtree: Usage & { readonly cost_micros: number; readonly unpriced_steps: number };
  readonly created_at: string;
  readonly ended_at: string | null;
  /** From its acceptance to its end, or to now. */
  readonly duration_ms: number;
  /** False: it waits to be run, and no living worker serves its target. */
  readonly has_worker: boolean;
  /** Calls without a result; a few of them by name. */
  readonly pending_calls: number;
  readonly open_calls: readonly OpenCall[];
  /** Suspended without an open call: what it waits for. */
  readonly wait: WaitLine | null;
  /** Queued: the turn of the same agent that comes first. */
  readonly behind_turn_id: TurnId | null;
  readonly error: ErrorBody | null;
  /** Children that are not listed, by status; their own children are not listed either. */
  readonly hidden: Readonly<Partial<Record<TurnStatus, number>>>;
}

export interface TurnTree {
  readonly run_id: RunId;
  /** The turn that was asked for; first among the nodes. */
  readonly root_turn_id: TurnId;
  /** The server's clock. */
  readonly at: string;
  /** Of the whole tree, listed or not. */
  readonly totals: {
    readonly turns: number;
    readonly open: number;
    readonly steps: number;
    readonly usage: Usage;
    readonly cost_micros: number;
    readonly unpriced_steps: number;
    readonly by_status: Readonly<Partial<Record<TurnStatus, number>>>;
  };
  /** Parents before their children, siblings by age. */
  readonly nodes: readonly TreeNode[];
}

const FIND = statement(`
  with p as (select id from boxcar.projects where name = $1 or id = $2 order by id = $2 desc limit 1)
  select (select id from p) as project_id, (
    select json_agg(turn_id) from (
      (select t.id as turn_id from boxcar.turns t where t.project_id = (select id from p) and t.id between $3 and $4 order by t.id limit 4)
      union
      (select r.root_turn_id from boxcar.runs r where r.project_id = (select id from p) and r.id between $3 and $4 order by r.id limit 4)
    ) found) as turn_ids`);

/**
 * The turn that a run or turn id names: a run stands for its root turn.
 *
 * @param ref - The id, or at least the first eight digits of it.
 * @throws KernelError `not_found`; `bad_request` when it is no id, or fits several turns.
 */
export async function findTreeRoot(
  db: Queryable,
  ref: string,
  options: { readonly project: string },
): Promise<TurnId> {
  const digits = ref.toLowerCase().replaceAll('-', '');
  const [from, to] = ['0', 'f'].map((fill) => tryParseId<'turn'>(digits.padEnd(32, fill)));
  if (digits.length < MIN_PREFIX || from === undefined || to === undefined) {
    throw new KernelError('bad_request', {
      message: `'${ref.slice(0, 80)}' is no id of a run or turn and no beginning of one (${MIN_PREFIX} hex digits at least).`,
      details: { field: 'run' },
    });
  }
  const { project } = options;
  const [row] = await run<{ project_id: string | null; turn_ids: TurnId[] | null }>(db, FIND, [
    project,
    tryParseId<'project'>(project) ?? null,
    from,
    to,
  ]);
  if (row === undefined || row.project_id === null) {
    throw new KernelError('not_found', {
      message: `No project '${project}'.`,
      details: { project_id: project },
    });
  }
  const [first, ...others] = row.turn_ids ?? [];
  if (first === undefined) {
    throw new KernelError('not_found', {
      message: `No run or turn '${ref}' in project '${project}'.`,
      details: { turn_id: ref, project_id: row.project_id },
    });
  }
  if (others.length > 0) {
    throw new KernelError('bad_request', {
      message: `'${ref}' is the beginning of several ids (${[first, ...others].slice(0, 3).join(', ')}${others.length > 2 ? ', …' : ''}); give more digits.`,
      details: { field: 'run', turn_ids: [first, ...others] },
    });
  }
  return first;
}

// The planner settings of the pool lead it by keys; `offset 0` keeps each look-up one.
const TREE = statement(`
  with recursive tree as (
    select t.id, t.parent_turn_id, 0 as level, array[t.id] as path from boxcar.turns t where t.id = $1
    union all
    select c.id, c.parent_turn_id, p.level + 1, p.path || c.id from tree p
      cross join lateral (select t.id, t.parent_turn_id from boxcar.turns t where t.parent_turn_id = p.id offset 0) c
  ),
  turn as materialized (
    select tree.level, tree.path, t.*, u.input_tokens, u.output_tokens, u.cost_micros, u.unpriced_steps from tree
      cross join lateral (select x.* from boxcar.turns x where x.id = tree.id offset 0) t
      cross join lateral (
        select coalesce(sum((s.usage->>'input_tokens')::bigint), 0)::float8 as input_tokens, coalesce(sum((s.usage->>'output_tokens')::bigint), 0)::float8 as output_tokens,
          coalesce(sum((s.usage->>'cost_micros')::bigint), 0)::float8 as cost_micros, count(*) filter (where s.usage is not null and s.usage->'cost_micros' is null)::int as unpriced_steps
        from boxcar.steps s where s.turn_id = tree.id offset 0) u
  ),
  live as (
    select t.id, t.parent_turn_id from turn t where t.ended_at is null
    union
    select p.id, p.parent_turn_id from live l
      cross join lateral (select t.id, t.parent_turn_id from boxcar.turns t where t.id = l.parent_turn_id offset 0) p
    where l.id <> $1
  ),
  ranked as (
    select t.*, row_number() over (partition by t.parent_turn_id order by
      case t.status when 'running' then 0 when 'suspended' then 1 when 'dispatched' then 2 when 'queued' then 4 else
        case when l.id is not null then 1 when t.status = 'success' then 5 else 3 end end, t.id) as place, l.id is not null as is_live
    from turn t left join (select distinct id from live) l on l.id = t.id
  ),
  chosen as (
    select * from ranked where place <= $2 or id = $1 order by id <> $1, is_live desc, level, place limit $3
  )
  select (select min(run_id::text) from turn) as run_id, now() as at,
    (select json_object_agg(status, json_build_object('turns', n, 'steps', steps, 'input', input, 'output', output, 'cost', cost, 'unpriced', unpriced)) from (
      select status, count(*) as n, sum(step_count) as steps, sum(input_tokens) as input, sum(output_tokens) as output, sum(cost_micros) as cost, sum(unpriced_steps) as unpriced from turn group by status) s) as totals,
    (select json_object_agg(s.id, json_build_object('input_tokens', s.input, 'output_tokens', s.output, 'cost_micros', s.cost, 'unpriced_steps', s.unpriced)) from (
      select p.id, sum(t.input_tokens) as input, sum(t.output_tokens) as output, sum(t.cost_micros) as cost, sum(t.unpriced_steps) as unpriced
      from turn t cross join lateral unnest(t.path) as p(id) where (p.id in (select id from chosen)) is true group by p.id) s) as subtrees,
    (select json_agg(json_build_array(parent_turn_id, status, n)) from (
      select t.parent_turn_id, t.status, count(*) as n from turn t where t.id <> $1 and t.parent_turn_id in (select id from chosen) group by 1, 2) c) as children,
    (select json_agg(json_build_object(
        'turn_id', c.id, 'parent_turn_id', c.parent_turn_id, 'status', c.status, 'agent_id', c.agent_id, 'agent', a.name, 'profile', f.name, 'profile_version', f.version,
        'primitive', c.primitive, 'worker_target', c.worker_target, 'steps', c.step_count, 'max_steps', c.max_steps,
        'usage', json_build_object('input_tokens', c.input_tokens, 'output_tokens', c.output_tokens), 'cost_micros', c.cost_micros, 'unpriced_steps', c.unpriced_steps,
        'created_at', c.created_at, 'ended_at', c.ended_at, 'duration_ms', round(extract(epoch from coalesce(c.ended_at, now()) - c.created_at) * 1000),
        'has_worker', c.status not in ('queued', 'dispatched') or exists (select from boxcar.workers w where w.lease_until > now() and w.targets @> array[c.worker_target]),
        'pending_calls', c.pending_calls, 'open_calls', k.calls, 'wait', z.wait, 'behind_turn_id', b.id, 'error', c.error) order by c.level, c.id)
      from chosen c
        cross join lateral (select x.name from boxcar.agents x where x.id = c.agent_id offset 0) a
        cross join lateral (select x.name, x.version from boxcar.profiles x where x.id = c.profile_id offset 0) f
        cross join lateral (
          select coalesce(json_agg(json_build_object('tool_call_id', o.id, 'name', o.name, 'deadline_at', o.deadline_at, 'awaited_turn_id', o.awaited) order by o.ordinal), '[]') as calls
          from (select x.id, x.name, x.deadline_at, x.ordinal, (select w.id from boxcar.turns w where w.parent_tool_call_id = x.id and w.is_awaited limit 1) as awaited
            from boxcar.tool_calls x where c.pending_calls > 0 and x.turn_id = c.id and x.status = 'pending' order by x.ordinal limit 3 offset 0) o) k
        left join lateral (
          select json_build_object('kind', w.kind, 'due_at', w.due_at, 'provider', w.provider, 'detail', w.detail) as wait
          from boxcar.waits w where c.status = 'suspended' and w.turn_id = c.id offset 0) z on true
        left join lateral (
          select x.id from boxcar.turns x where c.status = 'queued' and x.agent_id = c.agent_id and x.status in ('dispatched', 'running', 'suspended') limit 1) b on true
    ) as nodes`);

type Counts = Partial<Record<TurnStatus, number>>;

interface TreeRow extends pg.QueryResultRow {
  readonly run_id: RunId | null;
  readonly at: Date;
  readonly totals: Partial<
    Record<
      TurnStatus,
      {
        readonly turns: number;
        readonly steps: number;
        readonly input: number;
        readonly output: number;
        readonly cost: number;
        readonly unpriced: number;
      }
    >
  >;
  readonly children: readonly (readonly [TurnId, TurnStatus, number])[] | null;
  readonly subtrees: Readonly<Record<string, TreeNode['subtree']>>;
  readonly nodes: readonly Omit<TreeNode, 'hidden' | 'subtree'>[];
}

/** Lists a node only below a listed parent; whatever is not listed is counted at its parent. */
function listNodes(rootId: TurnId, row: TreeRow): TreeNode[] {
  const hidden = new Map<TurnId, Counts>();
  for (const [parentId, status, n] of row.children ?? [])
    hidden.set(parentId, { ...hidden.get(parentId), [status]: n });
  const listed = new Set<TurnId>();
  const nodes = row.nodes.filter((node) => {
    const { turn_id: id, parent_turn_id: parentId, status } = node;
    if (id !== rootId) {
      if (parentId === null || !listed.has(parentId)) return false;
      const counts = hidden.get(parentId);
      if (counts !== undefined) counts[status] = (counts[status] ?? 1) - 1;
    }
    listed.add(id);
    return true;
  });
  return nodes.map((node) => ({
    ...node,
    subtree: row.subtrees[node.turn_id] ?? { ...node.usage, cost_micros: 0, unpriced_steps: 0 },
    hidden: Object.fromEntries(
      Object.entries(hidden.get(node.turn_id) ?? {}).filter(([, n]) => n > 0),
    ) as Counts,
  }));
}

/**
 * Looks at the tree below a turn. One statement.
 *
 * @param options.siblings - Children of one parent that are listed at most. Default 20.
 * @param options.nodes - Nodes that are listed at most. Default 500.
 * @throws KernelError `not_found`.
 */
export async function loadTree(
  pool: pg.Pool,
  rootId: TurnId,
  options: { readonly siblings?: number; readonly nodes?: number } = {},
): Promise<TurnTree> {
  const [row] = await runRetrying<TreeRow>(pool, TREE, [
    rootId,
    options.siblings ?? 20,
    options.nodes ?? 500,
  ]);
  if (row === undefined || row.run_id === null)
    throw new KernelError('not_found', { message: `No turn '${rootId}'.`, details: { turn_id: rootId } });
  const parts = Object.entries(row.totals).map(([status, part]) => ({ status, ...part }));
  const sum = (pick: (part: (typeof parts)[number]) => number): number =>
    parts.reduce((total, part) => total + pick(part), 0);
  const openStatuses = ['queued', 'dispatched', 'running', 'suspended'];
  return {
    run_id: row.run_id,
    root_turn_id: rootId,
    at: row.at.toISOString(),
    totals: {
      turns: sum((part) => part.turns),
      open: sum((part) => (openStatuses.includes(part.status) ? part.turns : 0)),
      steps: sum((part) => part.steps),
      usage: {
        input_tokens: sum((part) => part.input),
        output_tokens: sum((part) => part.output),
      },
      cost_micros: sum((part) => part.cost),
      unpriced_steps: sum((part) => part.unpriced),
      by_status: Object.fromEntries(parts.map((part) => [part.status, part.turns])),
    },
    nodes: listNodes(rootId, row),
  };
}
