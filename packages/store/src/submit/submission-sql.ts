/** Builds the statement that writes submissions: one text for each combination of tables. */
import { type Statement, statement } from '../db/index.js';
import { THIS_BUILD } from '../rows/index.js';
import { SPAWN_COLUMNS } from './submission-columns.js';
import * as part from './submission-parts.js';
import { heldPart, type Parts, type SubmissionRecords } from './submission-parts.js';

export type { SubmissionRecords } from './submission-parts.js';

/** Writes the turns as `decided` says. It is the only part that writes a status. */
const TURNS = `
  turns as (
    insert into boxcar.turns (
      id, project_id, run_id, agent_id, profile_id, parent_turn_id, parent_tool_call_id, is_awaited, depth,
      primitive, channel_id, max_steps, context_box_id, output_box_id, worker_target, deadline_at, traceparent,
      batch_ids, priority, status, epoch, dispatched_at, budget_id, allotted_tokens, allotted_cost,
      allotted_steps, spent_tokens, spent_cost, is_settled, format, notifies, is_woken, own_view_anchor,
      own_view_position, selector, warm_turn_id
    )
    select
      id, project_id, run_id, agent_id, profile_id, parent_turn_id, parent_tool_call_id, is_awaited, depth,
      primitive, channel_id, max_steps, context_box_id, output_box_id, worker_target,
      least(
        statement_timestamp() + deadline_ms * interval '1 millisecond',
        budget_deadline_at,
        case
          when is_waited_for then (select p.deadline_at from boxcar.turns p where p.id = decided.parent_turn_id)
        end
      ),
      traceparent, batch_ids, coalesce(priority, 0),
      case when is_ready then 'dispatched' else 'queued' end,
      case when is_ready then 1 else 0 end,
      case when is_ready then statement_timestamp() end,
      budget_id, allotted_tokens, allotted_cost, allotted_steps,
      case when is_metered then 0 end,
      case when is_metered then 0 end,
      case when budget_id is not null then false end,
      coalesce(format, ${THIS_BUILD.turnFormat}),
      coalesce(
        is_told,
        case
          when is_reuse then (
            select true
            from boxcar.sessions s
            where s.agent_id = decided.agent_id and s.notifies and s.status = 'active'
          )
        end
      ),
      is_woken, own_view_anchor, own_view_position, selector, warm_turn_id
    from decided
  )`;

interface TextKind {
  readonly isOne: boolean;
  /** True when facts that were read earlier about the caller decided at least one submission. */
  readonly hasSeen: boolean;
  /** True when the commit notifies a worker of the turn. */
  readonly hints: boolean;
}

const statements = new Map<string, Statement>();

/** The statement that writes these records. There is one text per combination of tables, so that a connection prepares each text once. */
export function prepareSubmission(
  records: SubmissionRecords,
  { hints }: Pick<TextKind, 'hints'>,
): { prepared: Statement; values: unknown[] } {
  const present = Object.values(records).filter((rows: readonly object[]) => rows.length > 0);
  const isOne = isOneTurn(records);
  const kind = { isOne, hasSeen: wasSeen(records.operations), hints: hints && isOne };
  const key = `${kind.isOne} ${kind.hasSeen} ${kind.hints} ${Object.values(records)
    .map((rows: readonly object[]) => (rows.length > 0 ? '1' : '0'))
    .join('')}`;
  const known = statements.get(key);
  const prepared = known ?? statement(buildText(records, kind));
  if (known === undefined) statements.set(key, prepared);
  return { prepared, values: present.map((rows: readonly object[]) => JSON.stringify(rows)) };
}

/** True for a single turn with at most one operation and one fence: then the statement never has to match one list with another. */
const isOneTurn = ({ turns, operations, fences }: SubmissionRecords): boolean =>
  turns.length === 1 && operations.length <= 1 && fences.length <= 1;

const wasSeen = (operations: readonly object[]): boolean =>
  operations.some((operation) => 'seen_project' in operation);

function buildText(records: SubmissionRecords, { isOne, hasSeen, hints }: TextKind): string {
  const present = Object.keys(records).filter((name) => records[name as keyof SubmissionRecords].length > 0);
  const has = (name: keyof SubmissionRecords): boolean => present.includes(name);
  const parameterOf = (name: keyof SubmissionRecords): number => present.indexOf(name) + 1;
  const isGated = has('fences') || has('operations');
  // Hashed: `is true` keeps the condition from becoming a join, which would go through both lists for every row.
  const accept = isOne ? '(select true from accepted)' : '(x.item in (select item from accepted)) is true';
  const of: Parts = {
    isOne,
    hasSeen,
    has,
    parameterOf,
    from: (name, columns) => `json_to_recordset($${parameterOf(name)}) as x(${columns})`,
    gate: isGated ? `where ${accept}` : '',
  };
  const texts: readonly (string | false)[] = [
    has('fences') && has('spawns') && part.spawnRuns(of),
    has('fences') && part.fence(of),
    has('waits') && part.openCalls(of),
    has('operations') && part.closedProjects(of),
    has('operations') && hasSeen && part.staleCallers(of),
    has('operations') && part.operations(of),
    !has('operations') && has('fences') && `accepted as (select item from ${heldPart(of)})`,
    has('cards') && part.cards(of),
    has('contextBoxes') && part.contextBoxes(of),
    has('tapes') && part.tapes(of),
    has('agents') && part.agents(of),
    has('runs') && part.runs(of),
    has('budgets') && part.budgets(of),
    has('grants') && part.grants(of),
    has('batches') && part.batches(of),
    has('turns') && part.decided(of),
    has('turns') && TURNS,
    hints && part.hinted,
    has('handoffs') && part.handoffs(of),
    has('spawns') && part.spawnCounts(of),
    has('waits') && part.waits(of),
  ];
  const given = texts.filter((text) => text !== false);
  const ctes = given.length > 0 ? `with /* submission-sql.build */ ${given.join(',\n')}\n` : '';
  return `${ctes}${answerOf(of, { isGated, hints })}`;
}

function answerOf(
  { has, from, hasSeen }: Parts,
  of: { readonly isGated: boolean; readonly hints: boolean },
): string {
  const full = has('spawns')
    ? `(
        select json_agg(x.item)
        from spawn_runs r
        join ${from('spawns', SPAWN_COLUMNS)} on x.run_id = r.id
        where r.turn_count + x.n > x.max_turns
      )`
    : 'null::json';
  const answered = has('waits')
    ? '(select json_agg(item) from fence where (item in (select item from open_calls)) is not true)'
    : 'null::json';
  const closed = has('operations') ? '(select json_agg(item) from closed)' : 'null::json';
  const stale = hasSeen ? '(select json_agg(item) from stale)' : 'null::json';
  const accepted = of.isGated ? '(select json_agg(item) from accepted)' : 'null::json';
  // Reads the values that `turns` has written. A join with its result would go through both lists.
  const turns = has('turns')
    ? `(
        select coalesce(json_agg(json_build_object(
          'turn_id', d.id,
          'status', case when d.is_ready then 'dispatched' else 'queued' end,
          'epoch', case when d.is_ready then 1 else 0 end,
          'worker_target', d.worker_target, 'priority', d.ring_priority
        )), '[]')
        from decided d
      )`
    : "'[]'::json";
  return `
    select
      ${accepted} as accepted,
      ${turns} as turns,
      ${full} as full,
      ${answered} as answered,
      ${closed} as closed,
      ${stale} as stale${of.hints ? ', (select count(*) from hinted) as hints' : ''}`;
}
