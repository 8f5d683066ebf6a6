/** A tape as the seed's files have it: its lines, page by page, and what its folder says besides. Source: docs/tape.md, "Files". */
import {
  type BoxId,
  formatSessionGraph,
  parseSessionGraph,
  pythonDate,
  type SessionLine,
  tapeLineWriter,
} from '@boxcar/kernel';
import {
  findTape,
  loadEntries,
  loadFolderFacts,
  type Queryable,
  type TapeActor,
  type TapeFolderFacts,
  type TapeRow,
} from '@boxcar/store';
import { tapeNotFound } from './tape-errors.js';

/** Entries that are held at once. */
const PAGE = 500;

/** Entries never change and are only added: pages of the tape up to one head are the tape at that head. */
export async function* exportLines(
  db: Queryable,
  boxId: BoxId,
  upto: number,
): AsyncGenerator<string, void, void> {
  const writer = tapeLineWriter();
  for (let from = 1; from <= upto; from += PAGE)
    yield* writer.add(await loadEntries(db, boxId, { from, to: Math.min(upto, from + PAGE - 1) }));
  yield* writer.end();
}

export interface TapeFolder {
  /** Its name; that of its box for a tape without one. */
  readonly id: string;
  /** Where it was forked from. Its lines are those of the parent too. */
  readonly parent: { readonly tape: string; readonly entry: number } | null;
  /** The incarnations before it, oldest first. */
  readonly archived: readonly { readonly boxId: BoxId; readonly archivedAt: Date }[];
  /** Lines of the session graph: those it was imported with, else its own. */
  readonly sessionGraph: string;
}

function sessionGraphOf(id: string, facts: TapeFolderFacts): string {
  const imported = facts.sessionGraph ?? '';
  if (parseSessionGraph(imported).some(({ session_id: session }) => session === id)) return imported;
  const { forkStatus, parent } = facts;
  const own: SessionLine = {
    session_id: id,
    parent_session_id: parent === null ? null : (parent.name ?? parent.boxId),
    from_anchor: null,
    created_at: pythonDate(facts.createdAt),
    status: forkStatus === null || forkStatus === 'open' ? 'active' : forkStatus,
  };
  const isOpen = imported !== '' && !imported.endsWith('\n');
  return `${imported}${isOpen ? '\n' : ''}${formatSessionGraph([own])}`;
}

export async function loadFolder(db: Queryable, row: TapeRow, actor: TapeActor): Promise<TapeFolder> {
  const facts = await loadFolderFacts(db, row.boxId);
  if (facts === undefined) throw tapeNotFound({ kind: 'box', boxId: row.boxId });
  const id = row.name ?? row.boxId;
  const archived = await Promise.all(
    facts.archived.map(async (earlier) => {
      const found = await findTape(db, { kind: 'box', boxId: earlier.boxId }, actor);
      return found?.isOwn === true || (found?.readGrant ?? null) !== null ? [earlier] : [];
    }),
  );
  const { parent } = facts;
  return {
    id,
    parent: parent === null ? null : { tape: parent.name ?? parent.boxId, entry: parent.position },
    archived: archived.flat(),
    sessionGraph: sessionGraphOf(id, facts),
  };
}
