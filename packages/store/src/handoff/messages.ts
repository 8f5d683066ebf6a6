/**
 * Questions of running handoffs, and their replies.
 *
 * Q1  Messages of a handoff are numbered from 1 without gaps. A question has at most one reply, and no reply after its time or after the
 *     end of its handoff.
 * Q2  Only the worker that holds the turn asks. An attempt that begins or fails closes the open questions, because nothing waits for their
 *     replies. When another attempt asks the same question again, it uses the same row: with its reply, or open again for the rest of its
 *     time.
 * Q3  While a question is open, the time of the handoff does not run: its deadline moves by the duration of the wait.
 * Rule: docs/reference/handoff.md, "Questions".
 */
import type { HandoffId, HandoffMessage, NewCard, ProjectId, TurnId, WorkerId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement, type Tx, transaction } from '../db/index.js';
import { CARD_COLUMNS, CARD_TARGET, CARD_VALUES, cardRecord } from '../rows/index.js';
import { hasStatus } from '../turn/index.js';
import { type LoggedEvent, writeEvents } from './handoff-changes.js';
import { PARTS_CHANNEL } from './turn-parts.js';

/** Extra time for waiting in queues, in addition to the time of the handoff. */
const ROOM_MS = 3_600_000;

/**
 * Extends the deadlines of the turn and its call by the time that the question may wait. The turn is locked first, by its epoch and holder
 * (Q2), so only one worker asks.
 */
const LOCK_ASKING = statement(`
  with /* messages.lock_asking */
  held as (
    update boxcar.turns t
    set deadline_at = case
      when t.deadline_at is not null
        then greatest(t.deadline_at, now() + ($4 + ${ROOM_MS} + h.timeout_ms) * interval '1 millisecond')
    end
    from boxcar.handoffs h
    where h.turn_id = t.id
      and t.id = $1
      and t.epoch = $2
      and t.holder_id = $3
      and ${hasStatus('running')}
      and h.ended_at is null
    returning h.id, h.tool_call_id, h.timeout_ms
  ),
  called as (
    update boxcar.tool_calls k
    set deadline_at = greatest(k.deadline_at, now() + ($4 + ${ROOM_MS} + held.timeout_ms) * interval '1 millisecond')
    from held
    where k.id = held.tool_call_id and k.status = 'pending' and k.deadline_at is not null
  )
  select h.id
  from boxcar.handoffs h
  join held on held.id = h.id
  for no key update of h`);

/** Notifies readers of handoffs with the same root that questions have changed: on the turn of the handoff, and on the turn of the root. */
const tellReaders = (changed: string): string => `
  told as (
    select pg_notify('${PARTS_CHANNEL}', r.turn_id::text)
    from ${changed} c
    join boxcar.handoffs h on h.id = c.id
    join boxcar.handoffs r on r.id in (h.id, h.root_handoff_id)
    where r.turn_id is not null
  )`;

// The turn and the handoff are locked (`LOCK_ASKING`), so the numbers have no gaps. Uses the clock under the lock of the handoff, so that
// of two questions the older one has the lower number.
const ASK = statement(`
  with /* messages.ask */
  question as (
    insert into boxcar.handoff_messages (handoff_id, seq, card_id, ask_key, expires_at, created_at)
    select
      $1,
      coalesce((select max(m.seq) from boxcar.handoff_messages m where m.handoff_id = $1), 0) + 1,
      $2, $3, now() + $4 * interval '1 millisecond', clock_timestamp()
    where not exists (select from boxcar.handoff_messages m where m.handoff_id = $1 and m.ask_key = $3)
    returning seq, card_id, expires_at
  ),
  cards as (
    insert into ${CARD_TARGET}
    select ${CARD_VALUES}
    from json_to_record($5) as x(${CARD_COLUMNS})
    join question q on q.card_id = x.id
  ),
  again as (
    update boxcar.handoff_messages q
    set closed_at = null
    where q.handoff_id = $1
      and q.ask_key = $3
      and q.closed_at is not null
      and q.expires_at > now()
      and not exists (
        select from boxcar.handoff_messages a
        where a.handoff_id = q.handoff_id and a.replies_to = q.seq
      )
    returning q.seq, q.expires_at
  ),
  asked as (
    select q.seq, q.expires_at
    from question q
    union all
    select a.seq, a.expires_at
    from again a
  ),
  c as (
    update boxcar.handoffs h
    set asking_since = coalesce(h.asking_since, now()),
      event_count = h.event_count + 1,
      remote_task = coalesce($6, h.remote_task)
    from asked
    where h.id = $1
    returning h.id, h.event_count - 1 as seq, asked.seq as question, asked.expires_at
  ),
  ${writeEvents(
    'c',
    `
      jsonb_build_array(jsonb_build_object(
        'type', 'handoff.question', 'data', jsonb_build_object('question', c.question, 'expires_at', c.expires_at)
      ))`,
  )},
  ${tellReaders('c')}
  select
    l.handoff_id, l.type, l.data,
    exists (
      select from boxcar.handoffs h
      join boxcar.push_configs p on p.handoff_id = h.root_handoff_id
      where h.id = l.handoff_id
    ) as calls_back,
    (select count(*) from told)::int as told
  from logged l`);

const FIND = statement(`
  select /* messages.find */
    q.seq,
    (extract(epoch from q.expires_at - clock_timestamp()) * 1000)::float8 as remaining_ms,
    q.closed_at is not null as is_closed, a.seq as answer_seq, c.content->>'text' as answer
  from boxcar.handoff_messages q
  left join boxcar.handoff_messages a on a.handoff_id = q.handoff_id and a.replies_to = q.seq
  left join boxcar.cards c on c.id = a.card_id
  where q.handoff_id = $1 and q.ask_key = $2`);

/** A question with the data for the attempt that asks it. */
export interface AskedQuestion extends pg.QueryResultRow {
  readonly seq: number;
  readonly remaining_ms: number;
  readonly is_closed: boolean;
  /** Null: no reply yet. */
  readonly answer_seq: number | null;
  /** Also null after erasure. */
  readonly answer: string | null;
}

export const findQuestion = async (
  db: Queryable,
  handoffId: HandoffId,
  askKey: string,
): Promise<AskedQuestion | undefined> => (await run<AskedQuestion>(db, FIND, [handoffId, askKey]))[0];

/**
 * Asks, or finds the question when it was already asked (Q2). @returns Undefined when another worker holds the turn, or the turn has
 * ended.
 */
export function askQuestion(
  pool: pg.Pool,
  ask: {
    readonly turnId: TurnId;
    readonly epoch: number;
    readonly holderId: WorkerId;
    readonly askKey: string;
    readonly card: NewCard;
    readonly timeoutMs: number;
    /** The platform's id of the task that waits for the reply. */
    readonly remoteTask?: string | undefined;
  },
): Promise<{ readonly question: AskedQuestion; readonly logged: readonly LoggedEvent[] } | undefined> {
  const { turnId, epoch, holderId, askKey, card, timeoutMs, remoteTask } = ask;
  return transaction(pool, async (tx) => {
    const [held] = await run<{ id: HandoffId }>(tx, LOCK_ASKING, [turnId, epoch, holderId, timeoutMs]);
    if (held === undefined) return undefined;
    const logged = await run<LoggedEvent>(tx, ASK, [
      held.id,
      card.id,
      askKey,
      timeoutMs,
      JSON.stringify(cardRecord(card)),
      remoteTask ?? null,
    ]);
    const question = await findQuestion(tx, held.id, askKey);
    return question && { question, logged };
  });
}

/** Ends the wait of handoff `h` when all of its questions except those in `closed` are closed (Q3). */
const GOES_ON = (closed: string): string => `
  asking_since = case
    when exists (
      select from boxcar.handoff_messages m
      where m.handoff_id = h.id
        and m.replies_to is null
        and m.closed_at is null
        and m.seq <> ${closed}
    )
      then h.asking_since
  end,
  deadline_at = case
    when exists (
      select from boxcar.handoff_messages m
      where m.handoff_id = h.id
        and m.replies_to is null
        and m.closed_at is null
        and m.seq <> ${closed}
    )
      then h.deadline_at
    else h.deadline_at + (now() - h.asking_since)
  end`;

const LOCK_HANDOFF = statement(
  'select /* messages.lock_handoff */ h.id from boxcar.handoffs h where h.id = $1 for no key update',
);

// The handoff is locked (`LOCK_HANDOFF`). A reply at the same moment locks it too: the later of the two finds the question closed.
const EXPIRE = statement(`
  with /* messages.expire */
  late as (
    update boxcar.handoff_messages q
    set closed_at = now()
    where q.handoff_id = $1
      and q.seq = $2
      and q.closed_at is null
      and q.expires_at <= now()
    returning q.seq
  ),
  c as (
    update boxcar.handoffs h
    set ${GOES_ON('late.seq')}, event_count = h.event_count + 1
    from late
    where h.id = $1
    returning h.id, h.event_count - 1 as seq, late.seq as question
  ),
  ${writeEvents(
    'c',
    `
      jsonb_build_array(jsonb_build_object(
        'type', 'handoff.question_expired', 'data', jsonb_build_object('question', c.question)
      ))`,
  )},
  ${tellReaders('c')}
  select
    l.handoff_id, l.type, l.data,
    (select count(*) from told)::int as told
  from logged l`);

/** Closes a question whose time is over. @returns The events that were written; none when it was closed before. */
export function expireQuestion(
  pool: pg.Pool,
  of: { readonly handoffId: HandoffId; readonly seq: number },
): Promise<readonly LoggedEvent[]> {
  return transaction(pool, async (tx) => {
    await run(tx, LOCK_HANDOFF, [of.handoffId]);
    return run<LoggedEvent>(tx, EXPIRE, [of.handoffId, of.seq]);
  });
}

/** The data that decides whether a reply can be written. */
export interface ReplyPlace extends pg.QueryResultRow {
  readonly turn_id: TurnId | null;
  readonly has_ended: boolean;
  /** The named question, or the oldest open question. */
  readonly question: number | null;
  readonly is_closed: boolean | null;
  readonly is_late: boolean | null;
}

const LOCK_REPLY = statement(`
  select /* messages.lock_reply */
    h.turn_id,
    h.ended_at is not null or t.ended_at is not null as has_ended,
    q.seq as question, q.closed_at is not null as is_closed, q.expires_at <= now() as is_late
  from boxcar.handoffs h
  left join boxcar.turns t on t.id = h.turn_id
  left join lateral (
    select m.seq, m.closed_at, m.expires_at
    from boxcar.handoff_messages m
    where m.handoff_id = h.id
      and m.replies_to is null
      and case when $3::int is null then m.closed_at is null and m.expires_at > now() else m.seq = $3 end
    order by m.seq
    limit 1
  ) q on true
  where h.id = $1 and h.project_id = $2
  for no key update of h`);

// The handoff is locked (`LOCK_REPLY`), so of two replies to one question the second finds it closed and writes nothing (Q1), and the
// numbers have no gaps.
const REPLY = statement(`
  with /* messages.reply */
  closed as (
    update boxcar.handoff_messages q
    set closed_at = now()
    where q.handoff_id = $1 and q.seq = $2 and q.closed_at is null
    returning q.seq
  ),
  answer as (
    insert into boxcar.handoff_messages (handoff_id, seq, card_id, replies_to, author, reply_key)
    select
      $1,
      (select max(m.seq) from boxcar.handoff_messages m where m.handoff_id = $1) + 1,
      $3, closed.seq, $4, $6
    from closed
    returning seq, card_id, replies_to
  ),
  cards as (
    insert into ${CARD_TARGET}
    select ${CARD_VALUES}
    from json_to_record($5) as x(${CARD_COLUMNS})
    join answer a on a.card_id = x.id
  ),
  c as (
    update boxcar.handoffs h
    set ${GOES_ON('answer.replies_to')}, event_count = h.event_count + 1
    from answer
    where h.id = $1
    returning h.id, h.event_count - 1 as seq, answer.seq as reply, answer.replies_to
  ),
  ${writeEvents(
    'c',
    `
      jsonb_build_array(jsonb_build_object(
        'type', 'handoff.reply',
        'data', jsonb_build_object('question', c.replies_to, 'reply', c.reply, 'by', $4::text)
      ))`,
  )},
  ${tellReaders('c')}
  select
    l.handoff_id, l.type, l.data,
    (select count(*) from told)::int as told
  from logged l`);

/**
 * Writes a reply to a question, once (Q1).
 *
 * @param judge - Throws when the place does not allow a reply.
 */
export function writeReply(
  pool: pg.Pool,
  reply: {
    readonly handoffId: HandoffId;
    readonly projectId: ProjectId;
    readonly question: number | undefined;
    readonly card: NewCard;
    readonly author: string;
    /** A reply with the same key is the same reply. */
    readonly key: string | undefined;
  },
  judge: (place: ReplyPlace | undefined) => number,
): Promise<readonly LoggedEvent[]> {
  const { handoffId, projectId, question, card, author, key } = reply;
  return transaction(pool, async (tx: Tx) => {
    const [place] = await run<ReplyPlace>(tx, LOCK_REPLY, [handoffId, projectId, question ?? null]);
    const seq = judge(place);
    return run<LoggedEvent>(tx, REPLY, [
      handoffId,
      seq,
      card.id,
      author,
      JSON.stringify(cardRecord(card)),
      key ?? null,
    ]);
  });
}

const KEYED = statement(`
  select /* messages.keyed */ c.content->>'text' as text
  from boxcar.handoff_messages m
  join boxcar.cards c on c.id = m.card_id
  where m.reply_key = $1`);

/** The reply under a key. Its text is null after erasure. */
export const findKeyedReply = async (
  db: Queryable,
  key: string,
): Promise<{ readonly text: string | null } | undefined> =>
  (await run<{ text: string | null }>(db, KEYED, [key]))[0];

const LIST = statement(`
  select /* messages.list */
    m.seq,
    case when m.replies_to is null then 'question' else 'reply' end as type,
    c.content->>'text' as text, m.card_id, m.replies_to, m.author as by, m.created_at, m.expires_at,
    case
      when m.replies_to is not null then null
      when a.seq is not null then 'answered'
      when m.expires_at <= coalesce(h.ended_at, t.ended_at, now()) then 'expired'
      when m.closed_at is not null or h.ended_at is not null or t.ended_at is not null then 'closed'
      else 'open'
    end as state
  from boxcar.handoffs h
  join boxcar.handoff_messages m on m.handoff_id = h.id
  join boxcar.cards c on c.id = m.card_id
  left join boxcar.turns t on t.id = h.turn_id
  left join boxcar.handoff_messages a on a.handoff_id = m.handoff_id and a.replies_to = m.seq
  where h.id = $1 and h.project_id = $2
  order by m.seq`);

/** All messages of a handoff, in order. */
export const loadHandoffMessages = (
  db: Queryable,
  of: { readonly handoffId: HandoffId; readonly projectId: ProjectId },
): Promise<HandoffMessage[]> =>
  run<HandoffMessage & pg.QueryResultRow>(db, LIST, [of.handoffId, of.projectId]);
