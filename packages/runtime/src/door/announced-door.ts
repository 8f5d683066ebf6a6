import { randomInt } from 'node:crypto';
import { hostname } from 'node:os';
import { canonicalJson, errorText, type JsonValue, sha256 } from '@boxcar/kernel';
import { announceDoor, removeWorker } from '@boxcar/store';
import { z } from 'zod';
import type { RuntimeCore } from '../core/index.js';
import type { Handler } from '../handler/index.js';
import { newId, withinTime } from '../lib/index.js';

const LEASE_MS = 30_000;
const RENEW_MS = 10_000;
const REMOVE_MS = 2_000;

const hashes = new WeakMap<z.ZodType, string>();

/** A hash of the arguments that a handler takes, by their JSON schema; '' when they have none. */
export function argumentsHash({ input }: Pick<Handler, 'input'>): string {
  const known = hashes.get(input);
  if (known !== undefined) return known;
  let hash = '';
  try {
    const schema = z.toJSONSchema(input, { io: 'input', unrepresentable: 'any' }) as unknown as JsonValue;
    hash = sha256(canonicalJson(schema)).slice(0, 16);
  } catch {
    // A schema of a plugin that cannot be described: nothing is known about its versions.
  }
  hashes.set(input, hash);
  return hash;
}

/** What a process says of the primitives that it knows, or of its tools. */
export const argumentHashes = (known: ReadonlyMap<string, Pick<Handler, 'input'>>): Record<string, string> =>
  Object.fromEntries([...known].map(([name, item]) => [name, argumentsHash(item)]));

/** Keeps a row that says which primitives this door knows: a process may serve a door and have no worker. */
export function announce(runtime: RuntimeCore): { close(): Promise<void> } {
  const { pool, log, builds } = runtime;
  const id = newId<'worker'>();
  const lockKey = randomInt(2 ** 47).toString();
  const renew = async (): Promise<void> => {
    try {
      await announceDoor(pool, {
        id,
        lockKey,
        leaseMs: LEASE_MS,
        info: { hostname: hostname(), pid: process.pid, primitives: argumentHashes(runtime.handlers) },
        schemaVersion: builds.build.schemaVersion,
      });
    } catch (error) {
      log('warn', 'door.announce_failed', { error: errorText(error) });
    }
  };
  let renewing = renew();
  const timer = setInterval(() => {
    renewing = renewing.then(renew);
  }, RENEW_MS);
  timer.unref();
  return {
    close: async () => {
      clearInterval(timer);
      // Otherwise its lease ends by itself: a database that does not answer must not delay the close.
      const removing = renewing.then(() => removeWorker(pool, id));
      await withinTime(removing, REMOVE_MS, 'removing the row of the door').catch(() => undefined);
    },
  };
}
