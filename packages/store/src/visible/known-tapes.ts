/** The part of a tape that a view reads and that its reader has not cached. */
import type { BoxId } from '@boxcar/kernel';
import { entriesOf } from './ancestry.js';
import { viewPositionOf } from './turn-views.js';

/**
 * The cached part of a tape: the entries of a view from its beginning up to `to`, and at least the contexts that they name. It can be used
 * as long as a view of the tape begins there and no card of the project was erased since. Otherwise everything is read again.
 */
export interface KnownTape {
  readonly from: number;
  readonly to: number;
  readonly contexts: { has(boxId: BoxId): boolean };
  readonly erasures: number;
}

export type KnownTapes = ReadonlyMap<BoxId, KnownTape>;

/** The parameter in the form that {@link UNKNOWN_PART} reads. */
export const knownParameter = (known: KnownTapes): string =>
  JSON.stringify(
    Object.fromEntries([...known].map(([id, { from, to, erasures }]) => [id, [from, to, erasures]])),
  );

/**
 * For turns `t`: their tapes `b`, their projects `p`, and the entries `e` of their views that the reader does not know ($2). The last
 * entry is always included, so that every turn has a row.
 */
export const UNKNOWN_PART = `
  join boxcar.boxes b on b.id = t.output_box_id
  join boxcar.projects p on p.id = t.project_id
  left join lateral (
    select least((x.tape->>1)::int + 1, b.head_position) as first
    from (select $2::jsonb -> b.id::text as tape) x
    where (x.tape->>0)::int = ${viewPositionOf('t', 'b')} and (x.tape->>2)::int = p.erasures
  ) k on true
  cross join lateral ${entriesOf('b', {
    from: `coalesce(k.first, ${viewPositionOf('t', 'b')})`,
    to: 'b.head_position',
  })} e`;
