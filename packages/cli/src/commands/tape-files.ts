import { KernelError, tryParseId } from '@boxcar/kernel';
import type { Runtime, Tape, TapeTarget } from '@boxcar/runtime';
import type { Command } from 'commander';
import { EXIT, helpOf, type Run } from '../command.js';
import type { Context } from '../context.js';
import { openStack } from '../stack.js';
import { progressOf } from '../tape/progress.js';
import { findTapeFiles } from '../tape/read-folder.js';
import { writeTapeFolder } from '../tape/write-folder.js';
import { countOf, toLine } from '../text.js';

interface FileFlags {
  readonly project?: string;
  readonly as?: string;
}

const optionsOf = (context: Context, flags: FileFlags) => ({
  projectId: flags.project ?? context.config.project,
  ...(flags.as === undefined ? {} : { as: flags.as }),
});

/** The tape of a name, of a box, or of an agent, looked for in this order; undefined when there is none. */
async function findTape(
  runtime: Runtime,
  ref: string,
  options: ReturnType<typeof optionsOf>,
): Promise<Tape | undefined> {
  const targets: readonly TapeTarget[] = [tryParseId(ref) === undefined ? ref : { box: ref }, { agent: ref }];
  for (const target of targets) {
    try {
      return await runtime.tape(target, { ...options, create: false });
    } catch (error) {
      if (!(error instanceof KernelError && error.code === 'not_found')) throw error;
    }
  }
  return undefined;
}

interface ExportFlags extends FileFlags {
  readonly to: string;
}

/** `boxcar tape export`. */
async function runExport(context: Context, ref: string, flags: ExportFlags): Promise<number> {
  await using stack = await openStack(context.config, { log: context.log('warn') });
  const { runtime } = stack;
  const options = optionsOf(context, flags);
  const tape = await findTape(runtime, ref, options);
  if (tape === undefined)
    throw new KernelError('not_found', {
      message: `No tape and no agent '${ref}' in project '${options.projectId}'.`,
      details: { tape: ref, project_id: options.projectId },
    });
  const progress = progressOf(context.note);
  let lines = 0;
  const onLine = (): void => {
    lines += 1;
    progress(lines);
  };
  const written = await writeTapeFolder(runtime, tape, { to: flags.to, onLine });
  const answer = { tape: written.id, to: flags.to, lines: written.lines, archived: written.archived };
  context.answer(
    answer,
    () =>
      `${countOf(written.lines, 'line')} of ${toLine(written.id)} to ${toLine(flags.to)}${besides(written)}`,
  );
  return EXIT.success;
}

const besides = ({ archived }: { readonly archived: number }): string =>
  archived === 0 ? '' : `, and ${countOf(archived, 'archived tape')}`;

interface ImportFlags extends FileFlags {
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
    throw new KernelError('bad_request', {
      message: `${path} does not name the tape: say what it shall be called.`,
      details: { field: 'tape' },
    });
  await using stack = await openStack(context.config, { log: context.log('warn') });
  const { runtime } = stack;
  const options = optionsOf(context, flags);
  const existing = flags.append === true ? await findTape(runtime, wanted, options) : undefined;
  const { main, ...rest } = source;
  if (existing !== undefined && Object.values(rest).some((part) => part.length > 0))
    context.note('the tape exists: its archived tapes and session graph stay as they are');
  const made = await runtime.importTape(
    existing === undefined ? wanted : { box: existing.boxId },
    existing === undefined ? source : { main },
    {
      ...options,
      append: flags.append ?? false,
      ...(flags.key === undefined ? {} : { dedupKey: flags.key }),
      onProgress: progressOf(context.note),
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

const PROJECT = ['--project <name>', 'project, by id or name'] as const;
const AS = ['--as <agent>', 'in whose name, by id or name (the operator)'] as const;

export function addExport(group: Command, run: Run): void {
  group
    .command('export')
    .description('Write a tape to a folder: its lines, manifest, archived tapes and session graph.')
    .argument('<tape>', 'its name, the id of its box, or its agent (id or name)')
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
    .description('Make a tape of a folder or of a file of JSON lines, all of it or nothing.')
    .argument('<path>', 'a folder that export wrote, or a file of lines')
    .argument('[tape]', 'its name here (that of the manifest)')
    .option('--append', 'also behind the entries of a tape that exists')
    .option('--key <key>', 'names this import: the same again imports nothing and gives the first answer')
    .option(...AS)
    .option(...PROJECT)
    .addHelpText(
      'after',
      helpOf({
        remarks: 'A broken line is named by its number, and nothing is imported.',
        examples: [
          'boxcar tape import backup/writer-1 writer-copy',
          'boxcar tape import session/tape/main.jsonl notes --append',
        ],
      }),
    )
    .action((path: string, ref: string | undefined, flags: ImportFlags) =>
      run((context) => runImport(context, path, { ref, flags })),
    );
}
