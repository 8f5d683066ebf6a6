import { isUtf8 } from 'node:buffer';
import { basename } from 'node:path';
import { toLine } from '@boxcar/host/base';
import { settingSchemas } from '@boxcar/host/config';
import { openStack, type Stack } from '@boxcar/host/open';
import {
  errorText,
  isJsonObject,
  type JsonObject,
  type JsonValue,
  KernelError,
  parseJson,
  parseTapeDate,
} from '@boxcar/kernel';
import { findBoxId } from '@boxcar/store';
import { inspectBox } from '@boxcar/store/report';
import type { Command } from 'commander';
import { collect, EXIT, flag, helpOf, notBlank, type Run, same } from '../../command.js';
import type { Context } from '../../context.js';
import { readId } from '../../input/id-argument.js';
import { MAX_DATA_BYTES, readInput } from '../../input/read-input.js';
import { wrongUsage } from '../../input/usage.js';
import { openReader } from '../../reader.js';
import { describeBox } from './box-text.js';

interface SubmissionFlags {
  readonly project?: string;
  readonly sourceAgent?: string;
  readonly key?: string;
}

const badInput = (field: string, message: string, cause?: unknown): KernelError =>
  new KernelError('bad_request', { message: `--${field}: ${message}.`, details: { field }, cause });

const reasonOf = (error: unknown): string => {
  const code = error instanceof Error && 'code' in error ? error.code : undefined;
  if (code === 'EISDIR') return 'is a folder';
  if (code === 'ENOENT') return 'the file does not exist';
  return errorText(error);
};

async function readAsText(name: string, field: string): Promise<string> {
  const bytes = await readInput(name, MAX_DATA_BYTES).catch((error: unknown) => {
    throw badInput(field, `${name}: ${reasonOf(error)}`, error);
  });
  if (!isUtf8(bytes)) throw badInput(field, `${name}: is not UTF-8 text`);
  return bytes.toString('utf8');
}

interface CreateFlags extends SubmissionFlags {
  readonly text?: readonly string[];
  readonly file?: readonly string[];
  readonly cards?: readonly string[];
  readonly card?: readonly string[];
  readonly type: string;
  readonly role?: string;
}

async function readCards(name: string): Promise<readonly JsonValue[]> {
  const text = await readAsText(name, 'cards');
  let value: JsonValue;
  try {
    value = parseJson(text) as JsonValue;
  } catch (error) {
    throw badInput('cards', `${name}: is not valid JSON (${reasonOf(error)})`, error);
  }
  return Array.isArray(value) ? value : [value];
}

/** The arguments of `create_box`; the primitive validates them. */
async function readBoxArguments(flags: CreateFlags): Promise<JsonObject> {
  const textCard = (text: string, metadata?: JsonObject): JsonObject => ({
    type: flags.type,
    ...(flags.role === undefined ? {} : { role: flags.role }),
    content: { kind: 'text', text },
    ...(metadata === undefined ? {} : { metadata }),
  });
  const cards: JsonValue[] = (flags.text ?? []).map((text) => textCard(text));
  for (const name of flags.file ?? [])
    cards.push(textCard(await readAsText(name, 'file'), name === '-' ? undefined : { file: basename(name) }));
  for (const name of flags.cards ?? []) cards.push(...(await readCards(name)));
  return {
    ...(cards.length === 0 ? {} : { cards }),
    ...(flags.card === undefined ? {} : { card_ids: flags.card }),
  };
}

async function submit(
  context: Context,
  primitive: string,
  of: {
    readonly args: JsonObject | ((pool: Stack['runtime']['pool']) => Promise<JsonObject>);
    readonly flags: SubmissionFlags;
  },
): Promise<JsonValue> {
  const { config } = context;
  await using stack = await openStack(config, { log: context.log('warn') });
  const args = typeof of.args === 'function' ? await of.args(stack.runtime.pool) : of.args;
  const accepted = await stack.runtime.accept(primitive, args, {
    projectId: of.flags.project ?? config.project,
    sourceAgentId: of.flags.sourceAgent,
    idempotencyKey: of.flags.key,
  });
  if (accepted.isReplay) context.note('this key was accepted before; nothing was done again');
  return accepted.answer;
}

/** `boxcar box create`. */
async function createBox(context: Context, flags: CreateFlags): Promise<number> {
  const stdins = [...(flags.file ?? []), ...(flags.cards ?? [])].filter((name) => name === '-');
  if (stdins.length > 1) throw wrongUsage('--file: stdin can be read once only', 'file');
  if ([flags.text, flags.file, flags.cards, flags.card].every((given) => given === undefined)) {
    throw wrongUsage('a box needs cards: give --text, --file, --cards or --card', 'cards');
  }
  const answer = await submit(context, 'create_box', { args: await readBoxArguments(flags), flags });
  context.answer(answer, () => String(isJsonObject(answer) ? answer.box_id : ''));
  return EXIT.success;
}

interface GrantFlags extends SubmissionFlags {
  readonly mode?: string;
  readonly until?: string;
}

/** A day, or a time with its zone: without a zone the time would mean another moment on each machine. */
function parseUntil(text: string): string {
  const isDay = /^\d{4}-\d\d-\d\d$/.test(text);
  const isMoment = /^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)$/i.test(text);
  const refuse = (): never => {
    throw wrongUsage(
      `--until: '${text}' must be a day (2030-12-31) or a time with its zone (2030-12-31T18:00Z)`,
      'until',
    );
  };
  if (!isDay && !isMoment) return refuse();
  try {
    return new Date(parseTapeDate(text)).toISOString();
  } catch (error) {
    // A day that the month does not have: Node's own parser would read it as a day of the next month.
    if (error instanceof KernelError) return refuse();
    throw error;
  }
}

/** `boxcar box grant`. */
async function grantBox(
  context: Context,
  box: string,
  of: { readonly agent: string; readonly flags: GrantFlags },
): Promise<number> {
  const { agent, flags } = of;
  const mode = flags.mode ?? 'read';
  const until = flags.until === undefined ? undefined : parseUntil(flags.until);
  const args = async (pool: Stack['runtime']['pool']): Promise<JsonObject> => ({
    box_id: await findBoxId(pool, box, flags.project ?? context.config.project),
    grantee: agent,
    mode,
    ...(until === undefined ? {} : { until }),
  });
  const answer = await submit(context, 'grant_box', { args, flags });
  context.answer(
    answer,
    () => `${toLine(agent)} may ${mode} box ${box}${until === undefined ? '' : ` until ${until}`}.`,
  );
  return EXIT.success;
}

interface ShowFlags {
  readonly project?: string;
  readonly cards?: boolean;
  readonly after?: number;
  readonly limit?: number;
}

/** `boxcar box show`: a context box or a tape, page by page. */
async function showBox(context: Context, box: string, flags: ShowFlags): Promise<number> {
  await using reader = await openReader(context.config, context.log('warn'));
  const report = await reader.report((pool) =>
    inspectBox(pool, box, {
      project: flags.project ?? context.config.project,
      after: flags.after,
      limit: flags.limit,
      withContents: flags.cards ?? false,
    }),
  );
  context.answer(report, () => describeBox(report, flags.cards ?? false));
  return EXIT.success;
}

const PROJECT = ['--project <name>', 'project, by id or name'] as const;
const SOURCE = ['--source-agent <agent>', 'in whose name, by id or name (the operator)'] as const;
const KEY = ['--key <key>', 'idempotency key: the second run changes nothing'] as const;

export function addBox(program: Command, run: Run): void {
  const box = program.command('box').addHelpText(
    'after',
    helpOf({
      examples: [
        'boxcar box create --file notes.md --role user',
        'boxcar box show 0198c1f2-5d1e-7000-8000-9f1b2c3d4e5f --cards',
        'boxcar box grant 0198c1f2-5d1e-7000-8000-9f1b2c3d4e5f reviewer',
      ],
    }),
  );
  box
    .command('create')
    .description('Makes a sealed box and prints its id.')
    .option('--text <text>', 'a text card, repeatable', collect(same))
    .option('--file <file>', 'a file as a text card, repeatable; - is stdin', collect(notBlank))
    .option(
      '--cards <file>',
      'a JSON file with a card or a list of cards, repeatable; - is stdin',
      collect(notBlank),
    )
    .option('--card <id>', 'a card that exists, repeatable', collect(notBlank))
    .option('--type <type>', 'type of the text cards', 'task.context')
    .option('--role <role>', 'role of the text cards: user, system, assistant, tool (user)')
    .option(...SOURCE)
    .option(...PROJECT)
    .option(...KEY)
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'The order in the box: texts, files, JSON cards, existing cards. A JSON card is\n{"type": "task.input", "content": {"kind": "json", "data": {"id": 42}}}.',
        examples: [
          'boxcar box create --text "The build is red since Monday."',
          'boxcar box create --file README.md --file docs/style.md --type task.input',
          'boxcar box create --cards tickets.json --key tickets-42',
        ],
      }),
    )
    .action((flags: CreateFlags) => run((context) => createBox(context, flags)));
  box
    .command('show')
    .description('Shows the cards of a context box or tape, their rules and sources, and its readers.')
    .argument('<box>', 'its id, or at least the first 8 digits', readId)
    .option('--cards', 'with the contents of the cards')
    .option('--after <number>', 'begin after this card or position', flag(settingSchemas.position))
    .option('--limit <number>', 'how many at most, up to 1000 (50)', flag(settingSchemas.pageSize))
    .option(...PROJECT)
    .addHelpText(
      'after',
      helpOf({
        examples: [
          'boxcar box show 0198c1f2-5d1e-7000-8000-9f1b2c3d4e5f',
          'boxcar box show 0198c1f2-5d1e-7000-8000-9f1b2c3d4e5f --cards --limit 5',
          'boxcar box show 0198c1f2-5d1e-7000-8000-9f1b2c3d4e5f --after 50 --json',
        ],
      }),
    )
    .action((ref: string, flags: ShowFlags) => run((context) => showBox(context, ref, flags)));
  box
    .command('grant')
    .description('Lets an agent read a box, or append to a tape.')
    .argument('<box>', 'its id, or at least the first 8 digits', readId)
    .argument('<agent>', 'id or name of the agent')
    .option('--mode <mode>', 'read or append (read)')
    .option('--until <time>', 'when it ends: a day, or a time with its zone (never); a past time revokes it')
    .option(...SOURCE)
    .option(...PROJECT)
    .option(...KEY)
    .addHelpText(
      'after',
      helpOf({
        examples: [
          'boxcar box grant 0198c1f2-5d1e-7000-8000-9f1b2c3d4e5f reviewer-1',
          'boxcar box grant 0198c1f2-5d1e-7000-8000-9f1b2c3d4e5f x --until 2030-12-31',
        ],
      }),
    )
    .action((ref: string, agent: string, flags: GrantFlags) =>
      run((context) => grantBox(context, ref, { agent, flags })),
    );
}
