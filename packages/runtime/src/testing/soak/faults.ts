import type { TcpProxy } from '@boxcar/testkit/standalone';
import { CALLER_LIMIT_MS, type Callers } from './callers.js';
import { type Fleet, WORKER_LIMIT_MS } from './fleet.js';
import type { SoakPlace } from './place.js';
import type { Random } from './random.js';

/** The input of a fault. A fault returns when it is over. */
export interface Struck {
  readonly fleet: Fleet;
  readonly callers: Callers;
  readonly place: SoakPlace;
  readonly postgres: TcpProxy;
  readonly redis: TcpProxy | undefined;
  readonly random: Random;
  readonly wait: (ms: number) => Promise<void>;
}

type Strike = (struck: Struck) => Promise<void>;

export interface Fault {
  readonly strike: Strike;
  /**
   * The longest time that other processes wait for the one process under fault. Undefined: the fault affects all
   * processes.
   */
  readonly limitMs?: number;
}

/** Long enough for a few things to go wrong, and over before clients give up. */
const SHORT = [200, 1_000] as const;

/** Faults of a connection, for any server. */
const connectionFaults = (name: string, proxyOf: (struck: Struck) => TcpProxy | undefined) => {
  const during = (begin: (proxy: TcpProxy) => unknown): Fault => ({
    strike: async (struck) => {
      const proxy = proxyOf(struck);
      if (proxy === undefined) return;
      await begin(proxy);
      await struck.wait(struck.random.between(...SHORT));
      await proxy.restore();
    },
  });
  return {
    [`${name}: connections broken`]: during((proxy) => proxy.breakOnce()),
    [`${name}: connections broken in the middle of a message`]: during((proxy) => proxy.breakInMessage()),
    [`${name}: out of reach`]: during((proxy) => proxy.cut()),
    [`${name}: slow`]: during((proxy) => proxy.delay(30)),
    [`${name}: hears nothing`]: during((proxy) => proxy.stallQuestions()),
    [`${name}: is not heard`]: during((proxy) => proxy.stallAnswers()),
  };
};

const atWorker = (strike: Strike): Fault => ({ strike, limitMs: WORKER_LIMIT_MS });
const atCaller = (strike: Strike): Fault => ({ strike, limitMs: CALLER_LIMIT_MS });

/** Faults that affect one process. */
const PROCESS_FAULTS: Readonly<Record<string, Fault>> = {
  'worker killed': atWorker(({ fleet, random }) => fleet.kill(random)),
  'worker stopped beyond its lease': atWorker(({ fleet, random, wait }) => fleet.freeze(random, wait)),
  'worker: connections of its pool silent': atWorker(({ fleet, random, wait }) =>
    fleet.silence('pool', random, wait),
  ),
  'worker: direct connections silent': atWorker(({ fleet, random, wait }) =>
    fleet.silence('direct', random, wait),
  ),
  'worker: all connections silent': atWorker(({ fleet, random, wait }) => fleet.silence('all', random, wait)),
  'caller stopped': atCaller(({ callers, random, wait }) => callers.freeze(random, wait)),
  'caller: all connections silent': atCaller(({ callers, random, wait }) => callers.silence(random, wait)),
};

/** The faults that are possible in this place, by name. Add new faults here. */
export function faultsOf(place: SoakPlace): ReadonlyMap<string, Fault> {
  const { redis, restartPostgres } = place;
  return new Map<string, Fault>(
    Object.entries({
      ...PROCESS_FAULTS,
      ...connectionFaults('postgres', ({ postgres }) => postgres),
      ...(redis === undefined
        ? {}
        : {
            ...connectionFaults('redis', (struck) => struck.redis),
            'redis flushed': { strike: () => redis.flush() },
            'redis killed and started': {
              strike: async ({ random, wait }: Struck) => {
                await redis.stop();
                await wait(random.between(...SHORT));
                await redis.start();
              },
            },
          }),
      ...(restartPostgres === undefined
        ? {}
        : { 'postgres killed and started': { strike: () => restartPostgres() } }),
    }),
  );
}
