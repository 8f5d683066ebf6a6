import type { ModelRequest, TurnId } from '@boxcar/kernel';
import type pg from 'pg';
import { expect } from 'vitest';
import { TurnPrompts } from '../explain/turn-prompts.js';

/**
 * Every committed step of every turn: the prompt that the rows give is the one that was sent, by its hash and, where the
 * request was recorded, word by word.
 */
export async function checkPrompts(pool: pg.Pool, sent: readonly ModelRequest[] = []): Promise<void> {
  const { rows } = await pool.query<{ turn_id: TurnId; project: string; step: number; attempt: number }>(
    `select s.turn_id, s.project_id as project, s.step, s.attempt from boxcar.steps s
     where s.committed_at is not null order by s.turn_id, s.step`,
  );
  const loaded = new Map<TurnId, TurnPrompts>();
  for (const { turn_id, project, step, attempt } of rows) {
    const prompts =
      loaded.get(turn_id) ?? (await TurnPrompts.load(pool, turn_id, { project, allSteps: true }));
    loaded.set(turn_id, prompts);
    const explained = prompts.explain({ step, attempt });
    // What was erased cannot be checked; that it is said, and that the rest still reads, can.
    if (explained.findings[0]?.code === 'card_erased') {
      expect(explained.verified).toBe(false);
      expect(explained.messages.length).toBeGreaterThan(0);
      continue;
    }
    expect(explained.findings, `turn ${turn_id}, step ${step}`).toEqual([]);
    expect(explained.verified).toBe(true);
    const request = sent.find(
      ({ turn }) => turn.turnId === turn_id && turn.step === step && turn.attempt === attempt,
    );
    if (request === undefined) continue;
    expect(explained.messages.map(({ content }) => content)).toEqual(
      request.messages.map(({ content }) => content),
    );
    expect(explained.tools?.map(({ name }) => name)).toEqual(request.tools.map(({ name }) => name));
    for (const message of explained.messages) {
      // What no card holds, a notice or the profile does.
      expect(message.cards.length > 0 || message.source === 'notice', `message ${message.index}`).toBe(true);
    }
  }
}
