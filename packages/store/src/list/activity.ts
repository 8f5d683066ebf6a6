/** Recent events, for people who watch: one statement per look, by keys, independent of the size of the database. */
import { type RunId, type ToolCallId, type TurnId, type TurnStatus, tryParseId } from '@boxcar/kernel';
import type pg from 'pg';
import { runRetrying, statement } from '../db/index.js';

interface ActivityOf {
  /** The time by the server's clock, ISO 8601. */
  readonly at: string;
  readonly turn_id: TurnId;
  readonly run_id: RunId;
  readonly agent: string;
  readonly profile: string;
}

export type Activity =
  | (ActivityOf & {
      readonly event: 'turn.submitted';
      readonly primitive: string;
      readonly parent_turn_id: TurnId | null;
    })
  | (ActivityOf & {
      readonly event: 'step.committed';
      readonly step: number;
      readonly attempt: number;
      readonly model: string | null;
      readonly finish_reason: string | null;
      readonly input_tokens: number;
      readonly output_tokens: number;
      readonly model_ms: number | null;
      readonly error_code: string | null;
    })
  | (ActivityOf & {
      readonly event: 'call.started' | 'call.ended';
      readonly tool_call_id: ToolCallId;
      readonly name: string;
      readonly status: string;
      readonly duration_ms: number | null;
      readonly error_code: string | null;
    })
  | (ActivityOf & {
      readonly event: 'turn.ended';
      readonly status: TurnStatus;
      readonly steps: number;
      readonly duration_ms: number;
      readonly error_code: string | null;
    });

/** How far back a look reaches. A transaction may commit a while after the time in its rows. */
const OVERLAP_MS = 5_000;
/** The maximum difference between the clocks of processes that make ids. */
const ID_SKEW_MS = 60_000;
/** A look reads this many of the newest turns, and all turns that were open at the previous look. */
const LIMIT = 1_000;

// $1: the first id; $2: turns known to be open; $3: how far back in milliseconds. Takes no locks: a row that is committed after this look
// has an earlier time, so each look goes back by `OVERLAP_MS` and finds it.
const LOOK = statement(`
  with /* activity.look */
  since as (select now() - $3 * interval '1 millisecond' as at),
  turn as materialized (
    select t.*, a.name as agent, f.name as profile
    from (
      (select id from boxcar.turns where id > $1 order by id desc limit ${LIMIT})
      union
      (select unnest($2::uuid[]))
    ) w
    cross join lateral (select x.* from boxcar.turns x where x.id = w.id offset 0) t
    cross join lateral (select x.name from boxcar.agents x where x.id = t.agent_id offset 0) a
    cross join lateral (select x.name from boxcar.profiles x where x.id = t.profile_id offset 0) f
  ),
  happened as (
    select
      t.created_at as at, 0 as rank, t.id,
      json_build_object(
        'event', 'turn.submitted', 'primitive', t.primitive, 'parent_turn_id', t.parent_turn_id
      ) as what
    from turn t
    where t.created_at >= (select at from since)
    union all
    select
      s.committed_at, 1, t.id,
      json_build_object(
        'event', 'step.committed', 'step', s.step, 'attempt', s.attempt, 'model', s.model,
        'finish_reason', s.finish_reason,
        'input_tokens', coalesce((s.usage->>'input_tokens')::float8, 0),
        'output_tokens', coalesce((s.usage->>'output_tokens')::float8, 0),
        'model_ms', s.model_ms, 'error_code', s.error->>'code'
      )
    from turn t
    cross join lateral (select x.* from boxcar.steps x where x.turn_id = t.id offset 0) s
    where s.committed_at >= (select at from since)
    union all
    select
      e.at, e.rank, t.id,
      json_build_object(
        'event', e.event, 'tool_call_id', k.id, 'name', k.name,
        'status', case e.rank when 2 then 'pending' else k.status end,
        'duration_ms', case e.rank when 3 then round(extract(epoch from k.ended_at - k.created_at) * 1000) end,
        'error_code', case e.rank when 3 then c.content->'error'->>'code' end
      )
    from turn t
    cross join lateral (select x.* from boxcar.tool_calls x where x.turn_id = t.id offset 0) k
    left join lateral (select x.content from boxcar.cards x where x.id = k.result_card_id offset 0) c on true
    cross join lateral (values ('call.started', k.created_at, 2), ('call.ended', k.ended_at, 3)) e(event, at, rank)
    where e.at >= (select at from since)
    union all
    select
      t.ended_at, 4, t.id,
      json_build_object(
        'event', 'turn.ended', 'status', t.status, 'steps', t.step_count,
        'duration_ms', round(extract(epoch from t.ended_at - t.created_at) * 1000),
        'error_code', t.error->>'code'
      )
    from turn t
    where t.ended_at >= (select at from since)
  )
  select
    now() as at,
    (select coalesce(json_agg(id), '[]') from turn where ended_at is null) as open,
    (
      select coalesce(json_agg(json_build_object(
        'at', h.at, 'turn_id', t.id, 'run_id', t.run_id, 'agent', t.agent, 'profile', t.profile, 'what', h.what
      ) order by h.at, h.rank, t.id), '[]')
      from happened h
      join turn t on t.id = h.id
    ) as activities`);

const OPEN = statement(`
  select /* activity.open */
    now() as at,
    (
      select coalesce(json_agg(id), '[]')
      from (
        (select id from boxcar.turns where status in ('dispatched', 'running', 'suspended') limit ${LIMIT})
        union
        (select id from boxcar.turns where status = 'queued' limit ${LIMIT})
      ) o
    ) as open`);

interface LookRow extends pg.QueryResultRow {
  readonly at: Date;
  readonly open: readonly TurnId[];
  readonly activities: readonly (ActivityOf & { readonly what: Readonly<Record<string, unknown>> })[];
}

const keyOf = (activity: Activity): string => {
  const part = 'tool_call_id' in activity ? activity.tool_call_id : 'step' in activity ? activity.step : '';
  return `${activity.event} ${activity.turn_id} ${part} ${'attempt' in activity ? activity.attempt : ''}`;
};

/** The first id that a clock can make at this time. */
function firstIdAt(ms: number): string {
  const id = tryParseId(`${Math.max(Math.floor(ms), 0).toString(16).padStart(12, '0')}70008000000000000000`);
  return id ?? '00000000-0000-7000-8000-000000000000';
}

/** Follows the events since its creation, and reports each event once. */
export class ActivityFeed {
  readonly #pool: pg.Pool;
  #open: readonly TurnId[] = [];
  #seen = new Map<string, number>();
  #startedAt: number | undefined;
  #lookedAt = 0;

  constructor(pool: pg.Pool) {
    this.#pool = pool;
  }

  /** The events since the last look. The first look only finds the turns in progress. */
  async readNew(): Promise<readonly Activity[]> {
    if (this.#startedAt === undefined) {
      const [row] = await runRetrying<LookRow>(this.#pool, OPEN, []);
      this.#open = row?.open ?? [];
      this.#startedAt = this.#lookedAt = row?.at.getTime() ?? Date.now();
      return [];
    }
    const [row] = await runRetrying<LookRow>(this.#pool, LOOK, [
      firstIdAt(this.#lookedAt - ID_SKEW_MS),
      this.#open,
      OVERLAP_MS,
    ]);
    if (row === undefined) return [];
    this.#open = row.open;
    this.#lookedAt = row.at.getTime();
    const news: Activity[] = [];
    for (const { what, ...of } of row.activities) {
      const activity = { ...of, ...what } as Activity;
      const key = keyOf(activity);
      const at = Date.parse(activity.at);
      if (!this.#seen.has(key) && at >= this.#startedAt) news.push(activity);
      this.#seen.set(key, at);
    }
    for (const [key, at] of this.#seen) if (at < this.#lookedAt - 2 * OVERLAP_MS) this.#seen.delete(key);
    return news;
  }
}
