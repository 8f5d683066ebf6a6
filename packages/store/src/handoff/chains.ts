/** Chains of handoffs, as read by the code that drives them. */
import type {
  ErrorBody,
  HandoffId,
  HandoffPhase,
  JsonObject,
  JsonValue,
  ProjectId,
  TurnId,
} from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement } from '../db/index.js';
import { CARD_VALUE, ON_TURN, PHASE } from './handoffs.js';

/** A handoff below a chain. Its results are read only by the move that needs them. */
export interface ChainStep {
  readonly handoff_id: HandoffId;
  readonly hop: number;
  readonly mode: 'handoff' | 'compensate';
  readonly target_agent: string;
  readonly phase: HandoffPhase;
  readonly error: ErrorBody | null;
}

/** A move of the turn that drives a chain: a call of its tool. */
export interface ChainMoveRow {
  readonly arguments: JsonObject;
  readonly status: string;
  readonly error: ErrorBody | null;
}

/** A requested hop, without its task. */
export interface ChainHopRow {
  readonly target_agent: string;
  readonly has_compensation: boolean;
}

export interface ChainRow extends pg.QueryResultRow {
  readonly handoff_id: HandoffId;
  readonly project_id: ProjectId;
  readonly source_agent: string;
  readonly run_id: string | null;
  readonly phase: HandoffPhase;
  /** Null after erasure. */
  readonly hops: readonly ChainHopRow[] | null;
  /** In the order in which they were made. */
  readonly moves: readonly ChainMoveRow[];
  /** In the order in which they were made. */
  readonly steps: readonly ChainStep[];
}

// Only a failed call has an error; the results of other calls may be large, so they are not read. Takes no locks: only the turn of the
// chain makes its steps, and the process that holds this turn reads them.
const loadBy = (label: string, where: string): string => `
  select /* chains.${label} */
    c.id as handoff_id, c.project_id, c.source_agent, c.run_id,
    (select ${PHASE} from boxcar.handoffs h ${ON_TURN} where h.id = c.id) as phase,
    (
      select json_agg(json_build_object(
        'target_agent', e.hop->>'target_agent', 'has_compensation', e.hop->'compensate' is not null
      ) order by e.n)
      from boxcar.cards d
      cross join json_array_elements(d.content->'data'->'hops') with ordinality as e(hop, n)
      where d.id = c.payload_card_id
    ) as hops,
    coalesce((
      select json_agg(json_build_object(
        'arguments', k.arguments, 'status', k.status,
        'error', case when k.status <> 'success' then r.content->'error' end
      ) order by k.step, k.ordinal)
      from boxcar.tool_calls k
      left join boxcar.cards r on r.id = k.result_card_id
      where k.turn_id = c.turn_id
    ), '[]') as moves,
    coalesce((
      select json_agg(json_build_object(
        'handoff_id', h.id, 'hop', h.hop, 'mode', h.mode, 'target_agent', h.target_agent, 'phase', ${PHASE},
        'error', coalesce(h.error, t.error)
      ) order by h.created_at, h.id)
      from boxcar.handoffs h
      ${ON_TURN}
      where h.parent_handoff_id = c.id and h.hop is not null
    ), '[]') as steps
  from boxcar.handoffs c
  where ${where} and c.mode = 'chain'`;

const OF_TURN = statement(loadBy('of_turn', 'c.turn_id = $1'));

/** The chain that a turn drives; undefined when it drives no chain. */
export const findChainOfTurn = async (db: Queryable, turnId: TurnId): Promise<ChainRow | undefined> =>
  (await run<ChainRow>(db, OF_TURN, [turnId]))[0];

const FIND = statement(loadBy('find', 'c.id = $1 and c.project_id = $2'));

export const findChain = async (
  db: Queryable,
  of: { readonly handoffId: HandoffId; readonly projectId: ProjectId },
): Promise<ChainRow | undefined> => (await run<ChainRow>(db, FIND, [of.handoffId, of.projectId]))[0];

/** The data for one move of a chain: the request of its hop, and the result that the hop receives. */
export interface ChainMatter extends pg.QueryResultRow {
  readonly handoff_id: HandoffId;
  readonly source_agent: string;
  readonly run_id: string | null;
  /** False after erasure. */
  readonly is_whole: boolean;
  /** Null: the hop does not exist. */
  readonly asked: JsonObject | null;
  /** The handoff that has given the result; null when no handoff has. */
  readonly given_by: HandoffId | null;
  /** Also null while the handoff that gives it has not completed. */
  readonly result: JsonValue;
  /** The handoff had a result, which was erased. */
  readonly is_erased: boolean | null;
}

const matterOf = (label: string, where: string): string => `
  select /* chains.${label} */ c.id as handoff_id, c.source_agent, c.run_id, p.hops is not null as is_whole,
    p.hops->($2::int - 1) as asked, g.id as given_by, g.result, g.is_erased
  from boxcar.handoffs c
  left join boxcar.cards pc on pc.id = c.payload_card_id
  cross join lateral (select pc.content->'data'->'hops' as hops) p
  left join lateral (
    select
      h.id,
      case when ${PHASE} = 'completed' then ${CARD_VALUE('d')} end as result,
      d.id is not null and d.content is null as is_erased
    from boxcar.handoffs h
    ${ON_TURN}
    left join boxcar.cards d on d.id = t.deliverable_card_id
    where h.parent_handoff_id = c.id
      and h.mode = 'handoff'
      and h.hop = coalesce($3, json_array_length(p.hops))
    order by h.created_at desc, h.id desc
    limit 1
  ) g on true
  where ${where} and c.mode = 'chain'`;

const MATTER_OF_TURN = statement(matterOf('matter_of_turn', 'c.turn_id = $1'));
const MATTER = statement(matterOf('matter', 'c.id = $1'));

/**
 * @param of.hop - The hop whose request is wanted; null: no request.
 * @param of.resultOf - The hop whose result is wanted; null: the last hop.
 */
export async function findChainMatter(
  db: Queryable,
  of: ({ readonly turnId: TurnId } | { readonly handoffId: HandoffId }) & {
    readonly hop: number | null;
    readonly resultOf: number | null;
  },
): Promise<ChainMatter | undefined> {
  const [text, id] = 'turnId' in of ? [MATTER_OF_TURN, of.turnId] : [MATTER, of.handoffId];
  return (await run<ChainMatter>(db, text, [id, of.hop, of.resultOf]))[0];
}

const ROLLED_BACK = statement(`
  with /* chains.rolled_back */
  c as (
    update boxcar.handoffs h
    set phase = 'rolled_back', event_count = h.event_count + 1
    where h.id = $1 and h.mode = 'chain' and h.phase = 'compensation_failed'
    returning h.id, h.event_count as seq
  )
  insert into boxcar.handoff_events (handoff_id, seq, type, data)
  select c.id, c.seq, 'handoff.rolled_back', jsonb_build_object('phase', 'rolled_back')
  from c
  returning handoff_id`);

/** Records that a chain whose compensation had failed is rolled back after all. @returns False when it was recorded before. */
export const markRolledBack = async (db: Queryable, handoffId: HandoffId): Promise<boolean> =>
  (await run(db, ROLLED_BACK, [handoffId])).length > 0;
