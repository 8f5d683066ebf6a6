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
/** The number of early and of late turns. An early turn is the fifth of a new agent; a late turn is one more of the old agent. */
const PAIRS = 8;
/** The number of turns before an early one. */
const BEFORE_EARLY = 4;
/** The number of turns of another agent before the measurement. */
const WARM_UP = 20;

/** Text that cannot be compressed, so that the stored size is the size of new data. */
const newText = (): string => randomBytes((TURN_BYTES * 3) / 4).toString('base64');

interface Grown {
  /** The growth of tables and indexes in bytes, per byte of instructions and answers. */
  readonly stored: number;
  /** The duration of a late turn as a multiple of an early turn's. */
  readonly slower: number;
  readonly earlyMs: number;
  readonly lateMs: number;
}

/** One agent that is given 200 instructions of 5 KB, one after the other: the stored size, and the slowdown of the turns. */
export async function benchGrowth(bench: Bench, queue: QueueName): Promise<Figures> {
  const { servers, options, say } = bench;
  const turns = Math.min(options.samples ?? TURNS, TURNS);
  const { boxcar } = await bench.openPair();
  await boxcar.runtime.applyProfile({ ...PROFILE, name: 'growing' });
  const pool = new pg.Pool({ connectionString: servers.databaseUrl, max: 2 });
  try {
    const agents = {
      boxcar: () => openAgent(boxcar.runtime),
      floor: async () => () => turnOfFloor(pool),
    };
    for (const open of [agents.floor, agents.boxcar]) await repeat(Math.min(WARM_UP, turns), await open());
    await settle(servers.databaseUrl);
    const floor = await measureGrowth(servers.databaseUrl, 'floor', turns, agents.floor);
    const own = await measureGrowth(servers.databaseUrl, 'boxcar', turns, agents.boxcar);
    say(
      `growth ${queue}: ${turns} turns of ${TURN_BYTES} bytes; early ${own.earlyMs.toFixed(1)} ms, late ${own.lateMs.toFixed(1)} ms`,
    );
    return {
      'stored ÷ new': { value: own.stored, floor: floor.stored },
      'late ÷ early': { value: own.slower, floor: floor.slower },
    };
  } finally {
    await pool.end();
  }
}

/** Gives the agent one more instruction, and returns with the answer. */
type Turn = () => Promise<void>;

async function openAgent(runtime: Boxcar['runtime']): Promise<Turn> {
  const first = await runtime.submit('launch_principal', { profile_name: 'growing', instruction: 'Begin.' });
  const agentId = readReceipt(first).agent_id;
  await runtime.waitForTurn(readReceipt(first).turn_id);
  return async () => {
    const receipt = await runtime.submit('delegate_async', {
      target_strategy: 'reuse',
      target_ref: agentId,
      instruction: newText(),
    });
    const { status, result } = await runtime.waitForTurn(readReceipt(receipt).turn_id);
    if (status !== 'success' || result !== ANSWER)
      throw new Error(`a turn of the growing agent ended as ${status}`);
  };
}

async function turnOfFloor(pool: pg.Pool): Promise<void> {
  const ring = { turnId: newId(), epoch: 1 };
  const holderId = newId();
  await insertTurn(pool, { id: ring.turnId, promptCardId: newId(), prompt: newText(), joinId: null });
  await claimTurns(pool, [ring], holderId);
  await completeTurns(pool, [{ ...ring, cardId: newId(), text: ANSWER }], holderId);
}

async function repeat(times: number, turn: Turn): Promise<void> {
  for (let at = 0; at < times; at += 1) await turn();
}

async function measureGrowth(
  databaseUrl: string,
  schema: string,
  turns: number,
  open: () => Promise<Turn>,
): Promise<Grown> {
  const old = await open();
  const before = await sizeOf(databaseUrl, schema);
  await repeat(turns, old);
  const stored = (await sizeOf(databaseUrl, schema)) - before;
  // Alternating, so that a slow phase of the machine affects both.
  const early: number[] = [];
  const late: number[] = [];
  for (let pair = 0; pair < Math.min(PAIRS, turns); pair += 1) {
    const young = await open();
    await repeat(Math.min(BEFORE_EARLY, turns), young);
    early.push(await timed(young));
    late.push(await timed(old));
  }
  const [earlyMs, lateMs] = [median(early), median(late)];
  return {
    stored: stored / (turns * (TURN_BYTES + ANSWER.length)),
    slower: lateMs / earlyMs,
    earlyMs,
    lateMs,
  };
}

/** The size of a schema's tables in bytes, with their indexes and long values. */
async function sizeOf(databaseUrl: string, schema: string): Promise<number> {
  const [row] = await query<{ bytes: string }>(
    databaseUrl,
    `select coalesce(sum(pg_total_relation_size(c.oid)), 0)::text as bytes from pg_class c
     where c.relnamespace = '${schema}'::regnamespace and c.relkind = 'r'`,
  );
  return Number(row?.bytes ?? 0);
}
