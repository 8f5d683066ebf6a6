/** Erases all cards of ended runs under load, and searches all tables for their words. */
import { setTimeout as delay } from 'node:timers/promises';
import type { CardId, ProjectId } from '@boxcar/kernel';
import { eraseCards, eraseEvidence } from '@boxcar/store';
import { writeTurnWords } from '@boxcar/store/report';
import type pg from 'pg';
import { findTexts, searchOfTables } from '../texts-in-tables.js';
import { type Accepted, wordsIn } from './load.js';

const PAUSE_MS = 100;
const ATTEMPTS = 300;
/** One of this many submissions is erased. */
const EVERY = 5;
/** Late answers are not cards, and a stopped worker may store one at any time. */
const LATE = 'evidence.body';

/** The youngest of the submissions whose runs have ended completely. */
const NEXT = `
  select t.id as turn_id, t.project_id
  from boxcar.turns t
  where t.id = any ($1::uuid[])
    and not exists (select from boxcar.turns o where o.run_id = t.run_id and o.ended_at is null)
  order by t.id desc
  limit 1`;

const CARDS = "select c.id from boxcar.cards c where c.content::text like '%' || $1 || '%'";
const ERASED =
  'select count(*)::int as n from boxcar.cards c where c.id = any ($1::uuid[]) and c.erased_at is not null';

interface Ended extends pg.QueryResultRow {
  readonly turn_id: string;
  readonly project_id: ProjectId;
}

export class Erasures {
  /** The turns of submissions whose cards have been erased, or are being erased. */
  readonly turnIds = new Set<string>();
  /** The number of erased cards that still existed when their words were searched for. */
  checked = 0;
  readonly #words = new Map<string, ProjectId>();
  readonly #left: string[] = [];
  readonly #pool: pg.Pool;
  readonly #observer: pg.Pool;
  #search: string | undefined;

  /**
   * @param pool - Erases; affected by faults of all processes.
   * @param observer - Not affected by faults of one process.
   */
  constructor(pool: pg.Pool, observer: pg.Pool) {
    this.#pool = pool;
    this.#observer = observer;
  }

  async run(accepted: () => readonly Accepted[], isOn: () => boolean): Promise<void> {
    while (isOn()) {
      await delay(PAUSE_MS);
      // Older submissions have been purged.
      const chosen = accepted()
        .filter((_, n) => n % EVERY === 0)
        .slice(-200)
        .filter(({ turnId }) => !this.turnIds.has(turnId));
      const [ended] = await this.#ask<Ended>(NEXT, [chosen.map(({ turnId }) => turnId)]);
      const word = chosen.find(({ turnId }) => turnId === ended?.turn_id)?.word;
      if (ended !== undefined && word !== undefined) await this.#eraseRun(ended, word);
    }
  }

  async #eraseRun({ turn_id, project_id }: Ended, word: string): Promise<void> {
    const rows = await this.#ask<{ id: CardId }>(CARDS, [word]);
    const ids = rows.map(({ id }) => id);
    this.turnIds.add(turn_id);
    this.#words.set(word, project_id);
    // As a list does when it searches for the word.
    await this.#repeat(() => writeTurnWords(this.#pool, project_id, word));
    // A repeated erasure changes nothing, so it is repeated until its success is known.
    await this.#repeat(() => eraseCards(this.#pool, ids, { projectId: project_id, reason: 'soak' }));
    this.#left.push(...(await this.#findLeft(`%${word}%`)));
    // A purge may have removed some of the cards before.
    const [still] = await this.#ask<{ n: number }>(ERASED, [ids]);
    this.checked += still?.n ?? 0;
  }

  async #findLeft(pattern: string): Promise<string[]> {
    this.#search ??= await this.#repeat(() => searchOfTables(this.#observer, 'boxcar'));
    const search = this.#search;
    const texts = await this.#repeat(() => findTexts(this.#observer, search, pattern));
    return texts
      .filter(({ place }) => place !== LATE)
      .flatMap(({ place, text }) =>
        wordsIn(text).flatMap((word) => (this.#words.has(word) ? [`${word} is in ${place}`] : [])),
      );
  }

  /**
   * Words of erased cards that were found after their erasure or are found at the end. Erases late answers first, and then checks them too.
   */
  async findLeft(): Promise<readonly string[]> {
    const late = await this.#ask<{ id: string; project_id: ProjectId; text: string }>(
      'select v.id, v.project_id, v.body::text as text from boxcar.evidence v',
      [],
    );
    for (const { id, project_id: projectId, text } of late)
      if (wordsIn(text).some((word) => this.#words.has(word)))
        await this.#repeat(() => eraseEvidence(this.#pool, [id], { projectId, reason: 'soak' }));
    const after = await this.#ask<{ text: string }>(
      'select v.body::text as text from boxcar.evidence v where v.id = any ($1::uuid[])',
      [late.map(({ id }) => id)],
    );
    const repeated = after.flatMap(({ text }) => wordsIn(text)).filter((word) => this.#words.has(word));
    return [
      ...new Set([
        ...this.#left,
        ...(await this.#findLeft('%soak.%.said%')),
        ...repeated.map((word) => `${word} is in ${LATE}`),
      ]),
    ];
  }

  #ask<R extends pg.QueryResultRow>(text: string, values: readonly unknown[]): Promise<R[]> {
    return this.#repeat(async () => (await this.#observer.query<R>(text, [...values])).rows);
  }

  /** Repeats the work while the server is unavailable. */
  async #repeat<T>(work: () => Promise<T>): Promise<T> {
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await work();
      } catch (error) {
        if (attempt === ATTEMPTS) throw error;
        await delay(PAUSE_MS);
      }
    }
  }
}
