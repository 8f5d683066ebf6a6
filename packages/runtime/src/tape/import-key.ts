/**
 * The data that is stored under the key of an import, and the check whether a requested import is the same (I4, I6 and I7 of
 * `import-tape.ts`).
 */
import { createHash } from 'node:crypto';
import { type BoxId, isPlainName, KernelError, PLAIN_NAME, toName } from '@boxcar/kernel';
import {
  findTape,
  type ImportKey,
  type KnownImport,
  type Queryable,
  type TapeActor,
  type TapeAddress,
  type TapeRow,
} from '@boxcar/store';
import type { TapeSource } from './import-source.js';
import { notAuthorized } from './tape-errors.js';

export interface ImportedTape {
  readonly boxId: BoxId;
  /** True when nothing was imported now, because the key was already used for the same import. */
  readonly isRepeated: boolean;
  /** Positions of the first and last appended entry. Other writers may have appended entries between them. */
  readonly first: number;
  readonly last: number;
  /** Lines of the main file. */
  readonly lines: number;
  /** The number of earlier incarnations that were made. */
  readonly archived: number;
}

/** A requested import: its actor, its target and its source. */
export interface Import {
  readonly actor: TapeActor;
  readonly address: TapeAddress;
  readonly key: string;
  readonly isAppend: boolean;
  readonly source: TapeSource;
}

const isAt = (row: TapeRow, address: TapeAddress): boolean => {
  if (address.kind === 'box') return row.boxId === address.boxId;
  return address.kind === 'name'
    ? toName(row.name ?? '') === address.name
    : row.ownerAgentId === address.agentId;
};

/** The data that is stored under the key of an import. */
export interface StoredImport extends Omit<ImportedTape, 'isRepeated'> {
  /** How many entries an append has written. Absent: the import is finished. */
  readonly written?: number;
  /** The call that wrote the last chunk of an append. */
  readonly by?: string;
}

export const storedIn = ({ response }: KnownImport): StoredImport => response as unknown as StoredImport;

/** The value that is stored as the hash of the lines until all of them are appended. */
export const partHashOf = (hash: string): string =>
  createHash('sha256').update(`part of ${hash}`).digest('hex');

export const isFinished = (known: KnownImport): boolean => storedIn(known).written === undefined;

const isOfLines = (known: KnownImport, hash: string): boolean =>
  known.hash === (isFinished(known) ? hash : partHashOf(hash));

export const toAnswer = (
  { boxId, first, last, lines, archived }: StoredImport,
  isRepeated: boolean,
): ImportedTape => ({ boxId, isRepeated, first, last, lines, archived });

/**
 * Checks that the actor may use the import under the key, and that the requested import is the same. @throws KernelError
 * `idempotency_conflict`, `box_not_authorized`.
 */
export async function checkSame(
  db: Queryable,
  { actor, address, key }: Import,
  { known, hash }: { readonly known: KnownImport; readonly hash: string },
): Promise<void> {
  const { boxId } = storedIn(known);
  const row = await findTape(db, { kind: 'box', boxId }, actor);
  if (row !== undefined && !row.isOwn && row.appendGrant === null)
    throw notAuthorized(row.boxId, actor.actorId, 'append');
  if (isOfLines(known, hash) && (row === undefined || isAt(row, address))) return;
  throw new KernelError('idempotency_conflict', {
    message: `Key '${key.slice(KEY.length)}' was used for other lines, or another tape.`,
    details: { dedup_key: key.slice(KEY.length), box_id: boxId },
  });
}

export const KEY = 'import:';
const MAX_KEY = 512;

export function checkKey(key: string): string {
  if (key !== '' && key.length <= MAX_KEY && isPlainName(key) && key.isWellFormed()) return key;
  throw new KernelError('bad_request', {
    message: `dedupKey: has 1 to ${MAX_KEY} characters, and ${PLAIN_NAME}.`,
    details: { field: 'dedupKey' },
  });
}

/** Two imports never fill the same positions of a tape. */
export const isSameImport = (one: StoredImport, other: StoredImport): boolean =>
  one.boxId === other.boxId && one.first === other.first && one.last === other.last;

export const operationOf = ({ actor, key }: Import): ImportKey => ({ projectId: actor.projectId, key });
