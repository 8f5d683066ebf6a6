/**
 * Makes a tape out of lines in the original's form. Source: docs/tape.md, "Files".
 *
 * I1  All or nothing: one transaction, whatever the size.
 * I2  The source is read to its end before the transaction begins (`import-source.ts`).
 * I3  Locks that others need are taken last, after all cards are written: the key, the name of a new tape, the row of an existing tape.
 * I4  An import with a key happens once: the same import again changes nothing and gives the first answer. Two concurrent imports
 *     both write; the second one to finish rolls back and gives the answer of the first.
 * I5  The tape has exactly the content of its lines and no bootstrap of its own, so that its export equals the file.
 */
import {
  type BoxId,
  isPlainName,
  KernelError,
  PLAIN_NAME,
  type ProjectId,
  parseSessionGraph,
  parseTapeDate,
} from '@boxcar/kernel';
import {
  appendStaged,
  archiveTape,
  beginImport,
  beginTape,
  endImport,
  findImport,
  findTape,
  insertImportedSession,
  type KnownImport,
  openStage,
  type Queryable,
  stageEntries,
  type TapeActor,
  type TapeAddress,
  type TapeRow,
  type Tx,
  transaction,
} from '@boxcar/store';
import type pg from 'pg';
import { withHandlerSlot } from '../handler-slots.js';
import { newId } from '../packer.js';
import { checkSessionGraph, ReadSource, type TapeSource } from './import-source.js';
import { findAddress, type TapeOptions } from './open-tape.js';
import { notAuthorized, tapeNotFound, toAppendError } from './tape-errors.js';
import type { TapeTarget } from './tape-types.js';

export interface ImportOptions extends Omit<TapeOptions, 'create'> {
  /** Also after the entries of a tape that exists. */
  readonly append?: boolean;
  /** Names this import in its project: the same again imports nothing and gives the first answer, other lines are `idempotency_conflict`. */
  readonly dedupKey?: string;
  /** Told after each chunk how many lines were read, of all files. */
  readonly onProgress?: (lines: number) => void;
}

export interface ImportedTape {
  readonly boxId: BoxId;
  /** Another import had been made before under this key. */
  readonly isRepeated: boolean;
  /** Positions of the first and last entry that was appended. */
  readonly first: number;
  readonly last: number;
  /** Lines of the main file. */
  readonly lines: number;
  /** Earlier incarnations that were made. */
  readonly archived: number;
}

/** A requested import: its actor, its target and its source. */
interface Import {
  readonly actor: TapeActor;
  readonly address: TapeAddress;
  readonly key: string;
  readonly isAppend: boolean;
  readonly source: TapeSource;
}

interface Filled {
  readonly first: number;
  readonly last: number;
  readonly lines: number;
}

/** Puts the entries of a file that were set aside on a tape. */
async function fill(
  tx: Tx,
  { boxId, file, actor }: { readonly boxId: BoxId; readonly file: number; readonly actor: TapeActor },
  read: ReadSource,
): Promise<Filled> {
  const { entries: count, lines } = read.files[file] ?? { entries: 0, lines: 0 };
  const result = await appendStaged(tx, { ...actor, boxId, file, count });
  if (result.outcome !== 'appended') throw toAppendError(result, boxId, actor.actorId);
  return { first: result.first, last: result.head, lines };
}

const nameTaken = (name: string): KernelError =>
  new KernelError('bad_request', {
    message: `There is a tape '${name}': import under another name, or with append.`,
    details: { field: 'tape', tape: name },
  });

/** The incarnations of a new tape, oldest first: each but the last is archived once it is filled. */
async function makeTape(
  tx: Tx,
  {
    name,
    boxId,
    actor,
    source,
  }: Pick<Import, 'actor' | 'source'> & { readonly name: string; readonly boxId: BoxId },
  read: ReadSource,
): Promise<Filled> {
  const { sessionGraph = null } = source;
  const main = read.files.length - 1;
  let previousBoxId: BoxId | null = null;
  for (let file = 0; file < main; file++) {
    const olderId = newId<'box'>();
    const begun = await beginTape(tx, { ...actor, boxId: olderId, name, previousBoxId, sessionGraph: null });
    if (begun === undefined) throw nameTaken(name);
    await fill(tx, { boxId: olderId, file, actor }, read);
    await archiveTape(tx, olderId);
    previousBoxId = olderId;
  }
  const begun = await beginTape(tx, { ...actor, boxId, name, previousBoxId, sessionGraph });
  if (begun === undefined) throw nameTaken(name);
  await keepLineage(tx, { name, boxId, projectId: actor.projectId }, sessionGraph);
  return fill(tx, { boxId, file: main, actor }, read);
}

/** A tape that comes under the name it had is the session that it was. */
async function keepLineage(
  tx: Tx,
  tape: { readonly name: string; readonly boxId: BoxId; readonly projectId: ProjectId },
  sessionGraph: string | null,
): Promise<void> {
  const line = parseSessionGraph(sessionGraph ?? '').find(({ session_id: session }) => session === tape.name);
  if (line === undefined || line.parent_session_id === null) return;
  await insertImportedSession(tx, {
    ...tape,
    parentSessionId: line.parent_session_id,
    fromAnchor: line.from_anchor,
    status: line.status,
    createdAt: line.created_at === null ? null : parseTapeDate(line.created_at),
  });
}

/** The tape that is meant, when there is one to append to. @throws KernelError `not_found`, `bad_request`. */
async function findExisting(
  db: Queryable,
  { address, source, isAppend, actor }: Import,
): Promise<BoxId | undefined> {
  const row = await findTape(db, address, actor);
  if (row === undefined) {
    if (address.kind === 'name') return undefined;
    throw tapeNotFound(address);
  }
  if (!isAppend) throw nameTaken(row.name ?? row.boxId);
  if (!row.isOwn && row.appendGrant === null) throw notAuthorized(row.boxId, actor.actorId, 'append to');
  if ((source.archived ?? []).length === 0 && source.sessionGraph === undefined) return row.boxId;
  throw new KernelError('bad_request', {
    message: 'Archived tapes and a session graph come with a new tape alone.',
    details: { field: 'append' },
  });
}

const isAt = (row: TapeRow, address: TapeAddress): boolean => {
  if (address.kind === 'box') return row.boxId === address.boxId;
  return address.kind === 'name' ? row.name === address.name : row.ownerAgentId === address.agentId;
};

/** The answer of the import that was finished under the key. @throws KernelError `idempotency_conflict`, `box_not_authorized`. */
async function repeat(
  tx: Tx,
  { actor, address, key }: Import,
  { known, hash }: { readonly known: KnownImport; readonly hash: string },
): Promise<ImportedTape> {
  const made = { ...(known.response as unknown as ImportedTape), isRepeated: true };
  const row = await findTape(tx, { kind: 'box', boxId: made.boxId }, actor);
  if (row !== undefined && !row.isOwn && row.appendGrant === null)
    throw notAuthorized(row.boxId, actor.actorId, 'append');
  if (hash === known.hash && (row === undefined || isAt(row, address))) return made;
  throw new KernelError('idempotency_conflict', {
    message: `Key '${key.slice(KEY.length)}' was used for other lines, or another tape.`,
    details: { dedup_key: key.slice(KEY.length), box_id: made.boxId },
  });
}

const KEY = 'import:';
const MAX_KEY = 512;

function checkKey(key: string): string {
  if (key !== '' && key.length <= MAX_KEY && isPlainName(key) && key.isWellFormed()) return key;
  throw new KernelError('bad_request', {
    message: `dedupKey: has 1 to ${MAX_KEY} characters, and ${PLAIN_NAME}.`,
    details: { field: 'dedupKey' },
  });
}

/** Another import was finished under the key while this one wrote. */
class KeyTaken extends Error {}

/** Two imports never fill the same positions of a tape. */
const isSameImport = (one: ImportedTape, other: ImportedTape): boolean =>
  one.boxId === other.boxId && one.first === other.first && one.last === other.last;

/** @param tries - What earlier tries have made, if they were committed. What this try makes is added. */
async function write(
  tx: Tx,
  what: Import,
  { read, tries }: { readonly read: ReadSource; readonly tries: ImportedTape[] },
): Promise<ImportedTape> {
  const { actor, address, key } = what;
  const operation = { projectId: actor.projectId, key };
  const known = await findImport(tx, operation);
  if (known !== undefined) {
    const first = await repeat(tx, what, { known, hash: read.hash });
    return { ...first, isRepeated: !tries.some((made) => isSameImport(made, first)) };
  }
  await openStage(tx);
  for await (const chunk of read.chunks()) await stageEntries(tx, chunk);
  if (!(await beginImport(tx, operation))) throw new KeyTaken();
  const existing = await findExisting(tx, what);
  const boxId = existing ?? newId<'box'>();
  const filled =
    existing === undefined && address.kind === 'name'
      ? await makeTape(tx, { ...what, name: address.name, boxId }, read)
      : await fill(tx, { boxId, file: 0, actor }, read);
  const made = { boxId, ...filled, archived: existing === undefined ? read.files.length - 1 : 0 };
  await endImport(tx, operation, { hash: read.hash, response: made });
  const imported = { ...made, isRepeated: false };
  tries.push(imported);
  return imported;
}

export async function importTape(
  pool: pg.Pool,
  { target, source }: { readonly target: TapeTarget; readonly source: TapeSource },
  options: ImportOptions & { readonly maxCardBytes?: number | undefined } = {},
): Promise<ImportedTape> {
  const {
    append: isAppend = false,
    dedupKey = newId(),
    maxCardBytes,
    onProgress = () => undefined,
  } = options;
  const { actor, address } = await findAddress(pool, target, options);
  checkSessionGraph(source.sessionGraph);
  // What a lost connection leaves in doubt is tried again under the same key.
  const what: Import = { actor, address, key: `${KEY}${checkKey(dedupKey)}`, isAppend, source };
  // Refused before its lines are read.
  if ((await findImport(pool, { projectId: actor.projectId, key: what.key })) === undefined)
    await findExisting(pool, what);
  await using read = await ReadSource.read(source, { actor: { ...actor, maxCardBytes }, onProgress });
  const tries: ImportedTape[] = [];
  const attempt = (): Promise<ImportedTape> =>
    withHandlerSlot(pool, 'importTape', () => transaction(pool, (tx) => write(tx, what, { read, tries })));
  return await attempt().catch((error: unknown) => {
    if (error instanceof KeyTaken) return attempt();
    throw error;
  });
}
