/** Finds a tape by what callers say, and makes one of a new name. */
import { KernelError, parseId, parseJsonValue, tryParseId } from '@boxcar/kernel';
import {
  createTape,
  findActor,
  findTape,
  type Queryable,
  type TapeActor,
  type TapeAddress,
} from '@boxcar/store';
import { newId } from '../packer.js';
import type { TapeConnection } from './connection.js';
import { Tape } from './tape.js';
import { tapeNotFound } from './tape-errors.js';
import type { TapeTarget } from './tape-types.js';

export interface TapeOptions {
  /** Id or name; default `default`. */
  readonly projectId?: string;
  /** In whose name it is used: id or name of an agent. Default: the operator, who may use every tape of the project. */
  readonly as?: string;
  /** Make a tape of this name when there is none (default); otherwise that is `not_found`. */
  readonly create?: boolean;
}

const MAX_NAME = 512;

async function findAgent(db: Queryable, project: string, agent: string): Promise<TapeActor> {
  for (const [field, name] of Object.entries({ project, agent })) parseJsonValue(name, field);
  const found = await findActor(db, {
    project,
    projectId: tryParseId(project),
    agent,
    agentId: tryParseId(agent),
  });
  if (found === undefined)
    throw new KernelError('not_found', {
      message: `No project '${project}'.`,
      details: { project_id: project },
    });
  if (found.agentId === null)
    throw new KernelError('not_found', {
      message: `No agent '${agent}' in project '${project}'.`,
      details: { agent_id: agent, project_id: found.projectId },
    });
  return { projectId: found.projectId, actorId: found.agentId };
}

function checkName(name: string): string {
  parseJsonValue(name, 'tape');
  if (name !== '' && name.length <= MAX_NAME) return name;
  throw new KernelError('bad_request', {
    message: `tape: a name has 1 to ${MAX_NAME} characters.`,
    details: { field: 'tape' },
  });
}

async function toAddress(db: Queryable, target: TapeTarget, project: string): Promise<TapeAddress> {
  if (typeof target === 'string') return { kind: 'name', name: checkName(target) };
  if ('box' in target) return { kind: 'box', boxId: parseId<'box'>(target.box, 'box') };
  return { kind: 'agent', agentId: (await findAgent(db, project, target.agent)).actorId };
}

/** Which tape is meant, and in whose name. @throws KernelError `not_found` for project or agent, `bad_request`. */
export async function findAddress(
  db: Queryable,
  target: TapeTarget,
  { projectId: project = 'default', as = 'operator' }: Omit<TapeOptions, 'create'>,
): Promise<{ readonly actor: TapeActor; readonly address: TapeAddress }> {
  const actor = await findAgent(db, project, as);
  return { actor, address: await toAddress(db, target, project) };
}

/**
 * A tape by its name, made with its bootstrap when there is none; that of an agent; or a box that is a tape.
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
