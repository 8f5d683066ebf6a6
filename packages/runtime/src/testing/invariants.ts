import type pg from 'pg';

interface Invariant {
  /** What holds. */
  readonly rule: string;
  /** Selects what breaks it, as one text column `what`. */
  readonly broken: string;
}

const FINAL = "('success', 'partial', 'failed', 'timeout', 'canceled')";

/** What must hold once everything that was accepted has ended, whatever happened meanwhile. Source: design §13. */
const INVARIANTS: readonly Invariant[] = [
  {
    rule: 'every accepted turn has ended',
    broken: `select id || ' is ' || status as what from boxcar.turns where status not in ${FINAL} or ended_at is null`,
  },
  {
    rule: 'every accepted submission has its turn, and every turn the one request that asked for it',
    broken: `
      with asked as (select o.idempotency_key, o.request_hash, (o.response->>'turn_id')::uuid as turn_id from boxcar.operations o
        where o.response->>'turn_id' is not null)
      select 'operation ' || a.idempotency_key || ' names no turn' as what from asked a where not exists (select from boxcar.turns t where t.id = a.turn_id)
      union all
      select 'turn ' || t.id || ' was asked for by ' || count(distinct a.request_hash) || ' requests' from boxcar.turns t
      left join asked a on a.turn_id = t.id group by t.id having count(distinct a.request_hash) <> 1`,
  },
  {
    rule: 'a turn leaves exactly one deliverable, and it stands on its tape',
    broken: `
      select 'turn ' || t.id || ' has ' || count(c.id) || ' deliverables on its tape' as what
      from boxcar.turns t
      left join boxcar.tape_entries e on e.turn_id = t.id and e.box_id = t.output_box_id
      left join boxcar.cards c on c.id = e.card_id and c.type = 'task.deliverable'
      group by t.id having count(c.id) <> 1 or not bool_or(c.id is not null and c.id = t.deliverable_card_id)
      union all
      select 'deliverable ' || c.id || ' stands on no tape' from boxcar.cards c
      where c.type = 'task.deliverable' and not exists (select from boxcar.tape_entries e where e.card_id = c.id)`,
  },
  {
    rule: 'a turn starts once on its tape',
    broken: `
      select 'turn ' || t.id || ' started ' || count(e.position) || ' times' as what from boxcar.turns t
      left join boxcar.tape_entries e on e.box_id = t.output_box_id and e.turn_id = t.id and e.kind = 'event' and e.payload->>'name' = 'turn.started'
      group by t.id having count(e.position) <> case when t.start_position is null then 0 else 1 end`,
  },
  {
    rule: 'tape positions run from 1 to the head without a gap',
    broken: `
      select 'tape ' || b.id || ' has ' || count(e.position) || ' entries, last ' || coalesce(max(e.position), 0) || ', head ' || b.head_position as what
      from boxcar.boxes b left join boxcar.tape_entries e on e.box_id = b.id where b.kind = 'tape'
      group by b.id having count(e.position) <> b.head_position or coalesce(max(e.position), 0) <> b.head_position or min(e.position) <> 1`,
  },
  {
    rule: 'a call has one result, and a turn that ended by itself has left no call open',
    broken: `
      select 'call ' || k.id || ' (' || k.name || ', ' || k.status || ') has ' || count(c.id) || ' result cards' as what
      from boxcar.tool_calls k left join boxcar.cards c on c.tool_call_id = k.id and c.type = 'tool.result'
      group by k.id having count(c.id) <> case when k.status = 'pending' then 0 else 1 end
      union all
      select 'call ' || k.id || ' (' || k.name || ') of the ended turn ' || t.id || ' is pending' from boxcar.tool_calls k join boxcar.turns t on t.id = k.turn_id
      where k.status = 'pending' and t.status = 'success'`,
  },
  {
    rule: 'a call stands once on the tape of its turn, its result once and later',
    broken: `
      select 'call ' || k.id || ' stands ' || count(*) filter (where e.kind = 'tool_call') || ' times, its result ' || count(*) filter (where e.kind = 'tool_result') || ' times' as what
      from boxcar.tool_calls k join boxcar.turns t on t.id = k.turn_id
      join boxcar.cards c on c.tool_call_id = k.id
      left join boxcar.tape_entries e on e.box_id = t.output_box_id and e.card_id = c.id
      group by k.id, t.status
      having count(*) filter (where e.kind = 'tool_call') <> 1
        or count(*) filter (where e.kind = 'tool_result') > 1
        or (t.status = 'success' and count(*) filter (where e.kind = 'tool_result') <> 1)
        or max(e.position) filter (where e.kind = 'tool_call') > min(e.position) filter (where e.kind = 'tool_result')`,
  },
  {
    rule: 'the counter of open calls is right',
    broken: `
      select 'turn ' || t.id || ' counts ' || t.pending_calls || ' open calls of ' || count(k.id) as what
      from boxcar.turns t left join boxcar.tool_calls k on k.turn_id = t.id and k.status = 'pending'
      group by t.id having t.pending_calls <> count(k.id)`,
  },
  {
    rule: 'a step is committed once, and each that is counted has been',
    broken: `
      select 'turn ' || t.id || ' step ' || s.step || ' was committed ' || count(*) || ' times' as what
      from boxcar.turns t join boxcar.steps s on s.turn_id = t.id where s.committed_at is not null group by t.id, s.step having count(*) > 1
      union all
      select 'turn ' || t.id || ' counts ' || t.step_count || ' steps, committed are ' || count(s.step) from boxcar.turns t
      left join boxcar.steps s on s.turn_id = t.id and s.committed_at is not null
      group by t.id having t.step_count <> count(s.step) or t.step_count <> coalesce(max(s.step), 0)`,
  },
  {
    rule: 'an agent has one turn in hand at most',
    broken: `
      select 'agent ' || t.agent_id || ' has ' || count(*) || ' active turns' as what from boxcar.turns t
      where t.status in ('dispatched', 'running', 'suspended') group by t.agent_id having count(*) > 1`,
  },
  {
    rule: 'a running turn has a living holder',
    broken: `
      select 'turn ' || t.id || ' is held by ' || coalesce(t.holder_id::text, 'nobody') as what from boxcar.turns t
      where t.status = 'running' and not exists (select from boxcar.workers w where w.id = t.holder_id and w.lease_until > now())`,
  },
  {
    rule: 'a parent may read what its child has written',
    broken: `
      select 'turn ' || p.id || ' may not read the output of its child ' || t.id as what
      from boxcar.turns t join boxcar.turns p on p.id = t.parent_turn_id
      where t.agent_id <> p.agent_id and not exists (
        select from boxcar.grants g where g.agent_id = p.agent_id and g.box_id = t.output_box_id and g.mode = 'read')`,
  },
];

/** What breaks an invariant, as `rule: what`; empty when all hold. */
async function findBroken(pool: pg.Pool): Promise<string[]> {
  const found: string[] = [];
  for (const { rule, broken } of INVARIANTS) {
    const { rows } = await pool.query<{ what: string }>(broken);
    found.push(...rows.map((row) => `${rule}: ${row.what}`));
  }
  return found;
}

/**
 * Checks what must hold once all turns have ended.
 *
 * @throws Error that lists everything that does not.
 */
export async function checkInvariants(pool: pg.Pool): Promise<void> {
  const broken = await findBroken(pool);
  if (broken.length > 0) throw new Error(`broken invariants:\n${broken.join('\n')}`);
}
