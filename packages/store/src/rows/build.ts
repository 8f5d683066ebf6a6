/**
 * The rows that a build can read, when builds of several ages work on one database. A build is identified everywhere by one number: the
 * newest migration that it knows.
 *
 * V1  `min_compatible` of the newest migrations: builds that do not know this migration do not work on the database at all.
 * V2  `turns.format`: only builds that know this migration claim the turn. The build that writes or claims a turn raises the format to
 *     its own. So a build from before that format never reads a turn that a newer build has touched.
 * V3  V2 does not cover a tape that several turns share, or the cards of a box. There, an older build may meet entries and contents of
 *     a kind that it does not know. It then hands the turn back for a newer build, with a format above its own.
 */
import { contentSchema, ENTRY_KINDS } from '@boxcar/kernel';
import { SCHEMA_VERSION } from './known-schema.js';

export interface Build {
  /** The newest migration that the build knows. */
  readonly schemaVersion: number;
  /**
   * The migration since which turns, their tapes, steps and calls are written as this build writes them; at most `schemaVersion`. Each
   * change of these rows that the previous build cannot read must raise this number, together with a migration. New meanings get new
   * kinds.
   */
  readonly turnFormat: number;
  /** The kinds of card contents and tape entries that the build can read. */
  readonly kinds: ReadonlySet<string>;
}

const contentKinds = contentSchema.options.map((option) => option.shape.kind.value);

export const THIS_BUILD: Build = {
  schemaVersion: SCHEMA_VERSION,
  turnFormat: 12,
  kinds: new Set([...contentKinds, ...ENTRY_KINDS]),
};
