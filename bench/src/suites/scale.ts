/**
 * Turns per second and CPU per turn by kind of process, with one, two and four worker processes and with one and two caller processes.
 * For four workers there is also the prediction of the model from one and two. The suite is neither judged nor part of `all`: the figures
 * depend on the machine as much as on Boxcar.
 */
import { cpus } from 'node:os';
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { forkBoxcarWorker, openCaller, PROFILE } from '../boxcar/system.js';
import { Cleanup } from '../cleanup.js';
import type { QueueName } from '../options.js';
import { readCpu } from '../profile/usage.js';
import { median } from '../report.js';
import {
  type CpuPerTurn,
  fitModel,
  KINDS,
  type Kind,
  predict,
  type ScalePoint,
  totalOf,
} from '../scale/model.js';
import { openDatabase, type Servers } from '../servers.js';
import type { Bench, Figures } from '../suite.js';
import type { Target } from '../system.js';
import { forkWorker, type WorkerProcess } from '../worker-process.js';
import { concurrencyOf, settle, targetOf } from './pair.js';

const SECONDS = 4;
const RAMP_MS = 1_500;
const SHAPES = [1, 2].flatMap((callers) => [1, 2, 4].map((workers) => ({ workers, callers })));
type Shape = (typeof SHAPES)[number];

const labelOf = ({ workers, callers }: Shape): string => `${workers} × ${callers}`;

export async function benchScale(bench: Bench, queue: QueueName): Promise<Figures> {
  const { servers, options, say } = bench;
  await using database = await openDatabase(servers, `scale_${queue}`);
  const target = { ...targetOf(servers, queue, concurrencyOf(options)), databaseUrl: database.url };
  const seconds = options.seconds ?? SECONDS;
  const caller = openCaller(target);
  await caller.runtime.applyProfile(PROFILE);
  await caller.close();
  await measure(servers, target, { workers: 1, callers: 1, seconds });
  await settle(database.url);
  const found = new Map<Shape, ScalePoint[]>(SHAPES.map((shape) => [shape, []]));
  for (let round = 0; round < options.rounds; round += 1)
    // Every other round runs backwards, so that a slow phase does not always affect the same shapes.
    for (const shape of round % 2 === 0 ? SHAPES : [...SHAPES].reverse()) {
      const point = await measure(servers, target, { ...shape, seconds });
      found.get(shape)?.push(point);
      say(`scale ${queue}: ${labelOf(shape)}: ${point.rate.toFixed(0)}/s`);
    }
  const points = SHAPES.map((shape) => medianOf(found.get(shape) ?? []));
  report(points, { queue, isJson: options.json });
  return {};
}

function medianOf(points: readonly ScalePoint[]): ScalePoint {
  const [first] = points;
  if (first === undefined) throw new Error('nothing was measured');
  const of = (read: (point: ScalePoint) => number): number => median(points.map(read));
  const cpuOf = (kind: Kind): number => of(({ cpuMs }) => cpuMs[kind]);
  return {
    workers: first.workers,
    callers: first.callers,
    rate: of(({ rate }) => rate),
    cpuMs: {
      worker: cpuOf('worker'),
      caller: cpuOf('caller'),
      postgres: cpuOf('postgres'),
      redis: cpuOf('redis'),
    },
    walBytes: of(({ walBytes }) => walBytes),
    commits: of(({ commits }) => commits),
  };
}

interface Counts {
  readonly ended: number;
  readonly wal: number;
  readonly commits: number;
}

const COUNTS = `select (select count(*)::int from boxcar.turns where status = 'success') as ended,
  pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8 as wal,
  (select xact_commit::float8 from pg_stat_database where datname = current_database()) as commits`;

/** Forks the processes of a shape, warms them up, and reads all counters at the start and the end of a window. */
async function measure(
  servers: Servers,
  target: Target,
  { workers, callers, seconds }: Shape & { readonly seconds: number },
): Promise<ScalePoint> {
  await using cleanup = new Cleanup();
  const observer = new pg.Client({ connectionString: target.databaseUrl });
  await observer.connect();
  cleanup.defer(() => observer.end());
  const keep = (child: WorkerProcess): number => {
    cleanup.defer(() => child.close());
    return child.pid;
  };
  const workerPids = (await Promise.all(Array.from({ length: workers }, () => forkBoxcarWorker(target)))).map(
    keep,
  );
  // Twice as many turns in progress as the workers run at once, as in `turns`.
  const load = { ...target, concurrency: (target.concurrency * workers * 2) / callers };
  const script = new URL('../boxcar/load', import.meta.url);
  const callerPids = (await Promise.all(Array.from({ length: callers }, () => forkWorker(script, load)))).map(
    keep,
  );
  const redisPids = 'pid' in servers.redis && target.redisUrl !== undefined ? [servers.redis.pid] : [];
  const count = async (): Promise<Counts> => {
    const { rows } = await observer.query<Counts>(COUNTS);
    if (rows[0] === undefined) throw new Error('no counts');
    return rows[0];
  };
  const read = async () => {
    const cpu = readCpu(servers.postgresPid, { worker: workerPids, caller: callerPids, redis: redisPids });
    return { at: performance.now(), counts: await count(), cpu };
  };
  await delay(RAMP_MS);
  const from = await read();
  await delay(seconds * 1000);
  const to = await read();
  const turns = to.counts.ended - from.counts.ended;
  if (turns === 0) throw new Error(`${labelOf({ workers, callers })}: no turn ended in ${seconds} s`);
  const perTurn = (kind: Kind): number => (to.cpu[kind] - from.cpu[kind]) / turns;
  return {
    workers,
    callers,
    rate: (turns * 1000) / (to.at - from.at),
    cpuMs: {
      worker: perTurn('worker'),
      caller: perTurn('caller'),
      postgres: perTurn('postgres'),
      redis: perTurn('redis'),
    },
    walBytes: (to.counts.wal - from.counts.wal) / turns,
    commits: (to.counts.commits - from.counts.commits) / turns,
  };
}

interface Row extends ScalePoint {
  /** The prediction of the model made from one and two workers with as many callers. */
  readonly predicted: number | null;
  readonly limit: string | null;
}

function predictFor(point: ScalePoint, points: readonly ScalePoint[]): Row {
  const pointOf = (workers: number) =>
    points.find((one) => one.workers === workers && one.callers === point.callers);
  const [one, two] = [pointOf(1), pointOf(2)];
  if (point.workers <= 2 || one === undefined || two === undefined)
    return { ...point, predicted: null, limit: null };
  const cores = cpus().length;
  const { rate, limit } = predict(fitModel(one, two, cores), { ...point, cores });
  return { ...point, predicted: rate, limit };
}

const cpuCells = (cpu: CpuPerTurn): string[] =>
  [...KINDS.map((kind) => cpu[kind]), totalOf(cpu)].map((ms) => ms.toFixed(2));

function report(
  points: readonly ScalePoint[],
  { queue, isJson }: { queue: QueueName; isJson: boolean },
): void {
  const rows = points.map((point) => predictFor(point, points));
  if (isJson) {
    for (const row of rows) console.log(JSON.stringify({ suite: 'scale', queue, ...row }));
    return;
  }
  const header = ['workers', 'callers', 'turns/s', 'predicted', ...KINDS, 'CPU ms', 'WAL KB', 'commits'];
  const cells = rows.map((row) => [
    `${row.workers}`,
    `${row.callers}`,
    row.rate.toFixed(0),
    row.predicted === null ? '' : `${row.predicted.toFixed(0)} (${row.limit})`,
    ...cpuCells(row.cpuMs),
    (row.walBytes / 1000).toFixed(1),
    row.commits.toFixed(2),
  ]);
  console.log(`\nscale on ${queue}: CPU ms per turn by kind of process`);
  for (const line of [header, header.map(() => '---'), ...cells]) console.log(`| ${line.join(' | ')} |`);
}
