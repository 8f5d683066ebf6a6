/** Erases all cards of runs that have ended while others work, and looks for their words in all tables. */
import { setTimeout as delay } from 'node:timers/promises';
import type { CardId, ProjectId } from '@boxcar/kernel';
import { eraseCards, eraseEvidence } from '@boxcar/store';
import { writeTurnWords } from '@boxcar/store/report';
import type pg from 'pg';
import { findTexts, searchOfTables } from '../texts-in-tables.js';
import { type Accepted, wordsIn } from './load.js';

const PAUSE_MS = 100;
const ATTEMPTS = 300;
/** Of so many submissions one is erased. */
const EVERY = 5;
/** Late answers are no cards, and a worker that was stopped may keep one at any time. */
const LATE = 'evidence.body';

/** The youngest of the submissions all turns of whose run have ended. */
const NEXT = `
  select t.id as turn_id, t.project_id from boxcar.turns t
  where t.id = any ($1::uuid[]) and not exists (select from boxcar.turns o where o.run_id = t.run_id and o.ended_at is null)
  order by t.id desc limit 1`;

const CARDS = "select c.id from boxcar.cards c where c.content::text like '%' || $1 || '%'";
const ERASED =
  'select count(*)::int as n from boxcar.cards c where c.id = any ($1::uuid[]) and c.erased_at is not null';

interface Ended extends pg.QueryResultRow {
  readonly turn_id: string;
  readonly project_id: ProjectId;
}

export class Erasures {
  /** The turns of submissions whose cards were erased, or are being erased. */
  readonly turnIds = new Set<string>();
  /** Erased cards whose words were looked for while they were still there. */
  checked = 0;
  readonly #words = new Map<string, ProjectId>();
  readonly #left: string[] = [];
  readonly #pool: pg.Pool;
  readonly #observer: pg.Pool;
  #search: string | undefined;

  /**
   * @param pool - Erases; faults of all processes affect it.
   * @param observer - Affected by no fault of one process.
   */
  constructor(pool: pg.Pool, observer: pg.Pool) {
    this.#pool = pool;
    this.#observer = observer;
  }

  async run(accepted: () => readonly Accepted[], isOn: () => boolean): Promise<void> {
    while (isOn()) {
      await delay(PAUSE_MS);
      // Of older ones nothing is left: they were purged.
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
    // As a list does that looks for the word.
    await this.#repeat(() => writeTurnWords(this.#pool, project_id, word));
    // A second time changes nothing, so it is done until it is known to be done.
    await this.#repeat(() => eraseCards(this.#pool, ids, { projectId: project_id, reason: 'soak' }));
    this.#left.push(...(await this.#findLeft(`%${word}%`)));
    // A purge may have taken some of them before.
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

  /** What was left of what was erased, then or when all has ended. Erases late answers, of which then nothing is left either. */
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

  /** Again while the server is away. */
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
