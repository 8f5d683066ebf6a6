import { isJsonObject, type JsonValue } from '@boxcar/kernel';
import type pg from 'pg';
import { rowCounts } from '../row-counts.js';
import { type Facts, readFacts } from './facts.js';
import type { Scenario } from './scenario.js';

/** The result of a scenario, without values that differ from run to run: ids, times, attempts, workers. */
export interface Outcome {
  /** Each turn as text, sorted. */
  readonly turns: readonly string[];
  /** `turns` of a run in which no process has died. In such a run, the answer of a tool that may run once is known. */
  readonly exactTurns: readonly string[];
  /** How often a turn has lost its worker, or could not be run. */
  readonly losses: number;
  /** Rows by table, except attempts, late answers, notes of failures, and slots at providers. */
  readonly rows: Readonly<Record<string, number>>;
  readonly facts: Facts;
}

interface Entry {
  readonly kind: string;
  readonly name: string | null;
  readonly step: number | null;
  readonly type: string | null;
  readonly role: string | null;
  readonly content: JsonValue;
}

interface TurnRow {
  /** The target of the handoff that the turn serves. */
  readonly serves: string | null;
  readonly head: Readonly<Record<string, JsonValue>>;
  readonly context: JsonValue;
  readonly tape: readonly Entry[];
}

const TURNS = `
  select
    (select h.target_agent from boxcar.handoffs h where h.turn_id = t.id) as serves,
    json_build_object(
      'profile', p.name, 'below', pp.name, 'primitive', t.primitive, 'depth', t.depth, 'is_awaited', t.is_awaited,
      'status', t.status, 'error', t.error->>'code', 'steps', t.step_count, 'pending', t.pending_calls,
      'deliverable', d.content
    ) as head,
    (
      select json_agg(k.content order by u.ordinality)
      from boxcar.boxes b
      cross join lateral unnest(b.card_ids) with ordinality u(id, ordinality)
      join boxcar.cards k on k.id = u.id
      where b.id = t.context_box_id
    ) as context,
    (
      select json_agg(json_build_object(
        'kind', e.kind, 'name', e.payload->>'name', 'step', e.step, 'type', k.type, 'role', k.role,
        'content', k.content
      ) order by e.position)
      from boxcar.tape_entries e
      left join boxcar.cards k on k.id = e.card_id
      where e.box_id = t.output_box_id and e.turn_id = t.id
    ) as tape
  from boxcar.turns t
  join boxcar.profiles p on p.id = t.profile_id
  left join boxcar.cards d on d.id = t.deliverable_card_id
  left join boxcar.turns pt on pt.id = t.parent_turn_id
  left join boxcar.profiles pp on pp.id = pt.profile_id`;

interface HandoffRow {
  readonly head: Readonly<Record<string, JsonValue>>;
  readonly events: readonly string[];
}

const HANDOFFS = `
  select
    json_build_object(
      'source', case when h.parent_turn_id is null then h.source_agent end,
      'target', h.target_agent, 'platform', h.platform, 'is_awaited', h.is_awaited, 'phase', h.phase,
      'error', h.error->>'code',
      'ticket', (select a.status from boxcar.approvals a where a.id = h.ticket_id),
      'is_served', h.turn_id is not null, 'is_joined', h.joined_to is not null,
      'sent', (
        select json_agg(d.status)
        from (
          -- A question that another attempt has asked again is told again.
          select distinct on (
            e.handoff_id, e.type, e.data->>'question', w.push_config,
            case when e.type <> 'handoff.question' then w.id end
          ) w.status
          from boxcar.webhook_deliveries w
          join boxcar.handoff_events e on e.handoff_id = w.event_handoff_id and e.seq = w.event_seq
          where w.handoff_id = h.id
          order by e.handoff_id, e.type, e.data->>'question', w.push_config,
            case when e.type <> 'handoff.question' then w.id end,
            e.seq desc
        ) d
      ),
      'is_told', h.notifies is false
    ) as head,
    (select json_agg(e.type order by e.seq) from boxcar.handoff_events e where e.handoff_id = h.id) as events
  from boxcar.handoffs h`;

/** The time of a handoff is part of its message. */
const TIME = /\d{4}-\d\d-\d\dT[\d:.]+Z/g;
const UUID = /[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/g;

/** The number of attempts is part of messages, too. The length of ids in tokens varies. */
const toText = (value: unknown): string =>
  JSON.stringify(value)
    .replace(UUID, '<id>')
    .replace(TIME, '<time>')
    .replace(/attempt \d+/g, 'attempt <n>')
    .replace(/"tokens_(before|after)":\d+/g, '"tokens_$1":<n>')
    .replace(/about \d+ tokens/g, 'about <n> tokens');

/** The outcome of a tool that may run only once may be unknown; the model is told so. */
function withoutResult(content: JsonValue, once: ReadonlySet<string>): JsonValue {
  if (!isJsonObject(content)) return content;
  const { kind, name, status, error } = content;
  if (kind !== 'tool_result' || typeof name !== 'string' || !once.has(name)) return content;
  const code = error !== undefined && isJsonObject(error) ? error.code : null;
  return status === 'success' || code === 'outcome_unknown' ? { kind, name, settled: true } : content;
}

/**
 * The same for a handoff to a function that may run only once. After an attempt of a dead process, or an attempt that was too slow for its
 * lease, there is another attempt; the invariants count attempts.
 */
function describeHandoff({ head, events }: HandoffRow, once: ReadonlySet<string> | 'exactly'): string {
  const isOpen = once !== 'exactly' && once.has(String(head.target));
  return toText({
    ...head,
    ...(isOpen ? { phase: 'ended' } : {}),
    events: events
      .filter((type) => type !== 'handoff.started')
      // Another attempt asks its question again.
      .filter((type, at, all) => type !== 'handoff.question' || all[at - 1] !== type)
      .map((type) => (isOpen ? type.replace(/\.(completed|failed)$/, '.ended') : type)),
  });
}

/** The part of the outcome that is known of a turn that served such a function: the turn has ended. */
const withoutEnd = (head: TurnRow['head']): TurnRow['head'] => ({
  ...head,
  status: 'ended',
  error: null,
  steps: null,
  deliverable: null,
});

/** Sorts results of concurrent calls, which are on the tape in the order of their arrival. */
function inCallOrder(tape: readonly Entry[], once: ReadonlySet<string>): string[] {
  const lines = tape.map((entry) => ({
    isResult: entry.kind === 'tool_result',
    text: toText({ ...entry, content: withoutResult(entry.content, once) }),
  }));
  const sorted: string[] = [];
  let results: string[] = [];
  for (const { isResult, text } of lines) {
    if (isResult) {
      results.push(text);
      continue;
    }
    sorted.push(...results.sort(), text);
    results = [];
  }
  return [...sorted, ...results.sort()];
}

/**
 * The names that may run only once in a scenario: its tools, tools of servers, functions that serve handoffs, and tools that its profiles
 * declare for external workers.
 */
function onceOnly({ tools = [], served = [], agents = [], profiles }: Scenario): string[] {
  const declared = profiles.flatMap((profile) => (isJsonObject(profile) ? (profile.tools ?? []) : []));
  const outside = Array.isArray(declared) ? declared.filter(isJsonObject) : [];
  return [...tools, ...served, ...agents, ...outside].flatMap(({ name, retry }) =>
    retry === 'never' && typeof name === 'string' ? [name] : [],
  );
}

export async function readOutcome(pool: pg.Pool, scenario: Scenario, driven: JsonValue): Promise<Outcome> {
  const once = new Set(onceOnly(scenario));
  // A call that hands off to such a function has the outcome of the function.
  if (scenario.agents?.some(({ retry }) => retry === 'never') === true) once.add('handoff');
  const { rows } = await pool.query<TurnRow>(TURNS);
  const { rows: handoffs } = await pool.query<HandoffRow>(HANDOFFS);
  const describeTurn = ({ serves, head, context, tape }: TurnRow, unknown: ReadonlySet<string>): string => {
    const isOpen = serves !== null && unknown.has(serves);
    return [
      toText(isOpen ? withoutEnd(head) : head),
      `  context ${toText(context)}`,
      ...(isOpen ? [] : inCallOrder(tape ?? [], unknown).map((line) => `  ${line}`)),
    ].join('\n');
  };
  const describe = (unknown: ReadonlySet<string> | 'exactly'): string[] =>
    [
      ...rows.map((row) => describeTurn(row, unknown === 'exactly' ? new Set() : unknown)),
      ...handoffs.map((row) => `handoff ${describeHandoff(row, unknown)}`),
    ].sort();
  const losses = await pool.query<{ n: number }>('select count(*)::int as n from public.losses');
  // A fault adds attempts, their texts, their lines in the logs of handoffs, notifications of repeated questions (above, `sent`), late
  // answers and notes of failures. A slot at a provider is given back after the last commit, or is removed by the next turn that looks for
  // a slot, so a run can end before its last slot is removed.
  const {
    steps: _attempts,
    evidence: _late,
    sweep_failures: _notes,
    provider_slots: _places,
    handoff_events: _numbered,
    turn_parts: _voided,
    webhook_deliveries: _sent,
    ...counts
  } = await rowCounts(pool);
  return {
    turns: describe(once),
    exactTurns: describe('exactly'),
    losses: losses.rows[0]?.n ?? 0,
    rows: counts,
    facts: await readFacts(pool, driven),
  };
}

/** Calls of tools that may run only once but ran more often. */
export async function readRepeatedEffects(pool: pg.Pool, scenario: Scenario): Promise<string[]> {
  const once = onceOnly(scenario);
  const { rows } = await pool.query<{ what: string }>(
    `
      select name || ' of call ' || tool_call_id || ' ran ' || count(*) || ' times' as what
      from public.effects
      where name = any ($1)
      group by name, tool_call_id
      having count(*) > 1`,
    [once],
  );
  return rows.map(({ what }) => what);
}
