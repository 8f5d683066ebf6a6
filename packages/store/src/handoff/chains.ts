/** Chains of handoffs as whoever drives them sees them. */
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

/** A handoff below a chain. */
export interface ChainStep {
  readonly handoff_id: HandoffId;
  readonly hop: number;
  readonly mode: 'handoff' | 'compensate';
  readonly target_agent: string;
  readonly phase: HandoffPhase;
  readonly result: JsonValue;
  /** It had a result, which is gone. */
  readonly is_erased: boolean;
  readonly error: ErrorBody | null;
}

/** A move of the turn that drives a chain: a call of its tool. */
export interface ChainMoveRow {
  readonly arguments: JsonObject;
  readonly status: string;
  readonly error: ErrorBody | null;
}

export interface ChainRow extends pg.QueryResultRow {
  readonly handoff_id: HandoffId;
  readonly project_id: ProjectId;
  readonly source_agent: string;
  readonly run_id: string | null;
  readonly phase: HandoffPhase;
  /** `{hops}` as it was asked; null after erasure. */
  readonly definition: JsonObject | null;
  /** In the order in which they were made. */
  readonly moves: readonly ChainMoveRow[];
  /** In the order in which they were made. */
  readonly steps: readonly ChainStep[];
}

const loadBy = (label: string, where: string): string => `
  select /* chains.${label} */ c.id as handoff_id, c.project_id, c.source_agent, c.run_id, (select ${PHASE} from boxcar.handoffs h ${ON_TURN} where h.id = c.id) as phase,
    (select d.content->'data' from boxcar.cards d where d.id = c.payload_card_id) as definition,
    coalesce((select json_agg(json_build_object('arguments', k.arguments, 'status', k.status, 'error', r.content->'error') order by k.step, k.ordinal)
      from boxcar.tool_calls k left join boxcar.cards r on r.id = k.result_card_id where k.turn_id = c.turn_id), '[]') as moves,
    coalesce((select json_agg(json_build_object('handoff_id', h.id, 'hop', h.hop, 'mode', h.mode, 'target_agent', h.target_agent, 'phase', ${PHASE}, 'result', ${CARD_VALUE('d')}, 'is_erased', d.id is not null and d.content is null, 'error', coalesce(h.error, t.error)) order by h.created_at, h.id)
      from boxcar.handoffs h ${ON_TURN} left join boxcar.cards d on d.id = t.deliverable_card_id where h.parent_handoff_id = c.id and h.hop is not null), '[]') as steps
  from boxcar.handoffs c where ${where} and c.mode = 'chain'`;

const OF_TURN = statement(loadBy('of_turn', 'c.turn_id = $1'));

/** The chain that a turn drives; undefined: it drives none. */
export const findChainOfTurn = async (db: Queryable, turnId: TurnId): Promise<ChainRow | undefined> =>
  (await run<ChainRow>(db, OF_TURN, [turnId]))[0];

const FIND = statement(loadBy('find', 'c.id = $1 and c.project_id = $2'));

export const findChain = async (
  db: Queryable,
  of: { readonly handoffId: HandoffId; readonly projectId: ProjectId },
): Promise<ChainRow | undefined> => (await run<ChainRow>(db, FIND, [of.handoffId, of.projectId]))[0];

const ROLLED_BACK = statement(`
  with /* chains.rolled_back */ c as (
    update boxcar.handoffs h set phase = 'rolled_back', event_count = h.event_count + 1
    where h.id = $1 and h.mode = 'chain' and h.phase = 'compensation_failed'
    returning h.id, h.event_count as seq
  )
  insert into boxcar.handoff_events (handoff_id, seq, type, data)
  select c.id, c.seq, 'handoff.rolled_back', jsonb_build_object('phase', 'rolled_back') from c returning handoff_id`);

/** Records that the last compensation of a chain has been made up for. @returns False: it was recorded before. */
export const markRolledBack = async (db: Queryable, handoffId: HandoffId): Promise<boolean> =>
  (await run(db, ROLLED_BACK, [handoffId])).length > 0;
