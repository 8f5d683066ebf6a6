/** `boxcar tape handoff|reset|repl|resume`. */

import { toLine, toPlain } from '@boxcar/host/base';
import { settingSchemas } from '@boxcar/host/config';
import { copyKeyOrder, errorText, handoffText, type JsonObject, parseJson } from '@boxcar/kernel';
import type { Command } from 'commander';
import { EXIT, flag, helpOf, type Run, same } from '../../command.js';
import type { Context } from '../../context.js';
import { confirm } from '../../input/confirm.js';
import { wrongUsage } from '../../input/usage.js';
import { onTape, PROJECT, TAPE, type TapeFlags } from './on-tape.js';
import { runRepl } from './repl.js';
import { inline } from './text.js';

interface HandoffFlags extends TapeFlags {
  readonly summary?: string;
  readonly nextSteps?: string;
  readonly state?: string;
  readonly expectHead?: number;
  readonly key?: string;
  readonly create?: boolean;
}

function readState(text: string): JsonObject {
  let value: unknown;
  try {
    value = parseJson(text);
  } catch (error) {
    throw wrongUsage(`--state: is not valid JSON (${errorText(error)})`, 'state');
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw wrongUsage('--state: must be a JSON object', 'state');
  return value as JsonObject;
}

/** `boxcar tape handoff`. */
async function runHandoff(context: Context, ref: string, name: string, flags: HandoffFlags): Promise<number> {
  const { summary, nextSteps, expectHead, key } = flags;
  const given = flags.state === undefined ? {} : readState(flags.state);
  const state: JsonObject = {
    ...given,
    ...(summary === undefined || summary.trim() === '' ? {} : { summary }),
    ...(nextSteps === undefined || nextSteps.trim() === '' ? {} : { next_steps: nextSteps }),
  };
  copyKeyOrder(given, state);
  return onTape(context, ref, flags, async ({ tape }) => {
    const done = await tape.handoff(name, {
      ...(Object.keys(state).length === 0 ? {} : { state }),
      expectedHead: expectHead,
      dedupKey: key,
    });
    for (const warning of done.warnings ?? []) context.note(warning);
    if (done.isRepeated) context.note('this key was used before; nothing was appended again');
    context.answer({ name, anchor: done.anchor, event: done.event, is_repeated: done.isRepeated }, () =>
      toPlain(handoffText(name)),
    );
    return EXIT.success;
  });
}

export function addTapeHandoff(group: Command, run: Run): void {
  group
    .command('handoff')
    .description('Writes an anchor: the state to hand over, and the new beginning of views.')
    .argument(...TAPE)
    .argument('<name>', 'name of the anchor, such as phase-1')
    .option('--summary <text>', 'what was done', same)
    .option('--next-steps <text>', 'the next steps', same)
    .option('--state <json>', 'an object with further data to hand over')
    .option(
      '--expect-head <number>',
      'fail if the tape has entries after this position',
      flag(settingSchemas.position),
    )
    .option('--create', 'make the tape if it does not exist')
    .option('--key <key>', 'idempotency key: a second handoff with this key appends nothing')
    .option(...PROJECT)
    .addHelpText(
      'after',
      helpOf({
        examples: [
          'boxcar tape handoff writer-1 phase-1 --summary "Setup done"',
          'boxcar tape handoff notes start --create --state \'{"goal":"Build API"}\'',
        ],
      }),
    )
    .action((ref: string, name: string, flags: HandoffFlags) =>
      run((context) => runHandoff(context, ref, name, flags)),
    );
}

interface ResetFlags extends TapeFlags {
  readonly archive?: boolean;
  readonly yes?: boolean;
}

/** `boxcar tape reset`. */
const runReset = (context: Context, ref: string, flags: ResetFlags): Promise<number> =>
  onTape(context, ref, flags, async ({ tape, title }) => {
    const question = `Begin tape ${toLine(title)} anew? What was written stays readable, archived.`;
    if (!(await confirm(context, question, flags))) return EXIT.negative;
    const { archived } = await tape.reset({ archive: flags.archive ?? false });
    context.answer({ box_id: tape.boxId, archived }, () =>
      archived === null ? 'ok' : `Archived: ${archived}`,
    );
    return EXIT.success;
  });

export function addTapeReset(group: Command, run: Run): void {
  group
    .command('reset')
    .description('Starts a tape again; the old tape is archived unchanged.')
    .argument(...TAPE)
    .option('--archive', 'the first anchor of the new tape says where the old one is')
    .option('--yes', 'do not ask')
    .option(...PROJECT)
    .addHelpText(
      'after',
      helpOf({
        remarks: "The command is refused (tape_busy) while a turn of the tape's agent is queued or active.",
        examples: ['boxcar tape reset writer-1 --archive --yes'],
        negative: 'you declined',
      }),
    )
    .action((ref: string, flags: ResetFlags) => run((context) => runReset(context, ref, flags)));
}

interface ReplFlags extends TapeFlags {
  readonly create?: boolean;
}

/** `boxcar tape repl`. */
const runReplOn = (context: Context, ref: string, flags: ReplFlags): Promise<number> =>
  onTape(context, ref, flags, (found, { runtime }) =>
    runRepl(context, runtime, { found, input: process.stdin }),
  );

const REPL =
  'A line that begins with a comma is a command (,help lists them), never a shell line and never shown to a model. It continues over lines while a quote or brace is open, after a \\, and with indented key=value lines.\n\nAny other line is an instruction for the agent of the tape, whose answer is awaited, or, on a tape without agent, a message that is appended.';

export function addTapeRepl(group: Command, run: Run): void {
  group
    .command('repl')
    .description('Works on a tape line by line, at a terminal or from a pipe.')
    .argument(...TAPE)
    .option('--create', 'make the tape if it does not exist')
    .option(...PROJECT)
    .addHelpText(
      'after',
      helpOf({
        remarks: REPL,
        examples: [
          'boxcar tape repl writer-1',
          'echo \',handoff name=phase-1 summary="Setup done"\' | boxcar tape repl notes',
        ],
        error: 'a line from a pipe failed',
      }),
    )
    .action((ref: string, flags: ReplFlags) => run((context) => runReplOn(context, ref, flags)));
}

/** `boxcar tape resume`: reports the state of the work, and continues it. */
const runResume = (context: Context, ref: string, flags: TapeFlags): Promise<number> =>
  onTape(context, ref, flags, async (found, { runtime }) => {
    const [last] = await found.tape.anchors({ limit: 1 });
    if (last === undefined) context.answer({ name: null, state: null, position: null }, () => '(no anchors)');
    else {
      const { name, state, position } = last;
      context.answer(
        { name, state, position },
        () => `Resuming from: ${toLine(name)}\nState: ${toPlain(inline(state)) || 'none'}`,
      );
    }
    return runRepl(context, runtime, { found, input: process.stdin });
  });

export function addTapeResume(group: Command, run: Run): void {
  group
    .command('resume')
    .description('Prints the name and state of the last anchor, then continues like repl.')
    .argument(...TAPE)
    .option(...PROJECT)
    .addHelpText(
      'after',
      helpOf({
        remarks: REPL,
        examples: ['boxcar tape resume writer-1', 'boxcar tape resume notes --json </dev/null'],
        error: 'a line from a pipe failed',
      }),
    )
    .action((ref: string, flags: TapeFlags) => run((context) => runResume(context, ref, flags)));
}
