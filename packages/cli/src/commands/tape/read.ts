/** `boxcar tape ls|show|info|search`. */

import { toPlain } from '@boxcar/host/base';
import { settingSchemas } from '@boxcar/host/config';
import { anchorsText, type JsonObject, parseTapeQuery } from '@boxcar/kernel';
import type { TapeMatch } from '@boxcar/runtime';
import { findProjectByRef, listTapes } from '@boxcar/store';
import type { Command } from 'commander';
import { EXIT, flag, helpOf, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { readFlag, wrongUsage } from '../../input/usage.js';
import { openReader } from '../../reader.js';
import { countOf, formatCount } from '../../text/text.js';
import { onTape, PROJECT, projectOf, TAPE, type TapeFlags } from './on-tape.js';
import { infoFields, recordTable, tapeTable } from './text.js';

interface ListFlags extends TapeFlags {
  readonly all?: boolean;
  readonly limit?: number;
}

const DEFAULT_LIST = 50;

/** `boxcar tape ls`. */
async function runList(context: Context, flags: ListFlags): Promise<number> {
  await using reader = await openReader(context.config, context.log('warn'));
  const { id } = await findProjectByRef(reader.pool, projectOf(context, flags));
  const limit = flags.limit ?? DEFAULT_LIST;
  const tapes = await listTapes(reader.pool, id, { isAll: flags.all ?? false, limit });
  context.answer({ tapes }, () => (tapes.length === 0 ? 'no tapes' : tapeTable(tapes)));
  if (tapes.length === limit) context.note(`the newest ${countOf(limit, 'tape')}; --limit shows more`);
  return EXIT.success;
}

export function addTapeList(group: Command, run: Run): void {
  group
    .command('ls')
    .description('Lists the tapes of a project, newest first.')
    .option('--all', 'also archived ones')
    .option('--limit <number>', 'how many at most, up to 1000 (50)', flag(settingSchemas.pageSize))
    .option(...PROJECT)
    .addHelpText('after', helpOf({ examples: ['boxcar tape ls', 'boxcar tape ls --all --json'] }))
    .action((flags: ListFlags) => run((context) => runList(context, flags)));
}

interface SliceFlags extends TapeFlags {
  readonly kinds?: string;
  readonly since?: string;
  readonly until?: string;
  readonly limit?: number;
}

const listOf = (text: string): readonly string[] => text.split(',').map((item) => item.trim());

interface ShowFlags extends SliceFlags {
  readonly all?: boolean;
  readonly from?: string;
  readonly to?: string;
  readonly text?: string;
  readonly messages?: boolean;
  readonly after?: number;
}

const DEFAULT_SHOWN = 100;
/** For messages only a beginning can be chosen: a result without its call cannot be shown. */
const NOT_OF_MESSAGES = ['to', 'since', 'until', 'kinds', 'text', 'limit', 'after'] as const;

function sliceOf({ all, from, to }: ShowFlags): JsonObject {
  if (all === true && (from ?? to) !== undefined)
    throw wrongUsage('--all: cannot be combined with --from and --to', 'all');
  if (from === undefined && to !== undefined) throw wrongUsage('--to: needs --from as well', 'to');
  if (all === true) return {};
  if (from === undefined) return { last_anchor: true };
  return { between_anchors: { start: from, ...(to === undefined ? {} : { end: to }) } };
}

const datesOf = ({ since, until }: SliceFlags): JsonObject =>
  (since ?? until) === undefined
    ? {}
    : {
        between_dates: {
          ...(since === undefined ? {} : { start: since }),
          ...(until === undefined ? {} : { end: until }),
        },
      };

/** `boxcar tape show`: the entries after the last anchor, or another part. */
async function runShow(context: Context, ref: string, flags: ShowFlags): Promise<number> {
  const { kinds, text, after, limit = DEFAULT_SHOWN } = flags;
  const stray =
    flags.messages === true ? NOT_OF_MESSAGES.find((name) => flags[name] !== undefined) : undefined;
  if (stray !== undefined) throw wrongUsage(`--${stray}: does not go with --messages`, stray);
  const asked = {
    ...sliceOf(flags),
    ...datesOf(flags),
    ...(kinds === undefined ? {} : { kinds: listOf(kinds) }),
    ...(text === undefined ? {} : { text }),
    limit,
  };
  const query = readFlag(() => parseTapeQuery(asked));
  return onTape(context, ref, flags, async ({ tape }) => {
    if (flags.messages === true) {
      const anchor = flags.all === true ? null : flags.from;
      const messages = await tape.messages({ anchor });
      context.answer({ box_id: tape.boxId, messages }, () =>
        messages.map((message) => toPlain(JSON.stringify(message))).join('\n'),
      );
      return EXIT.success;
    }
    const { records: entries, next } = await tape.selectPage(query, { after });
    context.answer({ box_id: tape.boxId, entries, ...(next === null ? {} : { next }) }, () =>
      entries.length === 0 ? 'no entries' : recordTable(entries),
    );
    if (next !== null)
      context.note(
        `shown: ${formatCount(entries.length)}; ${entries.length === limit ? '--limit shows more, ' : ''}--after ${next} shows what follows`,
      );
    return EXIT.success;
  });
}

export function addTapeShow(group: Command, run: Run): void {
  group
    .command('show')
    .description('Shows the entries of a tape after its last anchor, or another part of it.')
    .argument(...TAPE)
    .option('--all', 'from the beginning')
    .option('--from <anchor>', 'only entries after the latest anchor of this name')
    .option('--to <anchor>', 'up to the first anchor of this name after --from')
    .option('--since <date>', 'not before this day or time, ISO 8601, UTC')
    .option('--until <date>', 'not after this day or time')
    .option('--kinds <list>', 'kinds of entries, with commas')
    .option('--text <text>', 'only entries that contain this text')
    .option(
      '--limit <number>',
      'the oldest so many, up to 1000 and 1 MiB (100)',
      flag(settingSchemas.pageSize),
    )
    .option('--after <number>', 'only entries after this position', flag(settingSchemas.position))
    .option(
      '--messages',
      "as chat messages, the state of the anchor first; with --all or --from. A turn's prompt is shown by explain",
    )
    .option(...PROJECT)
    .addHelpText(
      'after',
      helpOf({
        examples: [
          'boxcar tape show writer-1',
          'boxcar tape show notes --from phase-1 --to phase-2 --kinds message',
          'boxcar tape show notes --all --since 2026-01-01 --json',
          'boxcar tape show --session main --all --kinds anchor',
        ],
      }),
    )
    .action((ref: string, flags: ShowFlags) => run((context) => runShow(context, ref, flags)));
}

const MAX_MATCHES = 500;
const MAX_SHOWN_MIB = 1;

type ShownMatch = TapeMatch['record'] & Pick<TapeMatch, 'match'>;

/** Matches up to a size limit, but at least the first. */
async function takeMatches(
  pages: AsyncIterable<readonly TapeMatch[]>,
): Promise<{ readonly matches: readonly ShownMatch[]; readonly isCut: boolean }> {
  const matches: ShownMatch[] = [];
  let bytes = 0;
  for await (const page of pages) {
    for (const { record, match } of page) {
      bytes += Buffer.byteLength(JSON.stringify(record));
      if (matches.length > 0 && bytes > MAX_SHOWN_MIB * 1024 * 1024) return { matches, isCut: true };
      matches.push({ ...record, match });
    }
  }
  return { matches, isCut: false };
}

/** `boxcar tape search`. */
async function runSearch(context: Context, ref: string, query: string, flags: SliceFlags): Promise<number> {
  const { since, until, limit } = flags;
  if (query.trim() === '') throw wrongUsage('query: must not be blank', 'query');
  if (limit !== undefined && limit > MAX_MATCHES)
    throw wrongUsage(`--limit: must be at most ${MAX_MATCHES}`, 'limit');
  const asked = { ...datesOf(flags), ...(flags.kinds === undefined ? {} : { kinds: listOf(flags.kinds) }) };
  const { kinds } = readFlag(() => parseTapeQuery(asked));
  return onTape(context, ref, flags, async ({ tape }) => {
    const { pages } = await tape.searchPages(query, {
      start: since,
      end: until,
      limit,
      kinds,
    });
    const { matches, isCut } = await takeMatches(pages);
    context.answer({ box_id: tape.boxId, matches, ...(isCut ? { has_more: true } : {}) }, () =>
      matches.length === 0 ? 'no entry has these words' : recordTable(matches),
    );
    if (isCut)
      context.note(`shown: ${formatCount(matches.length)}, which have ${MAX_SHOWN_MIB} MiB; there are more`);
    return matches.length === 0 ? EXIT.negative : EXIT.success;
  });
}

export function addTapeSearch(group: Command, run: Run): void {
  group
    .command('search')
    .description('Finds entries with these words, newest first; tolerates typos.')
    .argument(...TAPE)
    .argument('<query>', 'words')
    .option('--kinds <list>', 'kinds of entries, with commas (message,tool_result)')
    .option('--since <date>', 'not before this day or time, ISO 8601, UTC')
    .option('--until <date>', 'not after this day or time')
    .option('--limit <number>', 'how many at most, up to 500 (20)', flag(settingSchemas.pageSize))
    .option(...PROJECT)
    .addHelpText(
      'after',
      helpOf({
        examples: [
          'boxcar tape search writer-1 "databse migration"',
          'boxcar tape search notes timeout --kinds error,message --json',
        ],
        negative: 'no entry has these words',
      }),
    )
    .action((ref: string, query: string, flags: SliceFlags) =>
      run((context) => runSearch(context, ref, query, flags)),
    );
}

interface InfoFlags extends TapeFlags {
  readonly before?: number;
}

/** `boxcar tape info`. */
const runInfo = (context: Context, ref: string, flags: InfoFlags): Promise<number> =>
  onTape(context, ref, flags, async ({ tape }) => {
    const { before } = flags;
    const info = await tape.info();
    const { anchors, next } = await tape.anchorsPage({ before });
    context.answer({ ...info, last_anchors: anchors, next_anchors: next }, () =>
      toPlain(
        `${infoFields(info)}\n\n${anchorsText(anchors, next === null ? undefined : `earlier anchors: --before ${next}`)}`,
      ),
    );
    return EXIT.success;
  });

export function addTapeInfo(group: Command, run: Run): void {
  group
    .command('info')
    .description('Shows the size of a tape and its last anchors.')
    .argument(...TAPE)
    .option('--before <position>', 'the last anchors before this position', flag(settingSchemas.position))
    .option(...PROJECT)
    .addHelpText(
      'after',
      helpOf({ examples: ['boxcar tape info writer-1', 'boxcar tape info writer-1 --before 120'] }),
    )
    .action((ref: string, flags: InfoFlags) => run((context) => runInfo(context, ref, flags)));
}
