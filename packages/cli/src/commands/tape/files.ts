/** `boxcar tape export|import`. */

import { toLine } from '@boxcar/host/base';
import { openStack } from '@boxcar/host/open';
import { KernelError, sha256, tryParseId, workspacePrefix } from '@boxcar/kernel';
import type { ImportedTape, Runtime, Tape, TapeSource } from '@boxcar/runtime';
import { findProjectByRef, listWorkspaceTapes } from '@boxcar/store';
import type { Command } from 'commander';
import { EXIT, helpOf, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { workspaceOf } from '../../input/session-flags.js';
import { wrongUsage } from '../../input/usage.js';
import { countOf } from '../../text/text.js';
import { findTape, lookForTape } from './find-tape.js';
import { AS, PROJECT, projectOf, TAPE, type TapeFlags } from './on-tape.js';
import { progressOf } from './progress.js';
import { findTapeFiles } from './read-folder.js';
import { writeTapeFolder } from './write-folder.js';

interface ExportFlags extends TapeFlags {
  readonly to: string;
  readonly workspace?: string;
  readonly session?: string;
}

/** The named tapes, each once, or the tapes of the workspace. */
async function findTapes(
  runtime: Runtime,
  refs: readonly string[],
  {
    project,
    as,
    workspace,
  }: { readonly project: string; readonly as: string | undefined; readonly workspace: string | undefined },
): Promise<readonly Tape[]> {
  const tapes: Tape[] = [];
  for (const ref of refs) tapes.push((await findTape(runtime, ref, { project, as })).tape);
  if (refs.length === 0 && workspace !== undefined) {
    const folder = workspaceOf(workspace);
    const { id: projectId } = await findProjectByRef(runtime.pool, project);
    const options = { projectId, as };
    for (const box of await listWorkspaceTapes(runtime.pool, projectId, workspacePrefix(folder)))
      tapes.push(await runtime.tape({ box }, options));
    if (tapes.length === 0)
      throw new KernelError('not_found', {
        message: `No session of workspace ${folder} has a tape in project '${project}'.`,
        details: { workspace: folder, project_id: projectId },
      });
  }
  return [...new Map(tapes.map((tape) => [tape.boxId, tape])).values()];
}

/** `boxcar tape export`. */
async function runExport(context: Context, refs: readonly string[], flags: ExportFlags): Promise<number> {
  const { to, as, workspace, session } = flags;
  if (refs.length > 0 && workspace !== undefined && session === undefined)
    throw wrongUsage('--workspace: name tapes, or give --workspace for all of its sessions', 'workspace');
  if (refs.length === 0 && workspace === undefined)
    throw wrongUsage('say which tape, or give --workspace for all of its sessions', 'tape');
  await using stack = await openStack(context.config, { log: context.log('warn') });
  const { runtime } = stack;
  const tapes = await findTapes(runtime, refs, { project: projectOf(context, flags), as, workspace });
  const progress = progressOf(context.note);
  let read = 0;
  const onLine = (): void => {
    read += 1;
    progress(read);
  };
  const written = await writeTapeFolder(runtime, tapes, { to, onLine });
  const answers = written.map(({ id, lines, archived }) => ({ tape: id, lines, archived }));
  const [only] = answers;
  context.answer(
    answers.length === 1 && only !== undefined
      ? { tape: only.tape, to, lines: only.lines, archived: only.archived }
      : { to, tapes: answers },
    () =>
      written
        .map((one) => `${countOf(one.lines, 'line')} of ${toLine(one.id)} to ${toLine(to)}${besides(one)}`)
        .join('\n'),
  );
  return EXIT.success;
}

const besides = ({ archived }: { readonly archived: number }): string =>
  archived === 0 ? '' : `, and ${countOf(archived, 'archived tape')}`;

interface ImportFlags extends TapeFlags {
  readonly append?: boolean;
  readonly key?: string;
}

interface Wanted {
  readonly name: string;
  readonly source: TapeSource;
}

async function importOne(
  context: Context,
  runtime: Runtime,
  { name, source, key, flags }: Wanted & { readonly key: string | undefined; readonly flags: ImportFlags },
): Promise<ImportedTape> {
  const project = projectOf(context, flags);
  const { as, append = false } = flags;
  const existing = append ? await lookForTape(runtime, name, { project, as }) : undefined;
  const { main, ...rest } = source;
  if (existing !== undefined && Object.values(rest).some((part) => part.length > 0))
    context.note('the tape exists: its archived tapes and session graph stay as they are');
  const made = await runtime.importTape(
    existing === undefined ? name : { box: existing.tape.boxId },
    existing === undefined ? source : { main },
    {
      projectId: project,
      append,
      dedupKey: key,
      onProgress: progressOf(context.note),
      as,
    },
  );
  if (made.isRepeated) context.note('this key was used before; nothing was imported again');
  return made;
}

/** An error for an import that the files or the database do not allow. */
const badImport = (message: string, field: string): KernelError =>
  new KernelError('bad_request', { message: `${message}.`, details: { field } });

/** Imports several tapes of a folder, one after the other; each tape is imported completely. */
async function importAll(
  context: Context,
  runtime: Runtime,
  { wanted, flags }: { readonly wanted: readonly Wanted[]; readonly flags: ImportFlags },
): Promise<readonly ImportedTape[]> {
  const { key, as, append = false } = flags;
  const project = projectOf(context, flags);
  for (const { name } of wanted)
    if (
      wanted.length > 1 &&
      !append &&
      key === undefined &&
      (await lookForTape(runtime, name, { project, as }))
    )
      throw badImport(
        `there is a tape '${name}': nothing was imported. Name one tape of the folder, or give --append`,
        'tape',
      );
  const made: ImportedTape[] = [];
  try {
    for (const one of wanted) {
      // Each tape has its own key, so that a repeated command continues after the last imported tape.
      const own = key === undefined || wanted.length === 1 ? key : `${key}:${sha256(one.name).slice(0, 16)}`;
      made.push(await importOne(context, runtime, { ...one, key: own, flags }));
    }
  } catch (error) {
    const names = wanted.slice(0, made.length).map(({ name }) => toLine(name));
    if (names.length > 0) context.note(`imported before the error: ${names.join(', ')}`);
    throw error;
  }
  return made;
}

/** `boxcar tape import`. */
async function runImport(
  context: Context,
  path: string,
  of: { readonly ref: string | undefined; readonly flags: ImportFlags },
): Promise<number> {
  const { ref, flags } = of;
  const found = await findTapeFiles(path, ref);
  const wanted = found.map(({ name, source }): Wanted => {
    const called = ref ?? name;
    // An exported tape of an agent is named by an id, which in this database means another agent or none.
    if (called !== undefined && (ref !== undefined || tryParseId(called) === undefined))
      return { name: called, source };
    if (found.length === 1) throw badImport(`${path} does not name the tape: give its name`, 'tape');
    throw badImport(
      `${path} names a tape by an id, ${called}: import only its file, and give its name`,
      'tape',
    );
  });
  await using stack = await openStack(context.config, { log: context.log('warn') });
  const made = await importAll(context, stack.runtime, { wanted, flags });
  const answers = made.map(({ boxId, first, last, lines, archived, isRepeated }, index) => ({
    tape: wanted[index]?.name ?? '',
    box_id: boxId,
    first,
    last,
    lines,
    archived,
    is_repeated: isRepeated,
  }));
  context.answer(answers.length === 1 ? answers[0] : { tapes: answers }, () =>
    answers
      .map(
        (one) =>
          `${countOf(one.lines, 'line')} to ${toLine(one.tape)}, positions ${one.first}–${one.last}${besides(one)}`,
      )
      .join('\n'),
  );
  return EXIT.success;
}

export function addExport(group: Command, run: Run): void {
  group
    .command('export')
    .description('Writes tapes to a folder: lines, manifest, archived tapes and session graph.')
    .argument('[tape...]', `${TAPE[1]}; or --workspace alone: all of its sessions`)
    .requiredOption('--to <folder>', 'a folder without tapes; made if it does not exist')
    .option(...AS)
    .option(...PROJECT)
    .addHelpText(
      'after',
      helpOf({
        remarks: 'Imported lines are written unchanged. The folder is written as a whole or not at all.',
        examples: [
          'boxcar tape export writer-1 --to backup/writer-1',
          'boxcar tape export --workspace . --to backup/demo',
        ],
      }),
    )
    .action((refs: readonly string[], flags: ExportFlags) =>
      run((context) => runExport(context, refs, flags)),
    );
}

export function addImport(group: Command, run: Run): void {
  group
    .command('import')
    .description('Makes tapes from a folder or a file of JSON lines, or appends them to a tape.')
    .argument('<path>', 'a folder written by export, or a file of JSON lines')
    .argument(
      '[tape]',
      'its name here (default: the name in the manifest); in a folder with several tapes, the one to read (all)',
    )
    .option('--append', 'append to an existing tape, chunk by chunk')
    .option(
      '--key <key>',
      'names this import: a repetition imports the missing lines and returns the first answer',
    )
    .option(...AS)
    .option(...PROJECT)
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'If a line is not valid, the command reports its number and imports nothing of this tape. In a folder, the tapes before it are imported, and named in the error. After a killed append the tape has whole chunks; the same command with --key appends the rest.',
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
