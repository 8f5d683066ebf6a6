/** A tape as the original's files have it: its lines, page by page, and what its folder says besides. Source: docs/reference/tape.md, "Files". */
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
 * Entries never change and are only added: pages of the tape up to one head are the tape at that head.
 *
 * @throws KernelError `not_found` when the tape is purged meanwhile.
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
  /** Its name; for a tape without one its agent's id, else that of its box: as sessions name their parent. */
  readonly id: string;
  /** Where it was forked from. Its lines are those of the parent too. */
  readonly parent: { readonly tape: string; readonly entry: number } | null;
  /** The incarnations before it, oldest first. */
  readonly archived: readonly {
    readonly boxId: BoxId;
    readonly archivedAt: Date;
    /** Of an imported file: its path in the folder of the manifest, and when it was written. */
    readonly path?: string;
    readonly writtenAt?: Date;
    readonly parent: { readonly tape: string; readonly entry: number } | null;
  }[];
  /** Lines of the session graph: those it was imported with, then what is known here besides. */
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

/** When it was made is the one thing that never changes: an imported line says it in its own way. */
const isKnown = (known: SessionLine | undefined, line: SessionLine): boolean =>
  known !== undefined &&
  known.parent_session_id === line.parent_session_id &&
  known.from_anchor === line.from_anchor &&
  known.status === line.status;

/** A log like the tape: lines that were imported stay, and of several for one session the last counts. */
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
    // What others made of a tape is the business of who owns it.
    sessionGraph: sessionGraphOf(id, facts, row.isOwn ? lineage : lineage.filter(({ name }) => name === id)),
  };
}
