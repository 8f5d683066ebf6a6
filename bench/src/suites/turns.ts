import { loadFor } from '../measure.js';
import type { QueueName } from '../options.js';
import { profileLoad } from '../profile/profile-load.js';
import { readUsage, type Usage } from '../profile/usage.js';
import { type Figure, median, type Unmeasured } from '../report.js';
import { query, type Servers } from '../servers.js';
import type { Bench, Figures } from '../suite.js';
import type { System } from '../system.js';
import { alternate, concurrencyOf, settle } from './pair.js';

const SECONDS = 4;

/** The results of one round of a side, in total and per turn. */
interface Round {
  readonly rate: number;
  /** Of all processes together; undefined on a system without /proc. */
  readonly cpuMs: number | undefined;
  readonly walKb: number;
}

/** From submit to answer, with one step, one worker process, and twice as many turns in progress as the worker runs at once. */
export async function benchTurns(bench: Bench, queue: QueueName): Promise<Figures> {
  const { servers, options, say } = bench;
  const pair = await bench.openPair();
  const load = { clients: concurrencyOf(options) * 2, seconds: options.seconds ?? SECONDS };
  const measure = async (system: System): Promise<Round> => {
    const round = await measureRound(servers, system, load);
    say(`turns ${queue}: ${system.name} ${round.rate.toFixed(0)}/s`);
    return round;
  };
  const measureLeast = async (): Promise<Round> => {
    await using least = await pair.openLeast();
    return await measure(least);
  };
  for (const system of [pair.floor, pair.boxcar]) await loadFor(system, load);
  await settle(servers.databaseUrl);
  const rounds = await alternate(options.rounds, {
    floor: () => measure(pair.floor),
    least: measureLeast,
    boxcar: () => measure(pair.boxcar),
  });
  if (options.profile !== undefined) {
    for (const system of [pair.floor, pair.boxcar]) {
      const name = `${system.name}-${queue}`;
      say(`profiled: ${await profileLoad(servers, system, { ...load, folder: options.profile, name })}`);
    }
  }
  return {
    '': middleOf(rounds, ({ rate }) => rate),
    'CPU per turn': cpuOf(rounds),
    'WAL per turn': middleOf(rounds, ({ walKb }) => walKb),
  };
}

type Rounds = Readonly<Record<'floor' | 'least' | 'boxcar', readonly Round[]>>;

function middleOf({ floor, least, boxcar }: Rounds, of: (round: Round) => number): Figure {
  const middle = (rounds: readonly Round[]): number => median(rounds.map(of));
  return { value: middle(boxcar), floor: middle(floor), least: middle(least) };
}

function cpuOf(rounds: Rounds): Figure | Unmeasured {
  if (Object.values(rounds).some((side) => side.some(({ cpuMs }) => cpuMs === undefined)))
    return { missing: 'no /proc, which tells the CPU of all processes' };
  return middleOf(rounds, ({ cpuMs = 0 }) => cpuMs);
}

async function measureRound(
  servers: Servers,
  system: System,
  load: Parameters<typeof loadFor>[1],
): Promise<Round> {
  const [from, walFrom] = [readUsage(servers, system), await walBytes(servers.databaseUrl)];
  const { rate, total } = await loadFor(system, load);
  const [to, walTo] = [readUsage(servers, system), await walBytes(servers.databaseUrl)];
  return {
    rate,
    cpuMs: from === undefined || to === undefined ? undefined : (sumOf(to) - sumOf(from)) / total,
    walKb: (walTo - walFrom) / 1000 / total,
  };
}

const sumOf = (usage: Usage): number => Object.values(usage).reduce((sum, ms) => sum + ms, 0);

/** The length of the WAL so far, for all databases. */
async function walBytes(databaseUrl: string): Promise<number> {
  const [row] = await query<{ bytes: number }>(
    databaseUrl,
    "select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::float8 as bytes",
  );
  return row?.bytes ?? Number.NaN;
}
