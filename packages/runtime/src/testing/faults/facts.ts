import type { JsonValue } from '@boxcar/kernel';
import type pg from 'pg';

export interface TurnFact {
  readonly id: string;
  readonly profile: string;
  /** The profile of its parent; null for a root. */
  readonly below: string | null;
  readonly instruction: string | null;
  readonly status: string;
  readonly error: string | null;
  readonly steps: number;
  readonly text: string | null;
}

export interface BatchFact {
  readonly kind: string;
  readonly status: string;
  readonly closing: string | null;
  /** The statuses of its members, by index. */
  readonly members: readonly string[];
  /** The answer, by index. Null when there is no answer. */
  readonly results: readonly { readonly status: string; readonly error?: { readonly code: string } }[] | null;
}

/** The state of turns and batches, for scenarios with more than one right outcome. */
export interface Facts {
  readonly turns: readonly TurnFact[];
  readonly batches: readonly BatchFact[];
  /** The value that `drive` returned. */
  readonly driven: JsonValue;
}

const TURN_FACTS = `
  select
    t.id, p.name as profile, pp.name as below, t.status, t.error->>'code' as error, t.step_count as steps,
    d.content->>'text' as text,
    (
      select k.content->>'text'
      from boxcar.boxes b
      cross join lateral unnest(b.card_ids) as u(id)
      join boxcar.cards k on k.id = u.id
      where b.id = t.context_box_id and k.type = 'task.instruction'
      limit 1
    ) as instruction
  from boxcar.turns t
  join boxcar.profiles p on p.id = t.profile_id
  left join boxcar.cards d on d.id = t.deliverable_card_id
  left join boxcar.turns pt on pt.id = t.parent_turn_id
  left join boxcar.profiles pp on pp.id = pt.profile_id
  order by t.id`;

const BATCH_FACTS = `
  select
    b.kind, b.status, b.closing,
    (
      select json_agg(t.status order by u.ordinality)
      from unnest(b.turn_ids) with ordinality u(id, ordinality)
      join boxcar.turns t on t.id = u.id
    ) as members,
    coalesce(
      b.answer::json->'results',
      (
        select c.content::json->'result'->'results'
        from boxcar.tool_calls k
        join boxcar.cards c on c.id = k.result_card_id
        where k.id = b.tool_call_id
      )
    ) as results
  from boxcar.batches b
  order by b.id`;

export async function readFacts(pool: pg.Pool, driven: JsonValue): Promise<Facts> {
  const turns = await pool.query<TurnFact>(TURN_FACTS);
  const batches = await pool.query<BatchFact>(BATCH_FACTS);
  return { turns: turns.rows, batches: batches.rows, driven };
}
