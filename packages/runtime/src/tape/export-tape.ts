/**
 * Exports a tape in the file format of the original: its lines, page by page, and the other facts of its folder.
 * Source: docs/reference/tape.md, "Files".
 */
import {
  type BoxId,
  formatSessionGraph,
  isFilePath,
  parseSessionGraph,
  pythonDate,
  type SessionLine,
  tapeLineWriter,
} from '@boxcar/kernel';
import {
  listLineage,
  loadFolderFacts,
  type Queryable,
  readEntries,
  type Session,
  type TapeActor,
  type TapeFolderFacts,
  type TapeRow,
  withAsked,
} from '@boxcar/store';
import type { OpenedTape } from './read-tape.js';
import { tapeNotFound } from './tape-errors.js';

/**
 * Entries never change and are only added, so the pages of the tape up to one head are the tape at that head.
 *
 * @throws KernelError `not_found` when the tape is purged in the meantime.
 */
export async function* exportLines(
  db: Queryable,
  boxId: BoxId,
  { last, within, actor }: Pick<OpenedTape, 'last' | 'within' | 'actor'>,
): AsyncGenerator<string, void, void> {
  const writer = tapeLineWriter();
  let read = 0;
  const pages = readEntries(db, boxId, { from: 1, to: last, within });
  for await (const entries of withAsked(db, pages, actor)) {
    read += entries.length;
    yield* writer.add(entries);
  }
  if (within === null && read < last) throw tapeNotFound({ kind: 'box', boxId });
  yield* writer.end();
}

export interface TapeFolder {
  /**
   * The name of the tape; for a tape without a name, the id of its agent, or else the id of its box. Sessions name their parent in the same
   * way.
   */
  readonly id: string;
  /** The place where the tape was forked. Its lines include those of the parent. */
  readonly parent: { readonly tape: string; readonly entry: number } | null;
  /** Earlier incarnations, oldest first. */
  readonly archived: readonly {
    readonly boxId: BoxId;
    readonly archivedAt: Date;
    /** For an imported file: its path in the folder of the manifest, and when it was written. */
    readonly path?: string;
    readonly writtenAt?: Date;
    readonly parent: { readonly tape: string; readonly entry: number } | null;
  }[];
  /** Lines of the session graph: first the imported lines, then the lines that only this installation knows. */
  readonly sessionGraph: string;
}

const toLine = (session: Session): SessionLine => ({
  session_id: session.name,
  parent_session_id: session.parentSessionId,
  from_anchor: session.fromAnchor,
  created_at: pythonDate(session.createdAt),
  status: session.status,
});

function rootLine(id: string, { forkStatus, parent, createdAt }: TapeFolderFacts): SessionLine {
  return {
    session_id: id,
    parent_session_id: parent?.name ?? null,
    from_anchor: null,
    created_at: pythonDate(createdAt),
    status: forkStatus === null || forkStatus === 'open' ? 'active' : forkStatus,
  };
}

/** Compares all fields except the creation date. That date never changes, and an imported line may have it in another format. */
const isKnown = (known: SessionLine | undefined, line: SessionLine): boolean =>
  known !== undefined &&
  known.parent_session_id === line.parent_session_id &&
  known.from_anchor === line.from_anchor &&
  known.status === line.status;

/** The session graph is a log, as the tape is: imported lines stay, and the last of several lines for one session counts. */
function sessionGraphOf(id: string, facts: TapeFolderFacts, sessions: readonly Session[]): string {
  const imported = facts.sessionGraph ?? '';
  const known = new Map(parseSessionGraph(imported).map((line) => [line.session_id, line]));
  const isRoot = !known.has(id) && !sessions.some(({ name }) => name === id);
  const lines = [...(isRoot ? [rootLine(id, facts)] : []), ...sessions.map(toLine)];
  const fresh = lines.filter((line) => !isKnown(known.get(line.session_id), line));
  const isOpen = fresh.length > 0 && imported !== '' && !imported.endsWith('\n');
  return `${imported}${isOpen ? '\n' : ''}${formatSessionGraph(fresh)}`;
}

export async function loadFolder(db: Queryable, row: TapeRow, actor: TapeActor): Promise<TapeFolder> {
  const facts = await loadFolderFacts(db, row.boxId, actor);
  if (facts === undefined) throw tapeNotFound({ kind: 'box', boxId: row.boxId });
  const id = row.name ?? row.ownerAgentId ?? row.boxId;
  const lineage = await listLineage(db, row.boxId);
  const { parent, mark } = facts;
  return {
    id,
    parent: parent === null ? (mark?.parent ?? null) : { tape: parent.name, entry: parent.position },
    archived: facts.archived.map(({ boxId, archivedAt, mark: file }) => ({
      boxId,
      archivedAt,
      ...(file?.file === undefined || !isFilePath(file.file) ? {} : { path: file.file }),
      ...(file?.written_at === undefined ? {} : { writtenAt: new Date(file.written_at) }),
      parent: file?.parent ?? null,
    })),
    // Only the owner of a tape sees all sessions that were forked from it.
    sessionGraph: sessionGraphOf(id, facts, row.isOwn ? lineage : lineage.filter(({ name }) => name === id)),
  };
}
