import type { TcpProxy } from '@boxcar/testkit/standalone';
import type { Fleet } from './fleet.js';
import type { SoakPlace } from './place.js';
import type { Random } from './random.js';

/** What a fault has to do with; it returns once it is over. */
export interface Struck {
  readonly fleet: Fleet;
  readonly place: SoakPlace;
  readonly postgres: TcpProxy;
  readonly redis: TcpProxy | undefined;
  readonly random: Random;
  readonly wait: (ms: number) => Promise<void>;
}

type Fault = (struck: Struck) => Promise<void>;

/** Leaves time for a few things to go wrong, and is over before people give up. */
const SHORT = [200, 1_000] as const;

/** What may happen to a connection, whichever server it leads to. */
const connectionFaults = (name: string, proxyOf: (struck: Struck) => TcpProxy | undefined) => {
  const during =
    (begin: (proxy: TcpProxy) => unknown): Fault =>
    async (struck) => {
      const proxy = proxyOf(struck);
      if (proxy === undefined) return;
      await begin(proxy);
      await struck.wait(struck.random.between(...SHORT));
      await proxy.restore();
    };
  return {
    [`${name}: connections broken`]: during((proxy) => proxy.breakOnce()),
    [`${name}: connections broken in the middle of a message`]: during((proxy) => proxy.breakInMessage()),
    [`${name}: out of reach`]: during((proxy) => proxy.cut()),
    [`${name}: slow`]: during((proxy) => proxy.delay(30)),
    [`${name}: hears nothing`]: during((proxy) => proxy.stallQuestions()),
    [`${name}: is not heard`]: during((proxy) => proxy.stallAnswers()),
  };
};

/** The faults that this place can bear, by name. To add one, add it here. */
export function faultsOf(place: SoakPlace): ReadonlyMap<string, Fault> {
  const { redis, restartPostgres } = place;
  return new Map<string, Fault>(
    Object.entries({
      'worker killed': ({ fleet, random }: Struck) => fleet.kill(random),
      'worker stopped beyond its lease': ({ fleet, random, wait }: Struck) => fleet.freeze(random, wait),
      ...connectionFaults('postgres', ({ postgres }) => postgres),
      ...(redis === undefined
        ? {}
        : {
            ...connectionFaults('redis', (struck) => struck.redis),
            'redis flushed': () => redis.flush(),
            'redis killed and started': async ({ random, wait }: Struck) => {
              await redis.stop();
              await wait(random.between(...SHORT));
              await redis.start();
            },
          }),
      ...(restartPostgres === undefined ? {} : { 'postgres killed and started': () => restartPostgres() }),
    }),
  );
}
