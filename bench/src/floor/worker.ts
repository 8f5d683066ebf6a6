/** The worker of the bare loop: ring → claim → model → complete, claims and completions in micro-batches. */
import { newId } from '@boxcar/runtime';
import pg from 'pg';
import { ANSWER } from '../system.js';
import { serveWorker } from '../worker-process.js';
import { batched } from './batch.js';
import { listen } from './doorbell.js';
import { claimTurns, completeTurns, type FloorAnswer, type FloorRing } from './rows.js';

/** A model with zero latency. */
async function generate(messages: readonly { readonly role: string; readonly content: string }[]) {
  if (messages.length === 0) throw new Error('an empty prompt');
  return { text: ANSWER };
}

serveWorker(async ({ databaseUrl, redisUrl, concurrency }) => {
  const pool = new pg.Pool({ connectionString: databaseUrl, max: 6, keepAlive: true });
  // The next query reports a connection that was lost while idle.
  pool.on('error', () => undefined);
  const holderId = newId();
  const claim = batched(
    async (rings: readonly FloorRing[]) => {
      const prompts = await claimTurns(pool, rings, holderId);
      return (ring) => prompts.get(ring.turnId);
    },
    { maxItems: 64, inFlight: 2 },
  );
  const complete = batched(
    async (answers: readonly FloorAnswer[]) => {
      const ended = await completeTurns(pool, answers, holderId);
      return (answer) => ended.has(answer.turnId);
    },
    { maxItems: 64, inFlight: 2 },
  );
  const doorbell = listen(
    { databaseUrl, redisUrl },
    {
      concurrency,
      handle: async ({ turn_id: turnId, epoch }) => {
        const prompt = await claim({ turnId, epoch });
        if (prompt === undefined) return;
        const { text } = await generate([{ role: 'user', content: prompt }]);
        await complete({ turnId, epoch, cardId: newId(), text });
      },
    },
  );
  return {
    close: async () => {
      await doorbell.close();
      await pool.end();
    },
  };
});
