import { type BoxId, KernelError, type ProjectId, parseSessionGraph, parseTapeDate } from '@boxcar/kernel';
import {
  appendStaged,
  archiveTape,
  beginImport,
  beginTape,
  endImport,
  findImport,
  findTape,
  inImportOrder,
  insertImportedSession,
  lockImport,
  openStage,
  type Queryable,
  stageEntries,
  type TapeActor,
  type Tx,
  transaction,
} from '@boxcar/store';
import type pg from 'pg';
import { newId, withHandlerSlot } from '../lib/index.js';
import {
  checkKey,
  checkSame,
  type Import,
  type ImportedTape,
  isFinished,
  isSameImport,
  KEY,
  operationOf,
  partHashOf,
  type StoredImport,
  storedIn,
  toAnswer,
} from './import-key.js';
import {
  callIdsOf,
  checkSessionGraph,
  type ReadChunk,
  ReadSource,
  type TapeSource,
} from './import-source.js';
import { findAddress, type TapeOptions } from './open-tape.js';
import { notAuthorized, tapeNotFound, toAppendError } from './tape-errors.js';
import type { TapeTarget } from './tape-types.js';

export interface ImportOptions extends Omit<TapeOptions, 'create'> {
  /** Also appends to an existing tape, after its entries. */
  readonly append?: boolean | undefined;
  /**
   * Names this import in its project. A repeated import with the same key imports nothing and returns the first answer; with other lines it
   * is `idempotency_conflict`.
   */
  readonly dedupKey?: string | undefined;
  /** Called after each chunk with the number of lines read so far, over all files. */
  readonly onProgress?: (lines: number) => void;
}

interface Filled {
  readonly first: number;
  readonly last: number;
  readonly lines: number;
}

/** Writes the staged entries of a file to a tape. */
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

/** Makes the incarnations of a new tape, oldest first. Each but the last is archived after it is filled. */
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

/** A tape that is imported under its old name is recorded as the same session. */
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

/** The existing target tape of an append. @throws KernelError `not_found`, `bad_request`. */
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
  checkAppended(source);
  return row.boxId;
}

/** Like `findExisting`, but only when the import may append. For other imports, `makeNew` finds an existing tape. */
const findAppended = async (db: Queryable, what: Import): Promise<BoxId | undefined> =>
  what.isAppend ? findExisting(db, what) : undefined;

function checkAppended({ archived = [], sessionGraph }: TapeSource): void {
  if (archived.length === 0 && sessionGraph === undefined) return;
  throw new KernelError('bad_request', {
    message: 'Archived tapes and a session graph can be imported only with a new tape.',
    details: { field: 'append' },
  });
}

/** While a new tape was being made, the key was used for another import, or the name for another tape. */
class Overtaken extends Error {}

/** A source that has been read, with its import. */
interface ReadImport {
  readonly what: Import;
  readonly read: ReadSource;
}

/** @param tries - The results of earlier tries, in case they were committed. This try adds its own result. */
async function makeNew(tx: Tx, { what, read }: ReadImport, tries: StoredImport[]): Promise<ImportedTape> {
  const { address } = what;
  const operation = operationOf(what);
  if (address.kind !== 'name' || (await findImport(tx, operation)) !== undefined) throw new Overtaken();
  await openStage(tx);
  for await (const chunk of read.chunks()) await stageEntries(tx, chunk);
  if (!(await beginImport(tx, operation)) || (await findExisting(tx, what)) !== undefined)
    throw new Overtaken();
  const boxId = newId<'box'>();
  const filled = await makeTape(tx, { ...what, name: address.name, boxId }, read);
  const made = { boxId, ...filled, archived: read.files.length - 1 };
  await endImport(tx, operation, { hash: read.hash, response: made });
  tries.push(made);
  return toAnswer(made, false);
}

/** Appends a chunk, unless the import under the key has already written more. */
async function appendChunk(
  tx: Tx,
  { what, read }: ReadImport,
  { chunk, boxId, by }: { readonly chunk: ReadChunk; readonly boxId: BoxId; readonly by: string },
): Promise<StoredImport> {
  const operation = operationOf(what);
  const { entries: total, lines } = read.files[0] ?? { entries: 0, lines: 0 };
  const begun = { boxId, first: 0, last: 0, lines, archived: 0, by, written: 0 };
  const known = await lockImport(tx, operation, { hash: partHashOf(read.hash), response: begun });
  const before = storedIn(known);
  if (before.by !== by) await checkSame(tx, what, { known, hash: read.hash });
  const { written } = before;
  const count = chunk.after + chunk.entries;
  if (written === undefined || written >= count) return before;
  await openStage(tx);
  await stageEntries(tx, { ...chunk, written });
  const result = await appendStaged(tx, { ...what.actor, boxId: before.boxId, file: 0, written, count });
  if (result.outcome !== 'appended') throw toAppendError(result, before.boxId, what.actor.actorId);
  const { written: _none, ...rest } = before;
  const isLast = count >= total;
  const after = {
    ...rest,
    by,
    first: written === 0 ? result.first : before.first,
    last: result.head,
    ...(isLast ? {} : { written: count }),
  };
  await endImport(tx, operation, { hash: isLast ? read.hash : partHashOf(read.hash), response: after });
  return after;
}

/** Errors of a tape that can never be appended to again: it was reset or purged, or is a fork that has ended. */
const CLOSED: ReadonlySet<string> = new Set(['tape_conflict', 'fork_closed', 'not_found']);

/** Adds to an error how far the failed append got, and how to continue. */
function withProgress(error: unknown, { key }: Import, { written, boxId }: StoredImport): unknown {
  if (!(error instanceof KernelError)) return error;
  const dedupKey = key.slice(KEY.length);
  const next = CLOSED.has(error.code)
    ? 'The rest cannot be appended there. Import all lines under another key.'
    : `The same import under key '${dedupKey}' appends the rest.`;
  return error.restate(`${error.problem} ${written} entries were appended before. ${next}`, {
    dedup_key: dedupKey,
    written,
    box_id: boxId,
  });
}

/**
 * Appends chunk by chunk to an existing tape.
 *
 * @param to.begun - The progress of an earlier call under the key.
 */
function appendChunks(
  pool: pg.Pool,
  source: ReadImport,
  to: { readonly boxId: BoxId; readonly directUrl: string; readonly begun: StoredImport | undefined },
): Promise<ImportedTape> {
  const { boxId, directUrl, begun } = to;
  const by = newId();
  return inImportOrder(directUrl, boxId, async (stay) => {
    let stored = begun;
    let hasWritten = false;
    for await (const chunk of source.read.chunks()) {
      await stay();
      try {
        stored = await withHandlerSlot(pool, 'importTape', () =>
          transaction(pool, (tx) => appendChunk(tx, source, { chunk, boxId, by })),
        );
      } catch (error) {
        throw stored === undefined ? error : withProgress(error, source.what, stored);
      }
      hasWritten ||= stored.by === by;
      if (stored.written === undefined) break;
    }
    if (stored === undefined)
      throw new KernelError('internal_error', { message: 'An import has no entries.' });
    return toAnswer(stored, !hasWritten);
  });
}

export interface ImportLimits {
  readonly maxCardBytes?: number | undefined;
  /** Serializes imports to one tape. */
  readonly directUrl: string;
}

export async function importTape(
  pool: pg.Pool,
  { target, source }: { readonly target: TapeTarget; readonly source: TapeSource },
  options: ImportOptions & ImportLimits,
): Promise<ImportedTape> {
  const {
    append: isAppend = false,
    dedupKey = newId(),
    maxCardBytes,
    directUrl,
    onProgress = () => undefined,
  } = options;
  const { actor, address } = await findAddress(pool, target, options);
  checkSessionGraph(source.sessionGraph);
  // When a lost connection leaves the result in doubt, the import is tried again under the same key.
  const what: Import = { actor, address, key: `${KEY}${checkKey(dedupKey)}`, isAppend, source };
  const operation = operationOf(what);
  // An impossible target is refused before the lines are read.
  if ((await findImport(pool, operation)) === undefined) await findExisting(pool, what);
  const newCallId = callIdsOf(actor.projectId, what.key);
  await using read = await ReadSource.read(source, {
    actor: { ...actor, maxCardBytes },
    newCallId,
    onProgress,
  });
  const tries: StoredImport[] = [];
  const attempt = async (): Promise<ImportedTape> => {
    const known = await findImport(pool, operation);
    if (known !== undefined) await checkSame(pool, what, { known, hash: read.hash });
    if (known !== undefined && isFinished(known)) {
      const stored = storedIn(known);
      return toAnswer(stored, !tries.some((made) => isSameImport(made, stored)));
    }
    const boxId = known === undefined ? await findAppended(pool, what) : storedIn(known).boxId;
    if (boxId !== undefined) {
      checkAppended(source);
      const begun = known === undefined ? undefined : storedIn(known);
      return appendChunks(pool, { what, read }, { boxId, directUrl, begun });
    }
    return withHandlerSlot(pool, 'importTape', () =>
      transaction(pool, (tx) => makeNew(tx, { what, read }, tries)),
    );
  };
  return await attempt().catch((error: unknown) => {
    if (error instanceof Overtaken) return attempt();
    throw error;
  });
}
