/** `boxcar submit <primitive> --help`: the arguments of a primitive, derived from the schema that checks them. */
import { resolve } from 'node:path';
import { toLine } from '@boxcar/host/base';
import { openStack } from '@boxcar/host/open';
import { builtInHandlers, chainForm, type Handler, handoffForm, loadPlugins } from '@boxcar/runtime';
import { z } from 'zod';
import { EXIT, helpOf } from '../../command.js';
import type { Context } from '../../context.js';
import { wrongUsage } from '../../input/usage.js';
import { wrap } from '../../text/text.js';

/** The part of a JSON schema that is shown. */
interface Schema {
  readonly type?: string | readonly string[];
  readonly description?: string;
  readonly enum?: readonly unknown[];
  readonly const?: unknown;
  readonly anyOf?: readonly Schema[];
  readonly oneOf?: readonly Schema[];
  readonly allOf?: readonly Schema[];
  readonly items?: Schema;
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly required?: readonly string[];
  readonly minimum?: number;
  readonly maximum?: number;
}

export interface ArgumentHelp {
  /** The path for a nested member: `tasks[].instruction`. */
  readonly name: string;
  readonly type: string;
  readonly required: boolean;
  readonly description: string;
}

const WIDTH = 80;
/** Members of members are shown; for deeper levels see docs/reference/primitives.md. */
const MAX_DEPTH = 2;

const optionsOf = ({ anyOf, oneOf }: Schema): readonly Schema[] | undefined => anyOf ?? oneOf;

/** Larger limits do not matter in practice and are not shown. */
const LARGEST_SHOWN = 10_000_000;
const isBound = (value: number | undefined): value is number =>
  value !== undefined && Math.abs(value) <= LARGEST_SHOWN;

function boundsOf({ minimum, maximum }: Schema): string {
  if (isBound(minimum) && isBound(maximum)) return ` ${minimum} to ${maximum}`;
  if (isBound(minimum)) return ` from ${minimum}`;
  return isBound(maximum) ? ` to ${maximum}` : '';
}

/** The type in words, without bounds that the description already mentions. */
function typeOf(schema: Schema): string {
  if (schema.enum !== undefined) return schema.enum.map(String).join(' | ');
  if (schema.const !== undefined) return String(schema.const);
  const options = optionsOf(schema);
  if (options !== undefined) return [...new Set(options.map(typeOf))].join(' | ');
  if (schema.type === 'array') return `list of ${typeOf(schema.items ?? {})}`;
  const types = typeof schema.type === 'string' ? [schema.type] : (schema.type ?? ['any JSON']);
  const bounds = boundsOf(schema);
  const isSaid = bounds !== '' && schema.description?.includes(bounds.trim()) === true;
  return types.map((type) => `${type}${isSaid ? '' : bounds}`).join(' | ');
}

/** The members of an object, or of the objects in a list. */
function membersOf(schema: Schema, path = '', depth = 1): readonly ArgumentHelp[] {
  return Object.entries(schema.properties ?? {}).flatMap(([key, member]) => {
    const name = `${path}${key}`;
    const isList = member.type === 'array';
    const inner = (isList ? member.items : member) ?? {};
    return [
      {
        name,
        type: typeOf(member),
        required: schema.required?.includes(key) === true,
        description: toLine(member.description ?? ''),
      },
      ...(depth < MAX_DEPTH ? membersOf(inner, `${name}${isList ? '[]' : ''}.`, depth + 1) : []),
    ];
  });
}

/**
 * The arguments of a primitive. For a schema with several variants these are the members of all variants; required when every variant
 * requires them.
 */
function argumentsOf({ input }: Pick<Handler, 'input'>): readonly ArgumentHelp[] {
  const schema = z.toJSONSchema(input, { io: 'input', unrepresentable: 'any', reused: 'inline' }) as Schema;
  const shapes = [schema, ...(optionsOf(schema) ?? []), ...(schema.allOf ?? [])].filter(
    ({ properties }) => properties !== undefined,
  );
  const found = new Map<string, ArgumentHelp>();
  for (const argument of shapes.flatMap((shape) => membersOf(shape))) {
    const before = found.get(argument.name);
    if (before === undefined) found.set(argument.name, argument);
    else found.set(argument.name, { ...before, required: before.required && argument.required });
  }
  return [...found.values()];
}

type Form = Pick<Handler, 'description' | 'input'>;

/** Each runtime creates its own `handoff` and `handoff_chain`. */
const builtIn: ReadonlyMap<string, Form> = new Map<string, Form>([
  ...builtInHandlers,
  ['handoff', handoffForm],
  ['handoff_chain', chainForm],
]);

/** A primitive of the kernel, else of the plugins. Only the latter needs the database, as with `submit`. */
async function findForm(context: Context, name: string, plugins: readonly string[]): Promise<Form> {
  const known = builtIn.get(name);
  if (known !== undefined) return known;
  const names = [...builtIn.keys()];
  if (plugins.length > 0) {
    await using stack = await openStack(context.config, { log: context.log('warn') });
    await loadPlugins(
      stack.runtime,
      plugins.map((path) => resolve(path)),
    );
    const { handlers } = stack.runtime;
    const found = handlers.get(name);
    if (found !== undefined && found.isInternal !== true) return found;
    for (const [one, { isInternal }] of handlers)
      if (isInternal !== true && !builtIn.has(one)) names.push(one);
  }
  const where = plugins.length > 0 ? 'nor in the plugins' : 'and no --plugin is given';
  throw wrongUsage(
    `no primitive '${name}' is built in, ${where}; there are ${names.join(', ')}`,
    'primitive',
  );
}

function describe(name: string, handler: Form, found: readonly ArgumentHelp[]): string {
  const required = found.filter((one) => one.required && !/[.[]/.test(one.name));
  const example = required.map((one) => `${one.name}${one.type === 'string' ? '=…' : ':=…'}`);
  const rows = found.map((one) => [one.required ? `${one.name} *` : one.name, one.type, one.description]);
  return [
    `Usage: boxcar submit ${name} [options]`,
    '',
    ...wrap(handler.description, WIDTH),
    '',
    'Arguments (* is required):',
    ...(rows.length === 0 ? ['  none that are named'] : listed(rows)),
    '',
    ...wrap(
      'Give them by --arg name=text or --arg name:=json, --json-args or --file. boxcar submit --help shows the flags.',
      WIDTH,
    ),
    helpOf({
      examples: [['boxcar submit', name, ...example.map((one) => `--arg ${one}`)].join(' ')].flatMap((line) =>
        wrap(line, WIDTH - 4).map(
          (part, index, all) => `${index === 0 ? '' : '    '}${part}${index < all.length - 1 ? ' \\' : ''}`,
        ),
      ),
      negative: '--wait: the turn, batch or handoff ended, but not in success',
    }),
  ].join('\n');
}

/** Name and type in one line; the description is placed below when it does not fit next to them. */
function listed(rows: readonly (readonly string[])[]): readonly string[] {
  const names = Math.min(Math.max(...rows.map(([name = '']) => name.length)), 34);
  return rows.flatMap(([name = '', type = '', description = '']) => {
    const text = description === '' ? type : `${type}. ${description}`;
    const [first = '', ...rest] = wrap(text, WIDTH - names - 4);
    const indent = ' '.repeat(names + 4);
    return name.length > names
      ? [`  ${name}`, ...[first, ...rest].map((line) => indent + line)]
      : [`  ${name.padEnd(names)}  ${first}`, ...rest.map((line) => indent + line)];
  });
}

/** @param plugins - The plugins from the flags. */
export async function explainPrimitive(
  context: Context,
  name: string,
  plugins: readonly string[] | undefined,
): Promise<number> {
  const handler = await findForm(context, name, plugins ?? context.config.plugins);
  const found = argumentsOf(handler);
  context.answer({ primitive: name, description: handler.description, arguments: found }, () =>
    describe(name, handler, found),
  );
  return EXIT.success;
}
