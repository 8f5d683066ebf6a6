/** Comma commands on a tape, for people. Source: docs/reference/tape.md, "Commands". */
import {
  anchorsText,
  COMMAND_HELP,
  handoffOf,
  handoffText,
  infoText,
  type JsonValue,
  KernelError,
  readTapeCommand,
  type TapeCommand,
  withCommands,
} from '@boxcar/kernel';
import { isTransient } from '@boxcar/store';
import type { Tape } from '../tape/index.js';
import { DEFAULT_ANCHORS } from '../tape/index.js';
import { anchorsAnswer, searchAnswer } from './tape-tools.js';

export interface CommandAnswer {
  readonly command: TapeCommand['kind'];
  /** For people. */
  readonly output: string;
  /** The output as data, for programs. */
  readonly result: JsonValue;
}

const asJson = (value: unknown): JsonValue => JSON.parse(JSON.stringify(value)) as JsonValue;

async function run(tape: Tape, { kind, input }: TapeCommand): Promise<Omit<CommandAnswer, 'command'>> {
  switch (kind) {
    case 'handoff': {
      const { name, state } = handoffOf(input);
      const { anchor, event } = await tape.handoff(name, state === undefined ? {} : { state });
      return { output: handoffText(name), result: { name, anchor, event } };
    }
    case 'anchors': {
      const { anchors, next } = await anchorsAnswer(tape, input);
      const isCut = next !== null && anchors.length < (input.limit ?? DEFAULT_ANCHORS);
      const earlier = isCut ? `earlier anchors: ,anchors before=${next}` : undefined;
      return { output: anchorsText(anchors, earlier), result: asJson(anchors) };
    }
    case 'search': {
      const output = await searchAnswer(tape, input);
      return { output, result: output };
    }
    case 'info': {
      const info = await tape.info();
      return { output: infoText({ ...info }), result: asJson(info) };
    }
    case 'reset': {
      const { archived } = await tape.reset({ archive: input.archive ?? false });
      return { output: archived === null ? 'ok' : `Archived: ${archived}`, result: { archived } };
    }
    case 'help':
      return { output: COMMAND_HELP, result: COMMAND_HELP };
    case 'quit':
      throw new KernelError('bad_request', {
        message: ',quit: there is nothing to leave here.',
        details: { field: 'command' },
      });
    default:
      return kind satisfies never;
  }
}

/**
 * Runs one comma command, and nothing else: no shell, no model.
 *
 * @throws KernelError `bad_request` for a text that is not a command, otherwise the error of the tape; both include the list of
 * commands.
 */
export async function runTapeCommand(tape: Tape, text: string): Promise<CommandAnswer> {
  const command = readTapeCommand(text);
  try {
    return { command: command.kind, ...(await run(tape, command)) };
  } catch (error) {
    throw error instanceof KernelError && !isTransient(error) ? withCommands(error, text.trim()) : error;
  }
}
