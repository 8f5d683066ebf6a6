import { setTimeout as delay } from 'node:timers/promises';
import { newId } from '@boxcar/runtime';
import pg from 'pg';
import { PROFILE, readReceipt } from '../boxcar/system.js';
import { insertJoin } from '../floor/rows.js';
import { timed } from '../measure.js';
import type { QueueName } from '../options.js';
import { median } from '../report.js';
import type { Bench, Figures } from '../suite.js';
import { ANSWER, PROMPT } from '../system.js';
import { concurrencyOf, settle } from './pair.js';

const TURNS = 1_000;
/** No model of the tree answers before it is canceled. */
const THINKING_MS = 3_600_000;
const POLL_MS = 5;
const PATIENCE_MS = 60_000;

/**
 * A tree of 1,000 turns, with as many in a model call as the worker runs at once: the time from the submission of `cancel` until all are
 * canceled and the worker answers a new turn. For the new turn it must have stopped the others. The floor is one bare update of as many
 * rows.
 */
export async function benchCancel(bench: Bench, queue: QueueName): Promise<Figures> {
  const { servers, options, say } = bench;
  const count = Math.min(TURNS, options.turns ?? TURNS);
  const { boxcar } = await bench.openPair();
  const { runtime } = boxcar;
  const thinking = { ...PROFILE, name: 'thinking', script: [{ say: ANSWER, delayMs: THINKING_MS }] };
  await runtime.applyProfile(thinking);
  const task = { target_strategy: 'new', target_ref: thinking.name, instruction: PROMPT.slice(0, 64) };
  await runtime.applyProfile({
    ...PROFILE,
    name: 'forks',
    tools: ['fork_join'],
    delegation_policy: { target_profiles: [thinking.name] },
    script: [
      { calls: [{ tool: 'fork_join', arguments: { tasks: Array.from({ length: count - 1 }, () => task) } }] },
      { say: ANSWER },
    ],
  });
  const pool = new pg.Pool({ connectionString: servers.databaseUrl, max: 2 });
  try {
    const states = async (
      runId: string,
    ): Promise<{ running: number; unfinished: number; canceled: number }> => {
      const { rows } = await pool.query<{ running: number; unfinished: number; canceled: number }>(
        `select count(*) filter (where status = 'running')::int as running, count(*) filter (where ended_at is null)::int as unfinished,
           count(*) filter (where status = 'canceled')::int as canceled
         from boxcar.turns t where t.run_id = (select r.run_id from boxcar.turns r where r.id = $1)`,
        [runId],
      );
      return rows[0] ?? { running: 0, unfinished: 0, canceled: 0 };
    };
    const round = async (): Promise<number> => {
      const receipt = await runtime.submit('launch_principal', {
        profile_name: 'forks',
        instruction: 'Count.',
      });
      const turnId = readReceipt(receipt).turn_id;
      const busy = Math.min(concurrencyOf(options), count - 1);
      const deadline = performance.now() + PATIENCE_MS;
      while ((await states(turnId)).running < busy) {
        if (performance.now() > deadline) throw new Error('cancel: the tree never got under way');
        await delay(POLL_MS);
      }
      const ms = await timed(async () => {
        await runtime.submit('cancel', { turn_id: turnId });
        await boxcar.answer();
      });
      const { unfinished, canceled } = await states(turnId);
      if (unfinished > 0 || canceled !== count)
        throw new Error(`cancel: ${canceled} of ${count} turns are canceled, ${unfinished} have not ended`);
      return ms;
    };
    await round();
    await settle(servers.databaseUrl);
    const times: number[] = [];
    const floor: number[] = [];
    for (let at = 0; at < options.rounds; at += 1) {
      floor.push(await updateRows(pool, count));
      times.push(await round());
    }
    say(`cancel ${queue}: ${options.rounds} trees of ${count} turns`);
    return { [`${TURNS} turns`]: { value: median(times), floor: median(floor) } };
  } finally {
    await pool.end();
  }
}

async function updateRows(pool: pg.Pool, count: number): Promise<number> {
  const id = newId();
  const turns = Array.from({ length: count }, () => ({
    id: newId(),
    promptCardId: newId(),
    prompt: 'Count.',
  }));
  await insertJoin(pool, { id, turns });
  return timed(() => pool.query("update floor.turns set status = 'canceled' where join_id = $1", [id]));
}
