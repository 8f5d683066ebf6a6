/**
 * The capacity of a machine, or of a cell of several, from two measured points: with one worker process and with two. Pure. The limits of
 * the model are described in docs/explanation/scaling.md.
 */

export const KINDS = ['worker', 'caller', 'postgres', 'redis'] as const;
export type Kind = (typeof KINDS)[number];

/** CPU milliseconds per turn. */
export type CpuPerTurn = Readonly<Record<Kind, number>>;

export interface ScalePoint {
  readonly workers: number;
  readonly callers: number;
  /** Turns per second. */
  readonly rate: number;
  readonly cpuMs: CpuPerTurn;
  readonly walBytes: number;
  /** Commits per turn. */
  readonly commits: number;
}

export interface Machine {
  readonly cores: number;
  readonly workers: number;
  readonly callers: number;
}

export type Limit = 'all cores' | 'worker processes' | 'caller processes' | 'the Redis thread';

export interface Prediction {
  readonly rate: number;
  readonly limit: Limit;
  readonly cpuMs: CpuPerTurn;
}

export interface Model {
  readonly one: ScalePoint;
  readonly two: ScalePoint;
  /** The share of all cores that the measured processes used with two workers; the rest was idle, or used by other processes. */
  readonly busy: number;
}

const SECOND_MS = 1_000;
/** The share of a core that a server may use in steady state, so that bursts do not queue up. */
const HEADROOM = 0.7;

const mapKinds = (of: (kind: Kind) => number): CpuPerTurn => ({
  worker: of('worker'),
  caller: of('caller'),
  postgres: of('postgres'),
  redis: of('redis'),
});

export const totalOf = (cpu: CpuPerTurn): number => KINDS.reduce((sum, kind) => sum + cpu[kind], 0);

/** @param cores - The number of cores of the machine on which both points were measured. */
export function fitModel(one: ScalePoint, two: ScalePoint, cores: number): Model {
  return { one, two, busy: Math.min(1, (two.rate * totalOf(two.cpuMs)) / (cores * SECOND_MS)) };
}

/** The factor by which the CPU per turn grows when the number of workers doubles. At least 1: an improvement is not extrapolated. */
export const growthOf = ({ one, two }: Model): CpuPerTurn =>
  mapKinds((kind) => Math.max(1, two.cpuMs[kind] / one.cpuMs[kind]));

/** The CPU per turn grows by the same factor with each doubling. */
export function cpuAt(model: Model, workers: number): CpuPerTurn {
  if (workers <= 1) return model.one.cpuMs;
  const growth = growthOf(model);
  return mapKinds((kind) => model.two.cpuMs[kind] * growth[kind] ** (Math.log2(workers) - 1));
}

/** The lowest of all limits. A Node.js process and a Redis server have one thread each. */
export function predict(model: Model, { cores, workers, callers }: Machine): Prediction {
  const cpuMs = cpuAt(model, workers);
  const limits: readonly (readonly [Limit, number])[] = [
    ['all cores', (cores * model.busy * SECOND_MS) / totalOf(cpuMs)],
    ['worker processes', (workers * SECOND_MS) / cpuMs.worker],
    ['caller processes', (callers * SECOND_MS) / cpuMs.caller],
    ['the Redis thread', SECOND_MS / cpuMs.redis],
  ];
  const [limit, rate] = limits.reduce((lowest, next) => (next[1] < lowest[1] ? next : lowest));
  return { rate, limit, cpuMs };
}

export interface Size {
  readonly workers: number;
  readonly callers: number;
  readonly postgresCores: number;
  readonly redisServers: number;
  readonly cores: number;
  readonly walMBPerSecond: number;
  readonly commitsPerSecond: number;
}

function sizeWith(model: Model, rate: number, cpuMs: CpuPerTurn): Size {
  const coresOf = (kind: Kind): number => Math.ceil((rate * cpuMs[kind]) / (SECOND_MS * HEADROOM));
  const sizes = mapKinds(coresOf);
  return {
    workers: sizes.worker,
    callers: sizes.caller,
    postgresCores: sizes.postgres,
    redisServers: sizes.redis,
    cores: KINDS.reduce((sum, kind) => sum + sizes[kind], 0),
    walMBPerSecond: (rate * model.two.walBytes) / 1e6,
    commitsPerSecond: rate * model.two.commits,
  };
}

/**
 * The size that a rate needs when every process may use 70 % of its core.
 *
 * @returns `least` when the CPU per turn stays as with two workers; `most` when it continues to grow with each doubling.
 */
export function sizeFor(model: Model, rate: number): { readonly least: Size; readonly most: Size } {
  const least = sizeWith(model, rate, model.two.cpuMs);
  let most = least;
  // More workers need more CPU, which needs more workers. The iteration converges unless the growth is extreme.
  for (let round = 0; round < 20; round += 1)
    most = sizeWith(model, rate, cpuAt(model, Math.max(2, most.workers)));
  return { least, most };
}
