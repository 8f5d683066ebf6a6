/**
 * The comma commands of a tape and their meaning. People write them in `boxcar tape repl` and in an operator's
 * instruction; agents with `comma_commands` write them in their own text. Source: docs/reference/tape.md, "Commands".
 */
import type { z } from 'zod';
import type { JsonObject, JsonValue } from '../base/index.js';
import { findingsOf, KernelError, parseRelaxedJson, safeParse } from '../base/index.js';
import {
  type TapeAnchors,
  type TapeHandoff,
  type TapeSearchInput,
  tapeAnchorsSchema,
  tapeHandoffSchema,
  tapeInfoSchema,
  tapeResetSchema,
  tapeSearchSchema,
} from '../tape/index.js';
import { type CommaCommand, isCommaCommand, parseCommaCommand } from './comma-command.js';
import { scanCommands } from './scan.js';

/** A command with checked arguments. */
export type TapeCommand =
  | { readonly kind: 'handoff'; readonly input: TapeHandoff }
  | { readonly kind: 'anchors'; readonly input: TapeAnchors }
  | { readonly kind: 'search'; readonly input: TapeSearchInput }
  | { readonly kind: 'reset'; readonly input: { readonly archive?: boolean | undefined } }
  | { readonly kind: 'info' | 'help' | 'quit'; readonly input: JsonObject };

type Kind = TapeCommand['kind'];

interface Shape {
  readonly usage: string;
  readonly what: string;
  /** The argument that receives words without a name. `words`: it receives all of them together. */
  readonly positional?: { readonly key: string; readonly takes: 'word' | 'words' };
  readonly schema: z.ZodType;
  /** The types of arguments that are not texts. */
  readonly types?: Readonly<Record<string, 'number' | 'boolean' | 'list' | 'json'>>;
  /** The tool that agents call with this command; commands that only people use have no tool. */
  readonly tool?: string;
}

// A command always concerns the current tape, so it cannot name another tape.
const NOTHING = tapeInfoSchema.omit({ tape: true });

const SHAPES: Readonly<Record<Kind, Shape>> = {
  handoff: {
    usage: ',handoff name=<name> [summary=<text>] [next_steps=<text>] [state={…}]',
    what: 'write an anchor; views begin with it',
    positional: { key: 'name', takes: 'word' },
    schema: tapeHandoffSchema.omit({ tape: true }),
    types: { state: 'json' },
    tool: 'tape.handoff',
  },
  anchors: {
    usage: ',anchors [limit=<n>] [before=<position>]',
    what: 'the last anchors',
    schema: tapeAnchorsSchema.omit({ tape: true }),
    types: { limit: 'number', before: 'number' },
    tool: 'tape.anchors',
  },
  search: {
    usage: ',tape.search <words> [limit=<n>] [start=<date>] [end=<date>] [kinds=<kind,…>]',
    what: 'entries with these words',
    positional: { key: 'query', takes: 'words' },
    schema: tapeSearchSchema.omit({ tape: true }),
    types: { limit: 'number', kinds: 'list' },
    tool: 'tape.search',
  },
  info: {
    usage: ',tape.info',
    what: 'what is on the tape',
    schema: NOTHING,
    tool: 'tape.info',
  },
  reset: {
    usage: ',tape.reset [archive=true]',
    what: 'begin the tape anew; what was written stays, archived',
    schema: tapeResetSchema,
    types: { archive: 'boolean' },
  },
  help: { usage: ',help', what: 'this list', schema: NOTHING },
  quit: { usage: ',quit', what: 'leave the repl', schema: NOTHING },
};

const NAMES: ReadonlyMap<string, Kind> = new Map([
  ['handoff', 'handoff'],
  ['tape.handoff', 'handoff'],
  ['anchors', 'anchors'],
  ['tape.anchors', 'anchors'],
  ['tape.search', 'search'],
  ['tape.info', 'info'],
  ['tape', 'info'],
  ['tape.reset', 'reset'],
  ['help', 'help'],
  ['quit', 'quit'],
]);

const WIDTH = Math.max(...Object.values(SHAPES).map(({ usage }) => usage.length));

/** All commands, one per line. */
export const COMMAND_HELP = Object.values(SHAPES)
  .map(({ usage, what }) => `${usage.padEnd(WIDTH)}  ${what}`)
  .join('\n');

const COMMAND_LIST = [...new Set(Object.values(SHAPES).map(({ usage }) => usage.split(' ', 1)[0]))];

/** The same failure, with the list of commands. */
export function withCommands(error: KernelError, command: string, hint = ''): KernelError {
  if (error.details.commands !== undefined) return error;
  return error.restate(`${error.problem}${hint} Commands: ${COMMAND_LIST.join(', ')}.`, {
    command: command.slice(0, 500),
    commands: COMMAND_LIST,
  });
}

/** The usage of the command that a text was probably meant to be. */
function usageHint(text: string): string {
  const kind = NAMES.get(/^,\s*(\S+)/.exec(text)?.[1] ?? '');
  return kind === undefined ? '' : ` Usage: ${SHAPES[kind].usage}.`;
}

const refuse = (field: string, message: string): KernelError =>
  new KernelError('bad_request', { message: `${field}: ${message}.`, details: { field } });

/** Command values are texts; arguments of other types are converted from them. */
function readValue(value: JsonValue, type: NonNullable<Shape['types']>[string] | undefined): JsonValue {
  if (typeof value !== 'string' || type === undefined) return value;
  switch (type) {
    case 'number':
      return /^[+-]?\d{1,15}$/.test(value) ? Number(value) : value;
    case 'boolean':
      return value === 'true' ? true : value === 'false' ? false : value;
    case 'list':
      return value.split(',').map((item) => item.trim());
    case 'json':
      return value.trim() === '' ? value : parseRelaxedJson(value);
    default:
      return type satisfies never;
  }
}

function readArguments({ positional, named, name }: CommaCommand, shape: Shape | undefined): JsonObject {
  const { positional: place, types = {} } = shape ?? {};
  const values = Object.entries(named).map(
    ([key, value]) => [key, readValue(value, Object.hasOwn(types, key) ? types[key] : undefined)] as const,
  );
  if (positional.length === 0) return Object.fromEntries(values);
  if (place === undefined) throw refuse(name, `takes no '${positional[0]}'`);
  if (place.takes === 'word' && positional.length > 1)
    throw refuse(place.key, `is one word; put '${positional.join(' ')}' in quotes`);
  if (Object.hasOwn(named, place.key)) throw refuse(place.key, 'is given twice');
  return Object.fromEntries([[place.key, positional.join(' ')], ...values]);
}

function readChecked(command: CommaCommand): TapeCommand {
  const kind = NAMES.get(command.name);
  if (kind === undefined)
    throw new KernelError('bad_request', {
      message: `There is no command ',${command.name}'.`,
      details: { field: 'command' },
    });
  const shape = SHAPES[kind];
  const parsed = safeParse(shape.schema, readArguments(command, shape));
  if (!parsed.success) {
    const [finding, ...others] = findingsOf(parsed.error);
    const rest = others.map(({ path, message }) => `; ${path}: ${message}`).join('');
    throw refuse(finding?.path || kind, `${finding?.message ?? 'is not valid'}${rest}`);
  }
  return { kind, input: parsed.data } as TapeCommand;
}

/**
 * Reads a text as one command.
 *
 * @throws KernelError `bad_request` with the list of commands.
 */
export function readTapeCommand(text: string): TapeCommand {
  try {
    return readChecked(parseCommaCommand(text));
  } catch (error) {
    if (!(error instanceof KernelError)) throw error;
    throw withCommands(error, text.trim(), usageHint(text.trim()));
  }
}

/**
 * A command line of an assistant as a call. The name is the command's tool, or the written name when there is no tool.
 * The arguments are JSON, or the line itself when it cannot be read.
 */
export interface CommandCall {
  readonly name: string;
  readonly arguments: string;
}

function toCall(line: string): CommandCall {
  const written = /^,([\w.-]+)/.exec(line)?.[1] ?? '';
  const kind = NAMES.get(written);
  const shape = kind === undefined ? undefined : SHAPES[kind];
  const name = shape?.tool ?? written;
  try {
    return { name, arguments: JSON.stringify(readArguments(parseCommaCommand(line), shape)) };
  } catch {
    return { name, arguments: line };
  }
}

/** A text with more command lines is treated as text about commands, and none of them is run. */
const MAX_COMMANDS = 32;

/** Separates the text of an assistant that may use commands: the text without them, and the commands as calls. */
export function takeCommands(text: string): {
  readonly visible: string;
  readonly calls: readonly CommandCall[];
} {
  const scan = scanCommands(text);
  if (scan.commands.length > MAX_COMMANDS) return { visible: text, calls: [] };
  return { visible: scan.visible, calls: scan.commands.map(toCall) };
}

/**
 * Why the arguments of a call could not be read, when they are a comma command; undefined when they can be read or are
 * another text.
 */
export function commandFault(args: JsonValue): string | undefined {
  if (typeof args !== 'string' || !isCommaCommand(args)) return undefined;
  try {
    const command = parseCommaCommand(args);
    readArguments(command, SHAPES[NAMES.get(command.name) ?? 'help']);
    return undefined;
  } catch (error) {
    return error instanceof KernelError ? error.message : undefined;
  }
}
