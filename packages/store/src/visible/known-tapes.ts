/** The part of a tape that a view reads, less what its reader has kept of it. */
import type { BoxId } from '@boxcar/kernel';
import { entriesOf } from './ancestry.js';
import { viewPositionOf } from './turn-views.js';

/**
 * What a reader has kept of a tape: the entries of a view from where it began up to `to`, and at least the contexts that they name. It counts
 * as long as a view of the tape begins there and nothing of the project was erased since. Otherwise all is read again.
 */
export interface KnownTape {
  readonly from: number;
  readonly to: number;
  readonly contexts: { has(boxId: BoxId): boolean };
  readonly erasures: number;
}

export type KnownTapes = ReadonlyMap<BoxId, KnownTape>;

/** As {@link UNKNOWN_PART} reads it. */
export const knownParameter = (known: KnownTapes): string =>
  JSON.stringify(
    Object.fromEntries([...known].map(([id, { from, to, erasures }]) => [id, [from, to, erasures]])),
  );

/**
 * Of turns `t` their tapes `b` and projects `p`, and of what a view shows the entries `e` that the reader does not know: $2. The last entry
 * always, so that every turn has a row.
 */
export const UNKNOWN_PART = `
  join boxcar.boxes b on b.id = t.output_box_id join boxcar.projects p on p.id = t.project_id
  left join lateral (
    select least((x.tape->>1)::int + 1, b.head_position) as first from (select $2::jsonb -> b.id::text as tape) x
    where (x.tape->>0)::int = ${viewPositionOf('t', 'b')} and (x.tape->>2)::int = p.erasures
  ) k on true
  cross join lateral ${entriesOf('b', { from: `coalesce(k.first, ${viewPositionOf('t', 'b')})`, to: 'b.head_position' })} e`;
