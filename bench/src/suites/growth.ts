import { randomBytes } from 'node:crypto';
import { newId } from '@boxcar/runtime';
import pg from 'pg';
import { type Boxcar, PROFILE, readReceipt } from '../boxcar/system.js';
import { claimTurns, completeTurns, insertTurn } from '../floor/rows.js';
import { timed } from '../measure.js';
import type { QueueName } from '../options.js';
import { median } from '../report.js';
import { query } from '../servers.js';
import type { Bench, Figures } from '../suite.js';
import { ANSWER } from '../system.js';
import { settle } from './pair.js';

/** Turns on one agent, whose tape keeps all of them. */
const TURNS = 200;
const TURN_BYTES = 5 * 1024;
/** Agents before the one whose turns count. */
const WARM_UP = 1;

/** Text that no compression makes smaller: what is stored is what is new. */
const newText = (): string => randomBytes((TURN_BYTES * 3) / 4).toString('base64');

interface Grown {
  /** Bytes that tables and indexes gained, per byte of instructions and answers. */
  readonly stored: number;
  /** How many times as long a late turn takes as an early one. */
  readonly slower: number;
}

/** One agent that is given 200 instructions of 5 KB, one after the other: what is stored for them, and how turns slow down. */
export async function benchGrowth(bench: Bench, queue: QueueName): Promise<Figures> {
  const { servers, options, say } = bench;
  const turns = Math.min(options.samples ?? TURNS, TURNS);
  const { boxcar } = await bench.openPair();
  await boxcar.runtime.applyProfile({ ...PROFILE, name: 'growing' });
  const pool = new pg.Pool({ connectionString: servers.databaseUrl, max: 2 });
  try {
    const grow = {
      boxcar: () => growAgent(boxcar.runtime, servers.databaseUrl, turns),
      floor: () => growFloor(pool, servers.databaseUrl, turns),
    };
    for (let at = 0; at < WARM_UP; at += 1) {
      await grow.floor();
      await grow.boxcar();
    }
    await settle(servers.databaseUrl);
    const [floor, own] = [await grow.floor(), await grow.boxcar()];
    say(`growth ${queue}: ${turns} turns of ${TURN_BYTES} bytes`);
    return {
      'stored ÷ new': { value: own.stored, floor: floor.stored },
      'late ÷ early': { value: own.slower, floor: floor.slower },
    };
  } finally {
    await pool.end();
  }
}

async function growAgent(runtime: Boxcar['runtime'], databaseUrl: string, turns: number): Promise<Grown> {
  const first = await runtime.submit('launch_principal', { profile_name: 'growing', instruction: 'Begin.' });
  const agentId = readReceipt(first).agent_id;
  await runtime.waitForTurn(readReceipt(first).turn_id);
  return measureGrowth(databaseUrl, 'boxcar', turns, async () => {
    const receipt = await runtime.submit('delegate_async', {
      target_strategy: 'reuse',
      target_ref: agentId,
      instruction: newText(),
    });
    const { status, result } = await runtime.waitForTurn(readReceipt(receipt).turn_id);
    if (status !== 'success' || result !== ANSWER)
      throw new Error(`a turn of the growing agent ended as ${status}`);
  });
}

const growFloor = (pool: pg.Pool, databaseUrl: string, turns: number): Promise<Grown> =>
  measureGrowth(databaseUrl, 'floor', turns, async () => {
    const ring = { turnId: newId(), epoch: 1 };
    const holderId = newId();
    await insertTurn(pool, { id: ring.turnId, promptCardId: newId(), prompt: newText(), joinId: null });
    await claimTurns(pool, [ring], holderId);
    await completeTurns(pool, [{ ...ring, cardId: newId(), text: ANSWER }], holderId);
  });

async function measureGrowth(
  databaseUrl: string,
  schema: string,
  turns: number,
  turn: () => Promise<void>,
): Promise<Grown> {
  const before = await sizeOf(databaseUrl, schema);
  const times: number[] = [];
  for (let at = 0; at < turns; at += 1) times.push(await timed(turn));
  const stored = (await sizeOf(databaseUrl, schema)) - before;
  // Around the fifth and the last: one turn alone says little. A few turns, to try the suite out, are both.
  const early = median(times.slice(Math.min(2, turns - 1), 7));
  const late = median(times.slice(-5));
  return { stored: stored / (turns * (TURN_BYTES + ANSWER.length)), slower: late / early };
}

/** Bytes in the tables of a schema with their indexes and long values. */
async function sizeOf(databaseUrl: string, schema: string): Promise<number> {
  const [row] = await query<{ bytes: string }>(
    databaseUrl,
    `select coalesce(sum(pg_total_relation_size(c.oid)), 0)::text as bytes from pg_class c
     where c.relnamespace = '${schema}'::regnamespace and c.relkind = 'r'`,
  );
  return Number(row?.bytes ?? 0);
}
