/** Erases all cards of turns that have ended while others work, and looks whether anything of them is left. */
import { setTimeout as delay } from 'node:timers/promises';
import type { CardId, ProjectId } from '@boxcar/kernel';
import { eraseCards } from '@boxcar/store';
import type pg from 'pg';

const PAUSE_MS = 100;
const ATTEMPTS = 300;
/** Every so many ended turns lose their cards. */
const EVERY = 5;

const NEXT = `
  select t.id as turn_id, t.project_id, array(
    select e.card_id from boxcar.tape_entries e where e.box_id = t.output_box_id and e.turn_id = t.id and e.card_id is not null
    union select u.id from boxcar.boxes b cross join lateral unnest(b.card_ids) as u(id) where b.id = t.context_box_id) as card_ids
  from boxcar.turns t where t.ended_at is not null and t.id <> all ($1::uuid[]) order by t.ended_at desc limit 1`;

const LEFT = `
  select 'turn ' || t.id || ' has still ' || case when d.content is not null then 'its deliverable'
    when t.error->>'message' <> '(erased)' then 'the words of its error' else 'the words of an error of its steps' end as what
  from boxcar.turns t left join boxcar.cards d on d.id = t.deliverable_card_id
  where t.id = any ($1::uuid[]) and (d.content is not null or t.error->>'message' <> '(erased)'
    or exists (select from boxcar.steps s where s.turn_id = t.id and s.error->>'message' <> '(erased)'))`;

interface Ended extends pg.QueryResultRow {
  readonly turn_id: string;
  readonly project_id: ProjectId;
  readonly card_ids: readonly CardId[];
}

export class Erasures {
  /** The turns whose cards were erased, or are being erased. */
  readonly turnIds = new Set<string>();
  readonly #pool: pg.Pool;
  readonly #observer: pg.Pool;

  /**
   * @param pool - Erases; faults of all processes affect it.
   * @param observer - Affected by no fault.
   */
  constructor(pool: pg.Pool, observer: pg.Pool) {
    this.#pool = pool;
    this.#observer = observer;
  }

  async run(isOn: () => boolean): Promise<void> {
    const seen: string[] = [];
    while (isOn()) {
      await delay(PAUSE_MS);
      const turn = await this.#next(seen);
      if (turn === undefined) continue;
      seen.push(turn.turn_id);
      if (seen.length % EVERY !== 1) continue;
      this.turnIds.add(turn.turn_id);
      await this.#erase(turn);
    }
  }

  async #next(seen: readonly string[]): Promise<Ended | undefined> {
    try {
      return (await this.#observer.query<Ended>(NEXT, [seen])).rows[0];
    } catch {
      return undefined;
    }
  }

  /** A second time changes nothing, so it is done until it is known to be done. */
  async #erase({ card_ids: ids, project_id: projectId }: Ended): Promise<void> {
    for (let attempt = 1; ; attempt += 1) {
      try {
        await eraseCards(this.#pool, ids, { projectId, reason: 'soak' });
        return;
      } catch (error) {
        if (attempt === ATTEMPTS) throw error;
        await delay(PAUSE_MS);
      }
    }
  }

  /** What is left of what was erased. */
  async findLeft(): Promise<string[]> {
    const { rows } = await this.#observer.query<{ what: string }>(LEFT, [[...this.turnIds]]);
    return rows.map(({ what }) => what);
  }
}
