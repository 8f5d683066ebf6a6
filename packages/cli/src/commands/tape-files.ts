/** `boxcar tape export|import`. */
import { tryParseId } from '@boxcar/kernel';
import type { Command } from 'commander';
import { EXIT, helpOf, type Run } from '../command.js';
import type { Context } from '../context.js';
import { openStack } from '../stack.js';
import { lookForTape } from '../tape/find-tape.js';
import { AS, badFlag, onTape, PROJECT, projectOf, TAPE, type TapeFlags } from '../tape/on-tape.js';
import { progressOf } from '../tape/progress.js';
import { findTapeFiles } from '../tape/read-folder.js';
import { writeTapeFolder } from '../tape/write-folder.js';
import { countOf, toLine } from '../text.js';

interface ExportFlags extends TapeFlags {
  readonly to: string;
}

/** `boxcar tape export`. */
const runExport = (context: Context, ref: string, flags: ExportFlags): Promise<number> =>
  onTape(context, ref, flags, async ({ tape }, { runtime }) => {
    const { to } = flags;
    const progress = progressOf(context.note);
    let read = 0;
    const onLine = (): void => {
      read += 1;
      progress(read);
    };
    const written = await writeTapeFolder(runtime, tape, { to, onLine });
    const { id, lines, archived } = written;
    context.answer(
      { tape: id, to, lines, archived },
      () => `${countOf(lines, 'line')} of ${toLine(id)} to ${toLine(to)}${besides(written)}`,
    );
    return EXIT.success;
  });

const besides = ({ archived }: { readonly archived: number }): string =>
  archived === 0 ? '' : `, and ${countOf(archived, 'archived tape')}`;

interface ImportFlags extends TapeFlags {
  readonly append?: boolean;
  readonly key?: string;
}

/** `boxcar tape import`. */
async function runImport(
  context: Context,
  path: string,
  of: { readonly ref: string | undefined; readonly flags: ImportFlags },
): Promise<number> {
  const { ref, flags } = of;
  const { name, source } = await findTapeFiles(path, ref);
  const wanted = ref ?? name;
  // The tape of an agent is called by an id, which here means another one, or none.
  if (wanted === undefined || (ref === undefined && tryParseId(wanted) !== undefined))
    throw badFlag(`${path} does not name the tape: say what it shall be called`, 'tape');
  await using stack = await openStack(context.config, { log: context.log('warn') });
  const { runtime } = stack;
  const project = projectOf(context, flags);
  const { as, append = false } = flags;
  const existing = append ? await lookForTape(runtime, wanted, { project, as }) : undefined;
  const { main, ...rest } = source;
  if (existing !== undefined && Object.values(rest).some((part) => part.length > 0))
    context.note('the tape exists: its archived tapes and session graph stay as they are');
  const made = await runtime.importTape(
    existing === undefined ? wanted : { box: existing.tape.boxId },
    existing === undefined ? source : { main },
    {
      projectId: project,
      append,
      ...(flags.key === undefined ? {} : { dedupKey: flags.key }),
      onProgress: progressOf(context.note),
      ...(as === undefined ? {} : { as }),
    },
  );
  const { boxId, first, last, lines, archived, isRepeated } = made;
  if (isRepeated) context.note('this key was used before; nothing was imported again');
  context.answer(
    { tape: wanted, box_id: boxId, first, last, lines, archived, is_repeated: isRepeated },
    () => `${countOf(lines, 'line')} to ${toLine(wanted)}, positions ${first}–${last}${besides(made)}`,
  );
  return EXIT.success;
}

export function addExport(group: Command, run: Run): void {
  group
    .command('export')
    .description('Write a tape to a folder: its lines, manifest, archived tapes and session graph.')
    .argument(...TAPE)
    .requiredOption('--to <folder>', 'made when there is none; holds no tape yet')
    .option(...AS)
    .option(...PROJECT)
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'Lines that were imported are written as they were. A folder is there as a whole or not at all.',
        examples: ['boxcar tape export writer-1 --to backup/writer-1'],
      }),
    )
    .action((ref: string, flags: ExportFlags) => run((context) => runExport(context, ref, flags)));
}

export function addImport(group: Command, run: Run): void {
  group
    .command('import')
    .description('Make a tape of a folder or of a file of JSON lines, or append them to one.')
    .argument('<path>', 'a folder that export wrote, or a file of lines')
    .argument('[tape]', 'its name here (that of the manifest)')
    .option('--append', 'also after the entries of a tape that exists, chunk by chunk')
    .option(
      '--key <key>',
      'names this import: the same again imports what is missing and gives the first answer',
    )
    .option(...AS)
    .option(...PROJECT)
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'A broken line is named by its number, and nothing is imported. An append that was killed leaves whole chunks; with --key the same command again appends the rest.',
        examples: [
          'boxcar tape import backup/writer-1 writer-copy',
          'boxcar tape import session/tape/main.jsonl notes --append --key monday',
        ],
      }),
    )
    .action((path: string, ref: string | undefined, flags: ImportFlags) =>
      run((context) => runImport(context, path, { ref, flags })),
    );
}
