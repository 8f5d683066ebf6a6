/**
 * Which rows a build can read, when builds of several ages work on one database. One number says it, everywhere: the newest
 * migration that the build knows.
 *
 * V1  `min_compatible` of the newest migrations: builds that do not know that one do not work on the database at all.
 * V2  `turns.format`: only builds that know this migration take the turn. Whoever writes it and whoever takes it raises it
 *     to the format of its own build, so a turn that a newer build has touched is never read by one from before that format.
 * V3  What an older build can come upon without V2 (a tape that several turns share, cards of a box) has a kind that it
 *     does not know: it hands the turn back for a newer one, with a format above its own.
 */
import { contentSchema, ENTRY_KINDS } from '@boxcar/kernel';
import { SCHEMA_VERSION } from './known-schema.js';

export interface Build {
  /** The newest migration it knows. */
  readonly schemaVersion: number;
  /**
   * The migration since which turns, their tapes, steps and calls are written as this build does; at most `schemaVersion`. To be
   * raised, with a migration, by every change of these that the build before cannot read. New meanings get new kinds.
   */
  readonly turnFormat: number;
  /** Kinds of card contents and tape entries that it can read. */
  readonly kinds: ReadonlySet<string>;
}

const contentKinds = contentSchema.options.map((option) => option.shape.kind.value);

export const THIS_BUILD: Build = {
  schemaVersion: SCHEMA_VERSION,
  turnFormat: 12,
  kinds: new Set([...contentKinds, ...ENTRY_KINDS]),
};
