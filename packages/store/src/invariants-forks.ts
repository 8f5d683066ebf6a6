/** What must hold of forks and sessions (`invariants.ts`). */
import type { Invariant } from './invariants.js';

/** The newest forks, and those that are open. */
const FORKS = `select * from boxcar.forks where id in (
  (select id from boxcar.forks order by id desc limit $1) union (select id from boxcar.forks where status = 'open' order by id limit $1))`;

export const FORK_INVARIANTS: readonly Invariant[] = [
  {
    name: 'fork-ended',
    rule: 'a fork and its box say the same of its end, and a merged one stands on its parent once: its entries behind each other, then its receipt',
    when: 'always',
    broken: `
      with forks as (select * from (${FORKS}) f)
      select f.id, 'is ' || f.status || ', its box is ' || coalesce(b.fork_status, 'gone') as what
      from forks f left join boxcar.boxes b on b.id = f.id where b.fork_status is distinct from f.status
      union all
      select f.id, 'was merged as ' || f.receipt::text || ', its parent has ' || m.entries || ' entries from ' || coalesce(m.first::text, 'none') || ' to ' || coalesce(m.last::text, 'none') || ' and ' || m.receipts || ' receipts'
      from forks f join boxcar.boxes p on p.id = (f.receipt->>'parent')::uuid cross join lateral (
        select count(*) filter (where e.dedup_key like 'fork:' || f.id || ':%') as entries, min(e.position) filter (where e.dedup_key like 'fork:' || f.id || ':%') as first,
          max(e.position) filter (where e.dedup_key like 'fork:' || f.id || ':%') as last, count(*) filter (where e.dedup_key = 'fork/merge:' || f.id and e.position = (f.receipt->>'event')::int) as receipts
        from boxcar.tape_entries e where e.box_id = p.id and e.dedup_key is not null) m
      where f.status = 'merged' and (m.receipts <> 1 or ((f.receipt->>'replaced') = 'false'
        and (m.entries <> (f.receipt->>'merged')::int or m.first is distinct from (f.receipt->>'first')::int or m.last is distinct from (f.receipt->>'last')::int)))`,
  },
  {
    name: 'told',
    rule: 'the ends of turns whose parent is to be told have been told, and what came to a tape meanwhile has been read',
    when: 'settled',
    broken: `select id, case when notifies then 'has ended untold' else 'has left position ' || unseen_position || ' unread' end as what
      from scope where ended_at is not null and (notifies or unseen_position is not null)`,
  },
];
