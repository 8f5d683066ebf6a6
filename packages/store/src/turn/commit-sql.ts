/**
 * The statement of a commit. There is one text for each combination of changes that its turns need.
 *
 * S1  The statement changes turns under their locks, then their tapes, in the order of ids.
 * S2  The values that a part needs of a turn travel in the turn's record. So Postgres never joins two lists of a batch by comparing all
 *     their pairs.
 * S3  A turn that commits alone needs neither lists nor an order of locks: its values are parameters. The UPDATE of its row is its
 *     lock, unless a turn whose row or tape is locked must be left out.
 */

import type { BatchId, TurnId } from '@boxcar/kernel';
import { jsonText } from '@boxcar/kernel';
import type pg from 'pg';
import { type Statement, skipping, statement } from '../db/index.js';
import { CARD_COLUMNS, CARD_TARGET, CARD_VALUES, cardRecord } from '../rows/index.js';
import { heldView, heldViewPosition } from '../visible/index.js';
import { LOWER_BATCHES } from './batches.js';
import { FIRST_LOOK } from './call-types.js';
import type { StepCommit } from './step-commit.js';

/** A commit announces the turns that it ends here, as comma-separated ids. The notice is only a hint: the rows decide. */
export const ENDED_CHANNEL = 'boxcar_ended';
/** A NOTIFY payload must stay below 8,000 bytes, or it aborts its transaction. */
const IDS_PER_NOTICE = 200;

/** The values that a commit writes about one turn, by column of the turn's record. */
const COLUMNS = [
  ['turn_id', 'uuid'],
  ['epoch', 'int'],
  ['holder_id', 'uuid'],
  ['entry_count', 'int'],
  ['call_count', 'int'],
  ['empty_replies', 'int'],
  ['step', 'int'],
  ['attempt', 'int'],
  ['model', 'text'],
  ['prompt_hash', 'text'],
  ['toolset_hash', 'text'],
  ['manifest', 'jsonb'],
  ['thought_card_id', 'uuid'],
  ['usage', 'jsonb'],
  ['finish_reason', 'text'],
  ['model_ms', 'int'],
  ['step_error', 'jsonb'],
  ['end_status', 'text'],
  ['deliverable_card_id', 'uuid'],
  ['error', 'jsonb'],
  ['agent_id', 'uuid'],
  ['project_id', 'uuid'],
  ['spent_tokens', 'bigint'],
  ['spent_cost', 'bigint'],
  ['cards', 'json'],
  ['entries', 'json'],
  ['calls', 'json'],
] as const;
type Column = (typeof COLUMNS)[number][0];
const TYPE_OF: ReadonlyMap<Column, string> = new Map(COLUMNS);
type CommitRecord = Readonly<Record<Column, unknown>>;

/** The place from which the parts of a commit read the values that they write. */
interface Source {
  /** The list that the parts read. With `base`, it holds turns whose tapes have been moved. */
  readonly list: string;
  value(column: Column): string;
}

const OF_MANY: Source = { list: 'hd', value: (column) => `hd.${column}` };
/** Each column that the text of a statement uses becomes a parameter, in the order of first use. */
function ofOne(asked: Column[]): Source {
  const value = (column: Column): string => {
    const at = asked.indexOf(column);
    const place = at === -1 ? asked.push(column) : at + 1;
    return `$${place}::${TYPE_OF.get(column)}`;
  };
  return { list: 'up', value };
}

const cardsPart = ({ list, value }: Source): string => `
  cards as (
    insert into ${CARD_TARGET}
    select ${CARD_VALUES}
    from ${list}
    cross join lateral json_to_recordset(${value('cards')}) as x(${CARD_COLUMNS})
  )`;

const entriesPart = ({ list, value }: Source): string => `
  entries as (
    insert into boxcar.tape_entries (box_id, position, kind, card_id, tokens, turn_id, step, author_id)
    select ${list}.output_box_id, ${list}.base + x.n, x.kind, x.card_id, x.tokens, ${value('turn_id')},
      ${value('step')}, ${value('agent_id')}::text
    from ${list}
    cross join lateral json_to_recordset(${value('entries')}) as x(n int, kind text, card_id uuid, tokens int)
  )`;

const closedPart = ({ list, value }: Source): string => `
  closed as (
    update boxcar.steps s
    set model = ${value('model')},
      prompt_hash = decode(${value('prompt_hash')}, 'hex'),
      toolset_hash = decode(${value('toolset_hash')}, 'hex'),
      manifest = ${value('manifest')},
      thought_card_id = ${value('thought_card_id')},
      usage = ${value('usage')},
      finish_reason = ${value('finish_reason')},
      model_ms = ${value('model_ms')},
      error = ${value('step_error')},
      committed_at = now(),
      to_position = coalesce((${value('manifest')}->>'head')::int, s.to_position)
    from ${list}
    where s.turn_id = ${value('turn_id')}
      and s.step = ${value('step')}
      and s.attempt = ${value('attempt')}
  )`;

const turnChanges = ({ value }: Source): string => `
  step_count = coalesce(${value('step')}, t.step_count),
  empty_replies = ${value('empty_replies')},
  pending_calls = t.pending_calls + ${value('call_count')},
  attempt = case
    when ${value('step')} is null then t.attempt
    when ${value('end_status')} is null and ${value('call_count')} = 0 then 1
    else 0
  end,
  retries = case when ${value('step')} is null then t.retries else 0 end,
  losses = case when ${value('step')} is null then t.losses else 0 end,
  holder_id = case when ${value('end_status')} is null then t.holder_id end,
  ended_at = case when ${value('end_status')} is not null then now() end,
  deliverable_card_id = ${value('deliverable_card_id')},
  error = ${value('error')},
  spent_tokens = t.spent_tokens + coalesce(${value('spent_tokens')}, 0),
  spent_cost = t.spent_cost + coalesce(${value('spent_cost')}, 0)`;

const changedColumns = ({ value }: Source): string => `
  t.id, t.project_id, t.epoch, t.holder_id, t.step_count, t.status, t.worker_target, t.ended_at, t.batch_ids,
  t.pending_calls, t.notifies, t.unseen_position, t.parent_turn_id, t.agent_id, t.output_box_id,
  ${value('call_count')} as call_count`;

const callsPart = ({ list, value }: Source): string => `
  , calls as (
    insert into boxcar.tool_calls (
      id, project_id, turn_id, step, ordinal, provider_call_id, name, arguments, route, target, retry, epoch, status,
      deadline_at, look_at, guard_hash, result_card_id, ended_at
    )
    select
      x.id, ${value('project_id')}, ${value('turn_id')}, ${value('step')}, x.ordinal, x.provider_call_id, x.name,
      x.arguments::json, x.route, x.target, x.retry, ${value('epoch')}, coalesce(x.status, 'pending'),
      now() + x.timeout_ms * interval '1 millisecond',
      case when x.route = 'queue' and x.is_gated is not true then now() + ${FIRST_LOOK} end,
      decode(x.guard_hash, 'hex'), x.result_card_id,
      case when x.status is not null then now() end
    from ${list}
    cross join lateral json_to_recordset(${value('calls')}) as x(
      id uuid, ordinal int, provider_call_id text, name text, arguments text, route text, target text, retry text,
      timeout_ms float8, guard_hash text, is_gated boolean, status text, result_card_id uuid
    )
  )`;

const OPENED_PART = `
  , opened as (
    insert into boxcar.steps (turn_id, step, attempt, project_id, epoch, holder_id, from_position, to_position)
    select up.id, up.step_count + 1, 1, up.project_id, up.epoch, up.holder_id, up.view_position, up.head_position
    from up
    where up.status = 'running' and up.call_count = 0
  )`;

const NOTICES_PART = `
  , notices as (
    select pg_notify('${ENDED_CHANNEL}', string_agg(e.id::text, ','))
    from (select up.id, row_number() over () as n from up where up.ended_at is not null) e
    group by e.n / ${IDS_PER_NOTICE}
  )`;

// Only a turn without a holder can have a wait.
const WAITS_PART = `
  , unwaited as (
    delete from boxcar.waits w
    using up
    where w.turn_id = up.id and up.ended_at is not null
  )`;

const ENDS_COLUMNS = `
  (select count(*) from notices) as notice_count,
  up.ended_at is not null and up.pending_calls > 0 as has_open_calls,
  up.ended_at is not null as is_ended,
  up.ended_at is not null
  and (
    select true
    from boxcar.operations o
    where o.awaited_turn_id = up.id and o.door_job_id is not null
    limit 1
  ) is not null as has_door,
  up.ended_at is not null and (up.notifies is true or up.unseen_position is not null) as has_notice`;

const NO_ENDS_COLUMNS = 'false as has_open_calls, false as is_ended, false as has_door, false as has_notice';

interface CommitParts {
  readonly hasCalls: boolean;
  /** At least one turn ends. */
  readonly hasEnds: boolean;
  /** At least one turn continues at once with its next step. */
  readonly hasNext: boolean;
  /** At least one turn without a holder ends. */
  readonly hasUnheld: boolean;
  /** Several turns of one agent: their entries follow each other on one tape. */
  readonly hasShared: boolean;
  /** One turn (S3). */
  readonly isAlone: boolean;
  /** More turns than a micro-batch has: an earlier statement of the transaction has locked them. */
  readonly isLarge: boolean;
  /**
   * Whether batches wait for turns that end. With `unknown`, ending turns of a batch are left as they are. The snapshot of this
   * statement does not contain a batch that was added while the statement waited for the turn's lock. Only a statement that begins
   * after the lock can lower such a batch.
   */
  readonly batches: 'unknown' | 'none' | 'some';
  /** Turns whose row or tape is locked are left as they are. */
  readonly leavesLocked: boolean;
}

const lockPart = ({
  leavesMembers,
  leavesLocked,
}: {
  readonly leavesMembers: boolean;
  readonly leavesLocked: boolean;
}): string => `
  lk as (
    select t.output_box_id, ${heldView('t')}, d.*
    from boxcar.turns t
    join d on d.turn_id = t.id and d.epoch = t.epoch
    where t.id = any ($2::uuid[])
      and t.status not in ('success', 'partial', 'failed', 'timeout', 'canceled')
      and t.holder_id is not distinct from d.holder_id
      and (d.holder_id is null or t.status = 'running')
      ${leavesMembers ? ' and (d.end_status is null or t.batch_ids is null)' : ''}
    order by t.id
    for update of t${skipping(leavesLocked)}
  )`;

// A look-up of each turn in a list of all turns took a third of the time at 1,000 turns.
const LARGE_LK_PART = `
  lk as materialized (
    select t.output_box_id, ${heldView('t')}, d.*
    from d
    cross join lateral (
      select x.output_box_id, x.own_view_anchor, x.own_view_position, x.start_position
      from boxcar.turns x
      where x.id = d.turn_id
        and x.epoch = d.epoch
        and x.status not in ('success', 'partial', 'failed', 'timeout', 'canceled')
        and x.holder_id is not distinct from d.holder_id
        and (d.holder_id is null or x.status = 'running')
      offset 0
    ) t
    where $2::uuid[] is not null
    order by d.turn_id
  )`;

const headsPart = (leavesLocked: boolean): string => `
  heads as (
    select lk.*
    from lk
    join boxcar.boxes b on b.id = lk.output_box_id
    order by b.id
    for no key update of b${skipping(leavesLocked)}
  ),
  hd as (
    update boxcar.boxes b
    set head_position = b.head_position + heads.entry_count
    from heads
    where b.id = heads.output_box_id
    returning
      heads.*, b.head_position, b.head_position - heads.entry_count as base,
      ${heldViewPosition('heads', 'b')} as view_position
  )`;

// A statement updates a row only once, so a tape with the entries of several turns is moved by the sum of those entries.
const sharedHeadsPart = (leavesLocked: boolean): string => `
  tapes as (
    select b.id
    from boxcar.boxes b
    where b.id in (select lk.output_box_id from lk)
    order by b.id
    for no key update of b${skipping(leavesLocked)}
  ),
  heads as (
    select
      lk.*,
      (sum(lk.entry_count) over (partition by lk.output_box_id order by lk.turn_id) - lk.entry_count)::int as ahead
    from lk
    where (lk.output_box_id in (select id from tapes)) is true
  ),
  moved as (
    update boxcar.boxes b
    set head_position = b.head_position + s.n
    from (select output_box_id, sum(entry_count)::int as n from heads group by output_box_id) s
    where b.id = s.output_box_id
    returning b.id, b.head_position, b.head_position - s.n as start, b.view_position, b.view_anchor_position,
      b.last_anchor_position
  ),
  hd as (
    select
      heads.*, moved.head_position, moved.start + heads.ahead as base,
      ${heldViewPosition('heads', 'moved')} as view_position
    from heads
    join moved on moved.id = heads.output_box_id
  )`;

const manyTurns = ({ hasEnds, hasShared, isLarge, batches, leavesLocked }: CommitParts): string => `
  with /* commit-sql.commit */
  d as (
    select *
    from json_to_recordset($1::json) as d(${COLUMNS.map((column) => column.join(' ')).join(', ')})
  ),
  ${isLarge ? LARGE_LK_PART : lockPart({ leavesMembers: hasEnds && batches === 'unknown', leavesLocked })},
  ${hasShared ? sharedHeadsPart(leavesLocked) : headsPart(leavesLocked)},
  up as (
    update boxcar.turns t
    set status = coalesce(hd.end_status, t.status), ${turnChanges(OF_MANY)}
    from hd
    where t.id = hd.turn_id
    returning ${changedColumns(OF_MANY)}, hd.base, hd.head_position, hd.view_position
  )`;

function oneTurn(source: Source, parts: CommitParts): string {
  const { value } = source;
  const fence = `
    t.id = ${value('turn_id')}
    and t.epoch = ${value('epoch')}
    and t.status not in ('success', 'partial', 'failed', 'timeout', 'canceled')
    and t.holder_id is not distinct from ${value('holder_id')}
    and (${value('holder_id')} is null or t.status = 'running')
    ${parts.hasEnds && parts.batches === 'unknown' ? ' and t.batch_ids is null' : ''}`;
  const ofTurn = parts.leavesLocked
    ? `from free where t.id = ${value('turn_id')} and free.id = t.output_box_id`
    : `where ${fence}`;
  return `
    with /* commit-sql.commit_one */
    ${parts.leavesLocked ? lockedFirst(fence) : ''}changed as (
      update boxcar.turns t
      set status = coalesce(${value('end_status')}, t.status), ${turnChanges(source)}
      ${ofTurn}
      returning ${changedColumns(source)}, ${heldView('t')}
    ),
    up as (
      update boxcar.boxes b
      set head_position = b.head_position + ${value('entry_count')}
      from changed
      where b.id = changed.output_box_id
      returning
        changed.*, b.head_position,
        b.head_position - ${value('entry_count')} as base,
        ${heldViewPosition('changed', 'b')} as view_position
    )`;
}

/** Locks a turn, then its tape, if no other session has locked either of them. */
const lockedFirst = (fence: string): string => `
  lk as (
    select t.output_box_id
    from boxcar.turns t
    where ${fence}
    for update of t skip locked
  ),
  free as (
    select b.id
    from lk
    join boxcar.boxes b on b.id = lk.output_box_id
    for no key update of b skip locked
  ),
  `;

interface CommitStatement {
  readonly prepared: Statement;
  /** The parameters of a turn that commits alone. */
  readonly columns: readonly Column[];
}

function makeStatement(parts: CommitParts): CommitStatement {
  const { hasCalls, hasEnds, hasNext, hasUnheld, isAlone, batches } = parts;
  const columns: Column[] = [];
  const source = isAlone ? ofOne(columns) : OF_MANY;
  const lowersBatches = hasEnds && batches === 'some';
  const text = `
    ${isAlone ? oneTurn(source, parts) : manyTurns(parts)},
    ${cardsPart(source)},
    ${entriesPart(source)},
    ${closedPart(source)}
    ${hasCalls ? callsPart(source) : ''}
    ${hasNext ? OPENED_PART : ''}
    ${lowersBatches ? LOWER_BATCHES : ''}
    ${hasEnds ? NOTICES_PART : ''}
    ${hasUnheld ? WAITS_PART : ''}
    select
      ${hasEnds ? ENDS_COLUMNS : NO_ENDS_COLUMNS},
      ${lowersBatches ? '(select json_agg(id) from lowered where is_due)' : 'null::json'} as due_batch_ids,
      up.id as turn_id, up.worker_target, up.base
    from up`;
  return { prepared: statement(text), columns };
}

const commitStatements = new Map<string, CommitStatement>();

/** One text per combination of parts: Postgres does not even open tables that a batch does not need. */
function commitStatement(parts: CommitParts): CommitStatement {
  const key = Object.values(parts).join(' ');
  const made = commitStatements.get(key) ?? makeStatement(parts);
  commitStatements.set(key, made);
  return made;
}

export interface CommitRow extends pg.QueryResultRow {
  turn_id: TurnId;
  worker_target: string;
  base: number | null;
  is_ended: boolean;
  has_door: boolean;
  has_notice: boolean;
  due_batch_ids: BatchId[] | null;
  has_open_calls: boolean;
  /** Set only for a commit that an earlier try made. */
  has_left?: boolean;
}

/** Larger commits always use `commitWithin`, which locks their turns in an earlier statement. */
export const LARGE = 100;

/** The statement that commits these steps, with its values. */
export function toCommit(
  commits: readonly StepCommit[],
  { batches, leavesLocked = false }: Pick<CommitParts, 'batches'> & Partial<CommitParts>,
): { readonly prepared: Statement; readonly values: unknown[] } {
  const records = commits.map(toRecord);
  const [only] = records;
  const isAlone = records.length === 1;
  const { prepared, columns } = commitStatement({
    batches,
    leavesLocked,
    isAlone,
    isLarge: commits.length > LARGE,
    hasCalls: commits.some((commit) => commit.calls.length > 0),
    hasEnds: commits.some((commit) => commit.end !== null),
    hasNext: commits.some((commit) => commit.end === null && commit.calls.length === 0),
    hasUnheld: commits.some((commit) => commit.end !== null && commit.holderId === null),
    hasShared: new Set(commits.map((commit) => commit.agentId)).size < commits.length,
  });
  const values = isAlone
    ? columns.map((column) => toParameter(only?.[column], TYPE_OF.get(column)))
    : [JSON.stringify(records), commits.map((commit) => commit.turnId)];
  return { prepared, values };
}

const toParameter = (value: unknown, type = ''): unknown =>
  type.startsWith('json') && value !== null ? JSON.stringify(value) : value;

const toRecord = (commit: StepCommit): CommitRecord => ({
  turn_id: commit.turnId,
  project_id: commit.projectId,
  agent_id: commit.agentId,
  epoch: commit.epoch,
  holder_id: commit.holderId,
  entry_count: commit.entries.length,
  call_count: commit.calls.filter(({ answer }) => answer === undefined).length,
  empty_replies: commit.emptyReplies,
  step: commit.step?.step ?? null,
  attempt: commit.step?.attempt ?? null,
  model: commit.step?.model ?? null,
  prompt_hash: commit.step?.promptHash ?? null,
  toolset_hash: commit.step?.toolsetHash ?? null,
  manifest: commit.step?.manifest ?? null,
  thought_card_id: commit.step?.thoughtCardId ?? null,
  usage: commit.step?.usage ?? null,
  finish_reason: commit.step?.finishReason ?? null,
  model_ms: commit.step?.modelMs ?? null,
  step_error: commit.step?.error ?? null,
  end_status: commit.end?.status ?? null,
  deliverable_card_id: commit.end?.deliverableCardId ?? null,
  error: commit.end?.error ?? null,
  spent_tokens: commit.spent?.tokens ?? null,
  spent_cost: commit.spent?.costMicros ?? null,
  cards: commit.cards.map(cardRecord),
  entries: commit.entries.map((entry, index) => ({
    n: index + 1,
    kind: entry.kind,
    card_id: entry.cardId,
    tokens: entry.tokens,
  })),
  calls: commit.calls.map((call) => ({
    id: call.id,
    ordinal: call.ordinal,
    provider_call_id: call.providerCallId,
    name: call.name,
    arguments: jsonText(call.arguments),
    route: call.route,
    target: call.target,
    retry: call.retry,
    timeout_ms: call.timeoutMs,
    guard_hash: call.guardHash,
    ...(call.isGated === true ? { is_gated: true } : {}),
    ...(call.answer === undefined ? {} : { status: call.answer.status, result_card_id: call.answer.cardId }),
  })),
});
