/** `boxcar runs|turns|agents|boxes|projects|tools|primitives ls`: commands generated from the table of nouns. */

import { settingSchemas } from '@boxcar/host/config';
import { KernelError, parseTapeDate, TURN_STATUSES, type TurnStatus } from '@boxcar/kernel';
import { checkListOptions, type ListNoun, type ListSearch } from '@boxcar/runtime';
import type { Command } from 'commander';
import { EXIT, flag, helpOf, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { inFlags } from '../../input/flag-errors.js';
import { usage, wrongUsage } from '../../input/usage.js';
import { openReader, type Reader } from '../../reader.js';
import { countOf, formatTable } from '../../text/text.js';
import { type Filter, NOUNS, type Noun } from './nouns.js';

interface Flags {
  readonly status?: string;
  readonly profile?: string;
  readonly agent?: string;
  readonly channel?: string;
  readonly text?: string;
  readonly since?: string;
  readonly limit?: number;
  readonly cursor?: string;
  readonly project?: string;
  readonly archived?: boolean;
}
/** A day or time of ISO 8601, or an age: `12h`, `30d`. */
function parseSince(text: string): Date {
  const age = settingSchemas.age.safeParse(text);
  if (age.success) return new Date(Date.now() - age.data);
  try {
    return new Date(parseTapeDate(text));
  } catch (cause) {
    throw usage(
      new KernelError('bad_request', {
        message: `--since: '${text.slice(0, 80)}' must be a day, a time (ISO 8601, UTC) or an age such as 12h, 30d or 8w.`,
        details: { field: 'since' },
        cause,
      }),
    );
  }
}

/** Statuses separated by commas. */
function parseStatuses(text: string): readonly TurnStatus[] {
  return text.split(',').map((part) => {
    const word = part.trim();
    const status = TURN_STATUSES.find((known) => known === word);
    if (status === undefined)
      throw wrongUsage(
        `--status: '${word.slice(0, 80)}' must be one of ${TURN_STATUSES.join(', ')}`,
        'status',
      );
    return status;
  });
}

/** When a search takes longer, it is still writing the search text of turns. */
const PATIENCE_MS = 2_000;
const PIPE_WIDTH = 120;
const widthOf = (): number =>
  process.stdout.isTTY ? Math.max(process.stdout.columns || 80, 80) : PIPE_WIDTH;

/** The flags for the names of the library's options. */
const FLAGS = {
  status: '--status',
  channelId: '--channel',
  text: '--text',
  limit: '--limit',
  cursor: '--cursor',
};

/** Only the given options: a list rejects options that it does not have. */
function optionsOf(context: Context, noun: Noun, flags: Flags): object {
  const { status, channel, since, project, archived, ...rest } = flags;
  return {
    ...rest,
    ...(status === undefined ? {} : { status: parseStatuses(status) }),
    ...(channel === undefined ? {} : { channelId: channel }),
    ...(since === undefined ? {} : { since: parseSince(since) }),
    ...(archived === undefined ? {} : { isArchived: archived }),
    ...(noun.filters.includes('project') ? { projectId: project ?? context.config.project } : {}),
  };
}

/** A note on how a text was searched; undefined when there is nothing to note. */
function searchNote(search: ListSearch | undefined, isIndexed: boolean): string | undefined {
  if (search?.by !== 'scan') return undefined;
  const how = isIndexed
    ? 'no index finds this text (pg_trgm is not installed, or it has no three letters or digits in a row): the newest were looked through'
    : 'the newest were looked through';
  if (search.scanned_to !== undefined)
    return `${how}, back to ${search.scanned_to.toISOString()}; --cursor continues from there`;
  return isIndexed ? how : undefined;
}

async function runList(context: Context, noun: Noun, flags: Flags): Promise<number> {
  const options = optionsOf(context, noun, flags);
  await inFlags(FLAGS, async () => checkListOptions(noun.name, options)).catch((error: unknown) => {
    throw usage(error as KernelError);
  });
  await using reader = await openReader(context.config, context.log('warn'));
  const isSearch = flags.text !== undefined && noun.filters.includes('status');
  const waiting = setTimeout(() => {
    if (isSearch) context.note('the words of turns that were never searched are written now, once');
  }, PATIENCE_MS);
  const load = (pool: Reader['pool']) => noun.load(pool, options);
  // A search first writes the text of turns, which a standby cannot do.
  const { answer, rows, empty } = await inFlags(FLAGS, () =>
    isSearch ? load(reader.pool) : reader.report(load),
  ).finally(() => clearTimeout(waiting));
  context.answer(answer, () =>
    rows.length === 0 ? empty : formatTable(noun.columns, rows, { width: widthOf() }),
  );
  const note = searchNote(answer.search, isSearch);
  if (note !== undefined) context.note(note);
  if (answer.silent_workers !== undefined && answer.silent_workers > 0)
    context.note(
      `${countOf(answer.silent_workers, 'live worker')} of an older build, whose ${noun.name} are not known`,
    );
  if (answer.next_cursor !== null)
    context.note(`${countOf(rows.length, noun.of)} shown; the next: --cursor ${answer.next_cursor}`);
  return EXIT.success;
}

type ListOption = readonly [flags: string, description: string];
const OPTIONS: Readonly<Record<Filter, (noun: Noun) => ListOption>> = {
  status: () => ['--status <list>', `of these statuses, with commas: ${TURN_STATUSES.join(', ')}`],
  profile: () => ['--profile <name>', 'of this profile, in any version'],
  agent: () => ['--agent <agent>', 'of this agent, by id or name'],
  channel: () => ['--channel <channel_id>', 'of this channel'],
  text: ({ text }) => ['--text <text>', `with this text in it: ${text}, whatever its case`],
  since: () => [
    '--since <when>',
    'made then or later: a day or time (ISO 8601, UTC), or an age: 12h, 30d, 8w',
  ],
  archived: () => ['--archived', 'only archived ones'],
  project: () => ['--project <name>', 'project, by id or name'],
};

/** Adds `ls` of a noun to its group of commands. */
export function addListTo(group: Command, name: ListNoun, run: Run): void {
  const noun = NOUNS.find((one) => one.name === name);
  if (noun === undefined) throw new TypeError(`no list of ${name}`);
  const command = group.command('ls').description(noun.description);
  for (const filter of noun.filters) {
    command.option(...OPTIONS[filter](noun));
  }
  command
    .option('--limit <number>', 'how many at most, up to 1000 (50)', flag(settingSchemas.pageSize))
    .option('--cursor <cursor>', 'the next page: next_cursor of the page before')
    .addHelpText('after', helpOf({ examples: noun.examples, remarks: noun.remarks }))
    .action((flags: Flags) => run((context) => runList(context, noun, flags)));
}

/** Adds `boxcar runs`, or the group of another noun without other commands, to the program. */
export const addList =
  (name: ListNoun) =>
  (program: Command, run: Run): void => {
    const group = program.command(name).addHelpText('after', helpOf({ examples: [`boxcar ${name} ls`] }));
    addListTo(group, name, run);
  };
