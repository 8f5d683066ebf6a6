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

/** A hash of a handler's arguments, from their JSON schema; '' when the schema cannot be described. */
export function argumentsHash({ input }: Pick<Handler, 'input'>): string {
  const known = hashes.get(input);
  if (known !== undefined) return known;
  let hash = '';
  try {
    const schema = z.toJSONSchema(input, { io: 'input', unrepresentable: 'any' }) as unknown as JsonValue;
    hash = sha256(canonicalJson(schema)).slice(0, 16);
  } catch {
    // The JSON schema of a plugin cannot be described, so its versions cannot be told apart.
  }
  hashes.set(input, hash);
  return hash;
}

/** The names and argument hashes of a process's primitives or tools, as it announces them. */
export const argumentHashes = (known: ReadonlyMap<string, Pick<Handler, 'input'>>): Record<string, string> =>
  Object.fromEntries([...known].map(([name, item]) => [name, argumentsHash(item)]));

/** Maintains a row with the primitives that this door knows: a process can serve a door without having a worker. */
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
      // If the removal takes too long, the row's lease ends by itself: a database that does not answer must not delay the close.
      const removing = renewing.then(() => removeWorker(pool, id));
      await withinTime(removing, REMOVE_MS, 'removing the row of the door').catch(() => undefined);
    },
  };
}
