/** Resets a tape: the next incarnation takes its name or its agent; the previous incarnation is archived and does not change. */

import {
  type AgentId,
  BOOTSTRAP_ANCHOR,
  type BoxId,
  type NewCard,
  type ProjectId,
  type TurnId,
} from '@boxcar/kernel';
import type pg from 'pg';
import { run, statement, type Tx, transaction } from '../db/index.js';
import {
  BOOTSTRAP_EVENT,
  bootstrapEntries,
  CARD_COLUMNS,
  CARD_TARGET,
  CARD_VALUES,
  cardRecord,
  OWNS,
} from '../rows/index.js';

export interface ResetRequest {
  readonly projectId: ProjectId;
  readonly boxId: BoxId;
  /** The id of the next incarnation. When this box already exists, it is the result of the same reset. */
  readonly newBoxId: BoxId;
  readonly authorId: AgentId;
  /** The anchor with which it begins, and the head of the old tape that the anchor names; null: the default first anchor of tapes. */
  readonly archive: { readonly anchor: NewCard; readonly head: number } | null;
}

export type ResetResult =
  | { readonly outcome: 'reset'; readonly incarnation: number }
  | { readonly outcome: 'busy'; readonly turnId: TurnId }
  /** The head differs from that in `archive`. */
  | { readonly outcome: 'moved' }
  | { readonly outcome: 'not_found' | 'forbidden' | 'archived' | 'closed' };

// The order of locks: agent, tape. A transaction that submits a turn to the agent holds the agent's row.
const LOCK_OWNER = statement(`
  select /* reset.lock_owner */ a.id
  from boxcar.agents a
  where a.id = (select b.owner_agent_id from boxcar.boxes b where b.id = $1) and a.tape_box_id = $1
  for no key update`);
const LOCK = statement(`
  select /* reset.lock */
    b.archived_at is not null as is_archived, b.incarnation, b.head_position,
    b.fork_status in ('merged', 'discarded') as is_closed,
    ${OWNS} as is_own,
    exists (select from boxcar.boxes n where n.id = $4 and n.previous_box_id = b.id) as is_done
  from boxcar.boxes b
  join boxcar.projects p on p.id = b.project_id
  where b.id = $1 and b.project_id = $2 and b.kind = 'tape'
  for no key update of b`);
// Must begin after the locks. Two look-ups, each by a separate index.
const ACTIVE = statement(`
  select /* reset.active */ coalesce(
    (
      select t.id
      from boxcar.turns t
      where t.agent_id = b.owner_agent_id
        and t.output_box_id = b.id
        and t.status in ('dispatched', 'running', 'suspended')
      limit 1
    ),
    (
      select t.id
      from boxcar.turns t
      where t.agent_id = b.owner_agent_id and t.output_box_id = b.id and t.status = 'queued'
      order by t.agent_id, t.id
      limit 1
    )
  ) as id
  from boxcar.boxes b
  where b.id = $1`);
const ARCHIVE = statement('update /* reset.archive */ boxcar.boxes set archived_at = now() where id = $1');
// The caller has locked the agent and then the tape (`LOCK_OWNER`, `LOCK`), has found no turn under way, and has archived the tape. A turn
// for this agent that is submitted in the meantime waits for the agent's lock, and gets the new tape.
const BEGIN = statement(`
  with /* reset.begin */
  x as (select * from json_to_recordset($4::json) as x(${CARD_COLUMNS})),
  new_card as (
    insert into ${CARD_TARGET}
    select ${CARD_VALUES}
    from x
  ),
  made as (
    insert into boxcar.boxes (
      id, project_id, kind, owner_agent_id, maker_agent_id, tape_name, incarnation, head_position,
      last_anchor_position, view_position, anchor_count, previous_box_id, session_graph
    )
    select $2, b.project_id, 'tape', b.owner_agent_id, b.maker_agent_id, b.tape_name, b.incarnation + 1, 2, 1, 1, 1,
      b.id, b.session_graph
    from boxcar.boxes b
    where b.id = $1
    returning id, project_id, incarnation, owner_agent_id
  ),
  moved as (
    update boxcar.agents a
    set tape_box_id = made.id
    from made
    where a.id = made.owner_agent_id and a.tape_box_id = $1
  ),
  -- Within a fork nobody else sees it before the merge.
  moved_fork as (
    update boxcar.forks f
    set box_id = made.id
    from made
    where f.box_id = $1 and f.status = 'open'
  ),
  begun as (
    insert into boxcar.tape_entries (box_id, position, kind, card_id, tokens, payload, anchor_name, author_id)
    select
      made.id, e.position, e.kind,
      case e.position when 1 then coalesce(x.id, c.id) end,
      case e.position when 1 then coalesce(x.token_estimate, c.token_estimate) else 0 end,
      e.payload::json, e.anchor_name, $3
    from made
    join boxcar.projects p on p.id = made.project_id
    join boxcar.cards c on c.id = p.bootstrap_card_id
    left join x on true
    cross join ${bootstrapEntries('$5')}
  )
  select incarnation
  from made`);

/** The state is in the card of the anchor. */
const ARCHIVED_EVENT = JSON.stringify({ name: 'handoff', data: { name: BOOTSTRAP_ANCHOR } });

interface LockRow {
  readonly is_archived: boolean;
  readonly is_closed: boolean | null;
  readonly is_own: boolean;
  readonly incarnation: number;
  readonly head_position: number;
  readonly is_done: boolean;
}

/** A turn of the tape's agent that is in progress or queued; null without such a turn. Must be called after the agent was locked. */
export async function findActiveTurn(tx: Tx, boxId: BoxId): Promise<TurnId | null> {
  const [row] = await run<{ id: TurnId | null }>(tx, ACTIVE, [boxId]);
  return row?.id ?? null;
}

/** Resets a tape in the caller's transaction, which must not hold a lock of a turn. */
export async function resetWithin(tx: Tx, request: ResetRequest): Promise<ResetResult> {
  const { boxId, newBoxId, projectId, authorId, archive } = request;
  await run(tx, LOCK_OWNER, [boxId]);
  const [tape] = await run<LockRow>(tx, LOCK, [boxId, projectId, authorId, newBoxId]);
  if (tape === undefined) return { outcome: 'not_found' };
  if (tape.is_done) return { outcome: 'reset', incarnation: tape.incarnation + 1 };
  if (!tape.is_own) return { outcome: 'forbidden' };
  if (tape.is_closed === true) return { outcome: 'closed' };
  if (tape.is_archived) return { outcome: 'archived' };
  const active = await findActiveTurn(tx, boxId);
  if (active !== null) return { outcome: 'busy', turnId: active };
  if (archive !== null && archive.head !== tape.head_position) return { outcome: 'moved' };
  await run(tx, ARCHIVE, [boxId]);
  const [begun] = await run<{ incarnation: number }>(tx, BEGIN, [
    boxId,
    newBoxId,
    authorId,
    JSON.stringify(archive === null ? [] : [cardRecord(archive.anchor)]),
    archive === null ? BOOTSTRAP_EVENT : ARCHIVED_EVENT,
  ]);
  return { outcome: 'reset', incarnation: begun?.incarnation ?? 0 };
}

/** Resets a tape in a separate transaction. At that time no turn of its agent is in progress or queued, and none can be added. */
export const resetTape = (pool: pg.Pool, request: ResetRequest): Promise<ResetResult> =>
  transaction(pool, (tx) => resetWithin(tx, request));
