/** Finds the tape that a caller names, and makes a tape for a new name. */
import {
  isPlainName,
  KernelError,
  MAX_TAPE_NAME,
  PLAIN_NAME,
  parseId,
  parseJsonValue,
  sessionTapeName,
  toName,
} from '@boxcar/kernel';
import { createTape, findTape, type Queryable, type TapeActor, type TapeAddress } from '@boxcar/store';
import { findActor, newId } from '../lib/index.js';
import type { TapeConnection } from './connection.js';
import { Tape } from './tape.js';
import { tapeNotFound } from './tape-errors.js';
import type { TapeTarget } from './tape-types.js';

export interface TapeOptions {
  /** Id or name; default `default`. */
  readonly projectId?: string | undefined;
  /** The id or name of the agent in whose name the tape is used. Default: the operator, who may use every tape of the project. */
  readonly as?: string | undefined;
  /** Make a tape of this name when it does not exist (default). With false, a missing tape is `not_found`. */
  readonly create?: boolean | undefined;
}

function toNamed(given: string): TapeAddress {
  parseJsonValue(given, 'tape');
  const name = toName(given);
  if (name !== '' && name.length <= MAX_TAPE_NAME && isPlainName(name))
    return { kind: 'name', name, ...(given === name ? {} : { given }) };
  throw new KernelError('bad_request', {
    message: `tape: a name has 1 to ${MAX_TAPE_NAME} characters, and ${PLAIN_NAME}.`,
    details: { field: 'tape' },
  });
}

async function toAddress(db: Queryable, target: TapeTarget, project: string): Promise<TapeAddress> {
  if (typeof target === 'string') return toNamed(target);
  if ('session' in target) return toNamed(sessionTapeName(target));
  if ('box' in target) return { kind: 'box', boxId: parseId<'box'>(target.box, 'box') };
  return { kind: 'agent', agentId: (await findActor(db, project, target.agent)).agentId };
}

/** The address of the tape and the actor. @throws KernelError `not_found` for project or agent, `bad_request`. */
export async function findAddress(
  db: Queryable,
  target: TapeTarget,
  { projectId: project = 'default', as = 'operator' }: Omit<TapeOptions, 'create'>,
): Promise<{ readonly actor: TapeActor; readonly address: TapeAddress }> {
  const { projectId, agentId } = await findActor(db, project, as);
  return { actor: { projectId, actorId: agentId }, address: await toAddress(db, target, project) };
}

/**
 * Opens a tape by its name, which is made with its bootstrap if it does not exist; the tape of an agent; or a box that is a tape.
 *
 * @throws KernelError `not_found` for project, agent, box, or a name with `create: false`.
 */
export async function openTape(
  connection: TapeConnection,
  target: TapeTarget,
  options: TapeOptions = {},
): Promise<Tape> {
  const { db } = connection;
  const { create = true } = options;
  const { actor, address } = await findAddress(db, target, options);
  let row = await findTape(db, address, actor);
  if (row === undefined && address.kind === 'name' && create) {
    await createTape(db, { ...actor, boxId: newId<'box'>(), name: address.name });
    row = await findTape(db, address, actor);
  }
  if (row === undefined) throw tapeNotFound(address);
  return new Tape(connection, { address, actor, boxId: row.boxId });
}
