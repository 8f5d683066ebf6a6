import type { ModelRequest, TurnId } from '@boxcar/kernel';
import type pg from 'pg';
import { expect } from 'vitest';
import { TurnPrompts } from '../explain/turn-prompts.js';

/**
 * For every committed step of every turn, the prompt that is rebuilt from the rows must be the prompt that was sent: by its hash and, if
 * the request was recorded, word for word.
 */
export async function checkPrompts(pool: pg.Pool, sent: readonly ModelRequest[] = []): Promise<void> {
  const { rows } = await pool.query<{ turn_id: TurnId; project: string; step: number; attempt: number }>(`
    select s.turn_id, s.project_id as project, s.step, s.attempt
    from boxcar.steps s
    where s.committed_at is not null
    order by s.turn_id, s.step`);
  const loaded = new Map<TurnId, TurnPrompts>();
  for (const { turn_id, project, step, attempt } of rows) {
    const prompts =
      loaded.get(turn_id) ?? (await TurnPrompts.load(pool, turn_id, { project, allSteps: true }));
    loaded.set(turn_id, prompts);
    const explained = prompts.explain({ step, attempt });
    // A prompt with an erased card cannot be verified. The explanation must say so, and the rest must still be readable.
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
      // Text that is not from a card is from a notice or the profile.
      expect(message.cards.length > 0 || message.source === 'notice', `message ${message.index}`).toBe(true);
    }
  }
}
