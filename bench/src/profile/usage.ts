import { readdirSync, readFileSync } from 'node:fs';
import type { Servers } from '../servers.js';
import type { System } from '../system.js';

/** CPU milliseconds that the processes of a run have used so far. */
export type Usage = Readonly<Record<'caller' | 'worker' | 'postgres' | 'redis', number>>;

/** Linux reports in hundredths of a second, whatever the kernel's tick. */
const TICK_MS = 10;

/** @returns undefined on a system without /proc. */
export function readUsage(servers: Servers, system: System): Usage | undefined {
  const processes = readProcesses();
  if (processes.size === 0) return undefined;
  const { user, system: kernel } = process.cpuUsage();
  const of = (pid: number): number => processes.get(pid)?.milliseconds ?? 0;
  const backends = [...processes.values()].filter((entry) => entry.parent === servers.postgresPid);
  const ended = processes.get(servers.postgresPid)?.ofEnded ?? 0;
  return {
    caller: (user + kernel) / 1000,
    worker: of(system.workerPid),
    postgres: of(servers.postgresPid) + ended + backends.reduce((sum, entry) => sum + entry.milliseconds, 0),
    redis: 'pid' in servers.redis ? of(servers.redis.pid) : 0,
  };
}

/**
 * The CPU milliseconds so far of several processes by kind, and of Postgres with all its backends.
 *
 * @throws on a system without /proc.
 */
export function readCpu(
  postgresPid: number,
  pids: Readonly<Record<'caller' | 'worker' | 'redis', readonly number[]>>,
): Usage {
  const processes = readProcesses();
  const postgres = processes.get(postgresPid);
  if (postgres === undefined) throw new Error('CPU by process is read from /proc, which is not here');
  const sumOf = (of: readonly number[]): number =>
    of.reduce((sum, pid) => sum + (processes.get(pid)?.milliseconds ?? 0), 0);
  const backends = [...processes.values()].filter(({ parent }) => parent === postgresPid);
  return {
    caller: sumOf(pids.caller),
    worker: sumOf(pids.worker),
    postgres: backends.reduce((sum, one) => sum + one.milliseconds, postgres.milliseconds + postgres.ofEnded),
    redis: sumOf(pids.redis),
  };
}

interface Process {
  readonly parent: number;
  readonly milliseconds: number;
  /** The CPU time of its ended children. */
  readonly ofEnded: number;
}

function readProcesses(): ReadonlyMap<number, Process> {
  const found = new Map<number, Process>();
  for (const name of listProc()) {
    const pid = Number(name);
    if (!Number.isInteger(pid)) continue;
    try {
      // The fields after the name in brackets, which may contain anything: state, parent, … user and system time, its own and of ended
      // children.
      const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ').at(-1)?.split(' ') ?? [];
      found.set(pid, {
        parent: Number(fields[1]),
        milliseconds: (Number(fields[11]) + Number(fields[12])) * TICK_MS,
        ofEnded: (Number(fields[13]) + Number(fields[14])) * TICK_MS,
      });
    } catch {
      // The process has ended meanwhile.
    }
  }
  return found;
}

function listProc(): string[] {
  try {
    return readdirSync('/proc');
  } catch {
    return [];
  }
}
