/**
 * The tree below a turn, for people who watch it: one statement per look, for any size of the tree. Lists a few children of each parent,
 * those in progress first, and counts the other children by status.
 */
import {
  type AgentId,
  type BatchId,
  type BatchKind,
  type BatchStatus,
  type Closing,
  type ErrorBody,
  KernelError,
  type RunId,
  type TicketId,
  type ToolCallId,
  type TurnId,
  type TurnStatus,
} from '@boxcar/kernel';
import type pg from 'pg';
import { runRetrying, statement } from '../db/index.js';
import type { WaitLine } from '../work/index.js';
import type { TurnCost, Usage } from './turn-report.js';

/** A call without a result, and its wait. */
export interface OpenCall {
  readonly tool_call_id: ToolCallId;
  readonly name: string;
  readonly deadline_at: string;
  /** The turn whose end is the result of the call. */
  readonly awaited_turn_id: TurnId | null;
  /** The request for approval that has not been decided yet. */
  readonly ticket_id: TicketId | null;
  /** The batch whose end is the result of the call. */
  readonly batch: { readonly batch_id: BatchId; readonly total: number; readonly remaining: number } | null;
}

type Counts = Partial<Record<TurnStatus, number>>;

/** A batch that a listed turn, or an external caller, made or waits for. */
export interface TreeBatch {
  readonly batch_id: BatchId;
  /** Null: an external caller made the batch, and its turns are roots of the run. */
  readonly turn_id: TurnId | null;
  readonly kind: BatchKind;
  readonly status: BatchStatus;
  readonly total: number;
  readonly remaining: number;
  readonly succeeded: number;
  readonly failed: number;
  readonly min_success: number | null;
  readonly closing: Closing | null;
  readonly deadline_at: string | null;
  /** False: the batch was made with `wait: false`, or by an external caller. */
  readonly is_awaited: boolean;
  /** For a fork_join: its turns in this tree that are not listed, by status. */
  readonly hidden: Readonly<Counts>;
}

export interface TreeNode {
  readonly turn_id: TurnId;
  readonly parent_turn_id: TurnId | null;
  /** The fork_join that made the turn. */
  readonly batch_id: BatchId | null;
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
  /** By the prices at the time of its steps. Steps of an unknown price are left out and counted separately. */
  readonly cost_micros: number;
  /** Steps of models whose price is zero. */
  readonly free_steps: number;
  readonly unpriced_steps: number;
  /** The turn and all turns below it, listed or not. */
  readonly subtree: TurnCost;
  readonly created_at: string;
  readonly ended_at: string | null;
  /** From its acceptance to its end, or to now. */
  readonly duration_ms: number;
  /** False: the turn waits to be run, and no live worker serves its target. */
  readonly has_worker: boolean;
  /** The number of calls without a result; a few of them are listed by name. */
  readonly pending_calls: number;
  readonly open_calls: readonly OpenCall[];
  /** For a turn that is suspended without an open call: its wait. */
  readonly wait: WaitLine | null;
  /** For a queued turn: the earlier turn of the same agent. */
  readonly behind_turn_id: TurnId | null;
  readonly error: ErrorBody | null;
  /** Children without a batch that are not listed, by status; their own children are not listed either. */
  readonly hidden: Readonly<Counts>;
}

export interface TurnTree {
  readonly run_id: RunId;
  /** The requested turn, or the first root of the run. */
  readonly root_turn_id: TurnId;
  /** All turns at the top, by status, and those of them that are without a batch and not listed. */
  readonly roots: { readonly by_status: Readonly<Counts>; readonly hidden: Readonly<Counts> };
  /** The time by the server's clock. */
  readonly at: string;
  /** Totals of the whole tree, listed or not. */
  readonly totals: {
    readonly turns: number;
    readonly open: number;
    readonly steps: number;
    readonly usage: Usage;
    readonly cost_micros: number;
    readonly free_steps: number;
    readonly unpriced_steps: number;
    readonly by_status: Readonly<Counts>;
  };
  /** Parents before their children, siblings by age. */
  readonly nodes: readonly TreeNode[];
  /** By age. */
  readonly batches: readonly TreeBatch[];
}

// The planner settings of the pool make it read by keys; `offset 0` keeps each look-up a single one. `between` is used because for `=`
// Postgres expects the children of the largest parent for every turn, and reads the whole table for each. Takes no locks: turns, batches
// and sums are of one snapshot, so they agree with each other while the run goes on.
const TREE = statement(`
  with recursive /* tree.tree */
  tree as (
    select t.id, t.parent_turn_id, 0 as level, array[t.id] as path
    from unnest($1::uuid[]) as u(id)
    cross join lateral (select x.id, x.parent_turn_id from boxcar.turns x where x.id = u.id offset 0) t
    union all
    select c.id, c.parent_turn_id, p.level + 1, p.path || c.id
    from tree p
    cross join lateral (
      select t.id, t.parent_turn_id
      from boxcar.turns t
      where t.parent_turn_id between p.id and p.id
      offset 0
    ) c
  ),
  turn as materialized (
    select tree.level, tree.path, t.*, m.id as batch_id, u.input_tokens, u.output_tokens, u.cost_micros, u.free_steps,
      u.unpriced_steps
    from tree
    cross join lateral (select x.* from boxcar.turns x where x.id = tree.id offset 0) t
    cross join lateral (
      select
        coalesce(sum((s.usage->>'input_tokens')::bigint), 0)::float8 as input_tokens,
        coalesce(sum((s.usage->>'output_tokens')::bigint), 0)::float8 as output_tokens,
        coalesce(sum((s.usage->>'cost_micros')::bigint), 0)::float8 as cost_micros,
        count(*) filter (where s.usage->'free' = 'true')::int as free_steps,
        count(*) filter (where s.usage is not null and s.usage->'cost_micros' is null)::int as unpriced_steps
      from boxcar.steps s
      where s.turn_id = tree.id
      offset 0
    ) u
    left join lateral (
      select b.id
      from boxcar.batches b
      where t.batch_ids is not null
        and b.id = any (t.batch_ids)
        and b.kind = 'fork_join'
        and b.turn_id is not distinct from t.parent_turn_id
      limit 1
    ) m on true
  ),
  live as (
    select t.id, t.parent_turn_id
    from turn t
    where t.ended_at is null
    union
    select p.id, p.parent_turn_id
    from live l
    cross join lateral (select t.id, t.parent_turn_id from boxcar.turns t where t.id = l.parent_turn_id offset 0) p
    where l.id <> all ($1)
  ),
  ranked as (
    select
      t.*,
      row_number() over (
        partition by case when t.level > 0 then t.parent_turn_id end
        order by case t.status
          when 'running' then 0
          when 'suspended' then 1
          when 'dispatched' then 2
          when 'queued' then 4
          else case when l.id is not null then 1 when t.status = 'success' then 5 else 3 end
        end, t.id
      ) as place,
      l.id is not null as is_live
    from turn t
    left join (select distinct id from live) l on l.id = t.id
  ),
  chosen as (
    select *
    from ranked
    where place <= $2 or (level = 0 and cardinality($1::uuid[]) = 1)
    order by level > 0, is_live desc, level, place
    limit $3
  ),
  joined as (
    select b.*
    from (
      select k.batch_id as id
      from chosen c
      cross join lateral (
        select x.batch_id
        from boxcar.tool_calls x
        where c.pending_calls > 0
          and x.turn_id = c.id
          and x.status = 'pending'
          and x.batch_id is not null
        offset 0
      ) k
      union
      select t.batch_id
      from turn t
      where t.batch_id is not null and (t.level = 0 or t.parent_turn_id in (select id from chosen))
    ) x
    cross join lateral (select b.* from boxcar.batches b where b.id = x.id offset 0) b
  )
  select
    (select min(run_id::text) from turn) as run_id,
    now() as at,
    (
      select json_object_agg(
        status,
        json_build_object(
          'turns', n, 'steps', steps, 'input', input, 'output', output, 'cost', cost, 'free', free,
          'unpriced', unpriced
        )
      )
      from (
        select status, count(*) as n, sum(step_count) as steps, sum(input_tokens) as input,
          sum(output_tokens) as output, sum(cost_micros) as cost, sum(free_steps) as free,
          sum(unpriced_steps) as unpriced
        from turn
        group by status
      ) s
    ) as totals,
    (
      select json_object_agg(
        s.id,
        json_build_object(
          'input_tokens', s.input, 'output_tokens', s.output, 'cost_micros', s.cost, 'free_steps', s.free,
          'unpriced_steps', s.unpriced
        )
      )
      from (
        select p.id, sum(t.input_tokens) as input, sum(t.output_tokens) as output, sum(t.cost_micros) as cost,
          sum(t.free_steps) as free, sum(t.unpriced_steps) as unpriced
        from turn t
        cross join lateral unnest(t.path) as p(id)
        where (p.id in (select id from chosen)) is true
        group by p.id
      ) s
    ) as subtrees,
    (
      select json_agg(json_build_array(parent_turn_id, batch_id, status, n))
      from (
        select
          case when t.level > 0 then t.parent_turn_id end as parent_turn_id,
          t.batch_id, t.status, count(*) as n
        from turn t
        where t.level = 0 or t.parent_turn_id in (select id from chosen)
        group by 1, 2, 3
      ) c
    ) as children,
    (
      select json_agg(json_build_object(
        'batch_id', b.id, 'turn_id', b.turn_id, 'kind', b.kind, 'status', b.status, 'total', cardinality(b.turn_ids),
        'remaining', b.remaining, 'succeeded', b.succeeded, 'failed', b.failed, 'min_success', b.min_success,
        'closing', b.closing, 'deadline_at', b.deadline_at, 'is_awaited', b.tool_call_id is not null
      ) order by b.id)
      from joined b
    ) as batches,
    (
      select json_agg(json_build_object(
        'turn_id', c.id, 'parent_turn_id', c.parent_turn_id, 'batch_id', c.batch_id, 'status', c.status,
        'agent_id', c.agent_id, 'agent', a.name, 'profile', f.name, 'profile_version', f.version,
        'primitive', c.primitive, 'worker_target', c.worker_target, 'steps', c.step_count, 'max_steps', c.max_steps,
        'usage', json_build_object('input_tokens', c.input_tokens, 'output_tokens', c.output_tokens),
        'cost_micros', c.cost_micros, 'free_steps', c.free_steps, 'unpriced_steps', c.unpriced_steps,
        'created_at', c.created_at, 'ended_at', c.ended_at,
        'duration_ms', round(extract(epoch from coalesce(c.ended_at, now()) - c.created_at) * 1000),
        'has_worker', c.status not in ('queued', 'dispatched')
          or exists (select from boxcar.workers w where w.lease_until > now() and w.targets @> array[c.worker_target]),
        'pending_calls', c.pending_calls, 'open_calls', k.calls, 'wait', z.wait, 'behind_turn_id', b.id,
        'error', c.error
      ) order by c.level, c.id)
      from chosen c
      cross join lateral (select x.name from boxcar.agents x where x.id = c.agent_id offset 0) a
      cross join lateral (select x.name, x.version from boxcar.profiles x where x.id = c.profile_id offset 0) f
      cross join lateral (
        select coalesce(json_agg(json_build_object(
          'tool_call_id', o.id, 'name', o.name, 'deadline_at', o.deadline_at, 'awaited_turn_id', o.awaited,
          'ticket_id', (
            select a.id
            from boxcar.approvals a
            where a.tool_call_id = o.id and a.status = 'pending' and a.voided_at is null
            limit 1
          ),
          'batch', o.batch
        ) order by o.ordinal), '[]') as calls
        from (
          select
            x.id, x.name, x.deadline_at, x.ordinal,
            (select w.id from boxcar.turns w where w.parent_tool_call_id = x.id and w.is_awaited limit 1) as awaited,
            (
              select json_build_object('batch_id', b.id, 'total', cardinality(b.turn_ids), 'remaining', b.remaining)
              from boxcar.batches b
              where b.id = x.batch_id
            ) as batch
          from boxcar.tool_calls x
          where c.pending_calls > 0 and x.turn_id = c.id and x.status = 'pending'
          order by x.ordinal
          limit 3
          offset 0
        ) o
      ) k
      left join lateral (
        select json_build_object(
          'kind', w.kind, 'due_at', w.due_at, 'provider', w.provider, 'detail', w.detail
        ) as wait
        from boxcar.waits w
        where c.status = 'suspended' and w.turn_id = c.id
        offset 0
      ) z on true
      left join lateral (
        select x.id
        from boxcar.turns x
        where c.status = 'queued'
          and x.agent_id = c.agent_id
          and x.status in ('dispatched', 'running', 'suspended')
        limit 1
      ) b on true
    ) as nodes`);

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
        readonly free: number;
        readonly unpriced: number;
      }
    >
  >;
  /** The children of each listed turn, and of the top, by batch. */
  readonly children: readonly (readonly [TurnId | null, BatchId | null, TurnStatus, number])[] | null;
  readonly batches: readonly Omit<TreeBatch, 'hidden'>[] | null;
  readonly subtrees: Readonly<Record<string, TreeNode['subtree']>>;
  readonly nodes: readonly Omit<TreeNode, 'hidden' | 'subtree'>[];
}

type Place = BatchId | TurnId | 'top';

/** Lists a node only below a listed parent. Nodes that are not listed are counted at their batch, otherwise at their parent. */
function listNodes(
  rootIds: ReadonlySet<TurnId>,
  row: TreeRow,
  ownBatchId: BatchId | undefined,
): Pick<TurnTree, 'nodes' | 'batches'> & { readonly hiddenRoots: Counts } {
  const hidden = new Map<Place, Counts>();
  for (const [parentId, batchId, status, n] of row.children ?? []) {
    const place = batchId ?? parentId ?? 'top';
    hidden.set(place, { ...hidden.get(place), [status]: n });
  }
  const listed = new Set<TurnId>();
  const nodes = row.nodes.filter((node) => {
    const { turn_id: id, parent_turn_id: parentId, batch_id: batchId, status } = node;
    const isRoot = rootIds.has(id);
    if (!isRoot && (parentId === null || !listed.has(parentId))) return false;
    const counts = hidden.get(batchId ?? (isRoot ? null : parentId) ?? 'top');
    if (counts !== undefined) counts[status] = (counts[status] ?? 1) - 1;
    listed.add(id);
    return true;
  });
  const hiddenAt = (place: Place): Counts =>
    Object.fromEntries(Object.entries(hidden.get(place) ?? {}).filter(([, n]) => n > 0));
  return {
    nodes: nodes.map((node) => ({
      ...node,
      subtree: row.subtrees[node.turn_id] ?? {
        ...node.usage,
        cost_micros: 0,
        free_steps: 0,
        unpriced_steps: 0,
      },
      hidden: hiddenAt(node.turn_id),
    })),
    batches: (row.batches ?? [])
      .filter(
        ({ turn_id: turnId, batch_id: batchId }) =>
          turnId === null || rootIds.has(turnId) || listed.has(turnId) || batchId === ownBatchId,
      )
      .map((batch) => ({ ...batch, hidden: hiddenAt(batch.batch_id) })),
    hiddenRoots: hiddenAt('top'),
  };
}

/**
 * The tree below a turn, or the trees below the roots of a run. One statement.
 *
 * @param roots - Turns of one run, none below another.
 * @param options.batchId - The batch of the roots; it is listed above them.
 * @param options.siblings - The maximum number of listed children per parent. Default 20.
 * @param options.nodes - The maximum number of listed nodes. Default 500.
 * @throws KernelError `not_found`.
 */
export async function loadTree(
  pool: pg.Pool,
  roots: TurnId | readonly TurnId[],
  options: {
    readonly batchId?: BatchId;
    readonly siblings?: number | undefined;
    readonly nodes?: number;
  } = {},
): Promise<TurnTree> {
  const rootIds = typeof roots === 'string' ? [roots] : roots;
  const [row] = await runRetrying<TreeRow>(pool, TREE, [
    rootIds,
    options.siblings ?? 20,
    options.nodes ?? 500,
  ]);
  const [rootId] = rootIds;
  if (row === undefined || row.run_id === null || rootId === undefined)
    throw new KernelError('not_found', { message: `No turn '${rootId}'.`, details: { turn_id: rootId } });
  const { nodes, batches, hiddenRoots } = listNodes(new Set(rootIds), row, options.batchId);
  const byStatus: Counts = {};
  for (const [parentId, , status, n] of row.children ?? [])
    if (parentId === null) byStatus[status] = (byStatus[status] ?? 0) + n;
  const parts = Object.entries(row.totals).map(([status, part]) => ({ status, ...part }));
  const sum = (pick: (part: (typeof parts)[number]) => number): number =>
    parts.reduce((total, part) => total + pick(part), 0);
  const openStatuses = ['queued', 'dispatched', 'running', 'suspended'];
  return {
    run_id: row.run_id,
    root_turn_id: rootId,
    roots: { by_status: byStatus, hidden: hiddenRoots },
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
      free_steps: sum((part) => part.free),
      unpriced_steps: sum((part) => part.unpriced),
      by_status: Object.fromEntries(parts.map((part) => [part.status, part.turns])),
    },
    nodes,
    batches,
  };
}
