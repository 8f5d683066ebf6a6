import type { ToolCallId, TurnId } from '@boxcar/kernel';
import type pg from 'pg';
import { runRetrying, statement } from '../db/index.js';

/** An earlier call, of this turn or of a turn on its path to the root. */
export interface EarlierCall extends pg.QueryResultRow {
  readonly guard_hash: string;
  readonly turn_id: TurnId;
  readonly step: number;
  readonly tool_call_id: ToolCallId;
}

// Uses the index of the calls of a turn; the guard has no index of its own.
const REPEATS = statement(`
  with recursive /* repeats.repeats */
  chain as (
    select id, parent_turn_id
    from boxcar.turns
    where id = $1
    union all
    select p.id, p.parent_turn_id
    from chain
    cross join lateral (select id, parent_turn_id from boxcar.turns t where t.id = chain.parent_turn_id offset 0) p
  )
  select encode(k.guard_hash, 'hex') as guard_hash, k.turn_id, k.step, k.id as tool_call_id
  from chain
  cross join lateral (
    select *
    from boxcar.tool_calls k
    where k.turn_id = chain.id
      and k.guard_hash = any (array(select decode(h, 'hex') from unnest($3::text[]) h))
      and (k.turn_id <> $1 or k.step < $2)
    offset 0
  ) k
  order by k.id desc`);

/** The earliest call before this step for each of these hashes. */
export async function findRepeats(
  pool: pg.Pool,
  of: { readonly turnId: TurnId; readonly step: number; readonly hashes: readonly string[] },
): Promise<ReadonlyMap<string, EarlierCall>> {
  const rows = await runRetrying<EarlierCall>(pool, REPEATS, [of.turnId, of.step, of.hashes]);
  return new Map(rows.map((row) => [row.guard_hash, row]));
}
