import { AUTO_HANDOFF_ANCHOR, buildCard, type CardDraft, type NewCard } from '@boxcar/kernel';
import { appendEntries } from '@boxcar/store';
import type pg from 'pg';
import { newId } from '../lib/new-id.js';
import type { Tape } from '../tape/tape.js';

/** Writes a compaction as an overflow does: the anchor, its event and the summary. Views begin at `keepFrom` afterwards. */
export async function compact(
  pool: pg.Pool,
  tape: Tape,
  { keepFrom }: { readonly keepFrom: number },
): Promise<void> {
  const { projectId, actorId } = tape;
  const card = (draft: Omit<CardDraft, 'authorId'>): NewCard =>
    buildCard({ ...draft, authorId: 'kernel' }, { id: newId<'card'>(), projectId });
  const role = { role: 'user' } as const;
  const summary = card({
    type: 'task.summary',
    ...role,
    content: { kind: 'text', text: 'a digest' },
    metadata: { ...role, summarizes: [] },
  });
  const metadata = { compaction: { v: 1, keep_from: keepFrom, references: [], summary: summary.id } };
  const anchor = card({
    type: 'tape.anchor',
    role: 'assistant',
    content: { kind: 'json', data: { reason: 'room was made' } },
    metadata,
  });
  const entry = { payload: null, anchorName: null, authorId: actorId };
  await appendEntries(pool, {
    boxId: tape.boxId,
    projectId,
    actorId,
    dedupKey: newId(),
    entries: [
      { ...entry, kind: 'anchor', card: anchor, anchorName: AUTO_HANDOFF_ANCHOR },
      {
        ...entry,
        kind: 'event',
        card: null,
        payload: { name: 'handoff', data: { name: AUTO_HANDOFF_ANCHOR } },
      },
      { ...entry, kind: 'message', card: summary },
    ],
  });
  await pool.query('update boxcar.boxes set view_position = $2 where id = $1', [tape.boxId, keepFrom]);
}
