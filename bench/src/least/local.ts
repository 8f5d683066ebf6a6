/** The least floor of a turn within one process: the floor's three commits, on one connection, without the queue. */
import { newId } from '@boxcar/runtime';
import pg from 'pg';
import { claimTurns, completeTurns, insertTurn } from '../floor/rows.js';
import { ANSWER, PROMPT } from '../system.js';

export interface LocalTurns extends AsyncDisposable {
  /** Submits a turn, claims it and ends it. @throws when the turn was missing. */
  answer(): Promise<void>;
}

export function openLocalTurns(databaseUrl: string): LocalTurns {
  const pool = new pg.Pool({ connectionString: databaseUrl, max: 1 });
  const holderId = newId();
  return {
    answer: async () => {
      const turn = { turnId: newId(), epoch: 1 };
      await insertTurn(pool, { id: turn.turnId, promptCardId: newId(), prompt: PROMPT, joinId: null });
      const prompts = await claimTurns(pool, [turn], holderId);
      const ended = await completeTurns(pool, [{ ...turn, cardId: newId(), text: ANSWER }], holderId);
      if (prompts.get(turn.turnId) !== PROMPT || !ended.has(turn.turnId))
        throw new Error(`least floor: turn ${turn.turnId} was lost`);
    },
    [Symbol.asyncDispose]: () => pool.end(),
  };
}
