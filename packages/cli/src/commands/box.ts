import { isUtf8 } from 'node:buffer';
import { basename } from 'node:path';
import {
  type CardContent,
  isJsonObject,
  type JsonObject,
  type JsonValue,
  KernelError,
  parseJson,
  type Segment,
} from '@boxcar/kernel';
import { findBoxId } from '@boxcar/store';
import {
  type BoxCard,
  type BoxEntry,
  type BoxGrantLine,
  type BoxReport,
  inspectBox,
} from '@boxcar/store/report';
import type { Command } from 'commander';
import { collect, EXIT, flag, helpOf, type Run, same } from '../command.js';
import { settingSchemas } from '../config.js';
import type { Context } from '../context.js';
import { MAX_DATA_BYTES, readInput } from '../read-input.js';
import { openReader, openStack, type Stack } from '../stack.js';
import { countOf, cut, formatCount, formatFields, formatTable, toLine, toPlain } from '../text.js';
import { wrongUsage } from '../usage.js';

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
  if (code === 'ENOENT') return 'there is no such file';
  return error instanceof Error ? error.message : String(error);
};

async function readAsText(name: string, field: string): Promise<string> {
  const bytes = await readInput(name, MAX_DATA_BYTES).catch((error: unknown) => {
    throw badInput(field, `${name}: ${reasonOf(error)}`, error);
  });
  if (!isUtf8(bytes)) throw badInput(field, `${name}: is no UTF-8 text`);
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
    throw badInput('cards', `${name}: is no JSON (${reasonOf(error)})`, error);
  }
  return Array.isArray(value) ? value : [value];
}

/** The arguments of `create_box`; what they may be is the primitive's to say. */
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

/** A day, or a time with its zone: without one it would mean another moment on each machine. */
function parseUntil(text: string): string {
  const isDay = /^\d{4}-\d\d-\d\d$/.test(text);
  const isMoment = /^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)$/i.test(text);
  const date = new Date(text);
  if ((isDay || isMoment) && !Number.isNaN(date.getTime())) return date.toISOString();
  throw wrongUsage(
    `--until: '${text}' must be a day (2030-12-31) or a time with its zone (2030-12-31T18:00Z)`,
    'until',
  );
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

const INDENT = 2;
const WIDTH = 80;
const SHOWN_CONTENT = 4_000;
const SHOWN_SEGMENTS = 40;
const indented = { indent: INDENT } as const;
const shortId = (id: string): string => `…${id.slice(-12)}`;
const authorOf = (card: BoxCard): string => card.author ?? card.author_id;

function head(report: BoxReport): string {
  const agent = (who: BoxReport['owner']): string =>
    who === null ? 'nobody' : `${who.name ?? 'unknown'} (${who.agent_id})`;
  const isTape = report.kind === 'tape';
  return formatFields([
    ['box', report.box_id],
    ['kind', isTape ? 'tape, grows at its end' : 'context, sealed'],
    ['owner', agent(report.owner)],
    ['made by', agent(report.maker)],
    ['created', report.created_at.toISOString()],
    isTape
      ? ['holds', `${formatCount(report.count)} entries, last anchor at ${report.last_anchor_position ?? 0}`]
      : ['holds', `${countOf(report.count, 'card')}, ${countOf(report.tokens ?? 0, 'token')}`],
  ]);
}

function cardsOf(segment: Segment): string {
  if (segment.to < segment.from) return 'nothing';
  return `${segment.source === undefined ? 'own ' : ''}${segment.from}–${segment.to}`;
}

/** Below the line of a segment: what does not fit beside it. */
function sourceLines({ source, via, cut: left }: Segment): string[] {
  const lines = source === undefined ? [] : [`from ${source}`];
  if (via !== undefined && via !== source) lines.push(`named by ${via}`);
  for (const { count, tokens, reason } of left?.parts ?? [])
    lines.push(`without ${countOf(count, 'card')}, ${countOf(tokens, 'token')}: ${toLine(reason)}`);
  return lines.map((line) => cut(`${' '.repeat(INDENT + 5)}${line}`, WIDTH));
}

function manifest(report: BoxReport): string {
  const shown = report.segments.slice(0, SHOWN_SEGMENTS);
  const [titles = '', ...rows] = formatTable(
    [
      { title: 'seg', align: 'right' },
      { title: 'rule' },
      { title: 'argument', max: 24 },
      { title: 'cards', align: 'right' },
      { title: 'tokens', align: 'right' },
      { title: 'positions' },
    ],
    shown.map((segment, index) => [
      String(index + 1),
      segment.rule,
      segment.argument ?? '',
      formatCount(segment.count),
      formatCount(segment.tokens),
      cardsOf(segment),
    ]),
    indented,
  ).split('\n');
  const more = report.segments.length - shown.length;
  return [
    titles,
    ...shown.flatMap((segment, index) => [rows[index] ?? '', ...sourceLines(segment)]),
    ...(more > 0 ? [`  … ${formatCount(more)} more; --json shows all`] : []),
  ].join('\n');
}

/** What stands there, in one line. */
function gistOf(entry: BoxEntry): string {
  if (entry.kind !== 'card' && entry.kind === 'event')
    return isJsonObject(entry.payload) ? String(entry.payload.name) : '';
  if (entry.kind === 'anchor') return `${entry.anchor ?? ''}: ${entry.card?.preview ?? ''}`;
  return entry.card?.preview ?? '';
}

function entryRow(entry: BoxEntry): string[] {
  const { card } = entry;
  return [
    String(entry.position),
    entry.kind === 'card' ? String(entry.segment + 1) : entry.kind,
    card?.type ?? '',
    card === null ? '' : authorOf(card),
    card === null ? '' : formatCount(card.tokens),
    gistOf(entry),
  ];
}

const entryTable = (report: BoxReport): string =>
  formatTable(
    [
      { title: report.kind === 'tape' ? 'pos' : 'card', align: 'right' },
      { title: report.kind === 'tape' ? 'kind' : 'seg', align: report.kind === 'tape' ? 'left' : 'right' },
      { title: 'type', max: 16 },
      { title: 'author', max: 12 },
      { title: 'tokens', align: 'right' },
      { title: 'content' },
    ],
    report.entries.map(entryRow),
    indented,
  );

function textOf(content: CardContent | null | undefined): string {
  if (content === null || content === undefined) return '(erased)';
  if (content.kind === 'text') return content.text;
  const { kind: _kind, ...rest } = content;
  return JSON.stringify(content.kind === 'json' ? content.data : rest, null, 2);
}

/** A card with its whole content, or an event with what it says. */
function describeEntry(entry: BoxEntry, segments: readonly Segment[]): string {
  const { card } = entry;
  const segment = entry.kind === 'card' ? segments[entry.segment] : undefined;
  const place =
    entry.kind === 'card'
      ? `segment ${entry.segment + 1}: ${segment?.rule ?? ''}${segment?.argument === undefined ? '' : ` ${segment.argument}`}, ${shortId(entry.source.box_id)} ${entry.source.position}`
      : [entry.kind, entry.anchor, entry.step === null ? null : `step ${entry.step}`]
          .filter(Boolean)
          .join(', ');
  const title = `${entry.position}  ${toLine(place)}`;
  if (card === null)
    return `${title}\n${toPlain(entry.kind === 'card' ? '' : JSON.stringify(entry.payload))}`;
  const text = toPlain(textOf(card.content));
  const characters = [...text];
  const more = characters.length - SHOWN_CONTENT;
  return [
    title,
    formatFields([
      ['   card', card.card_id],
      ['   type', `${card.type}, role ${card.role ?? 'user'}`],
      ['   author', authorOf(card)],
      ['   size', `${countOf(card.size_bytes, 'byte')}, ${countOf(card.tokens, 'token')}`],
    ]),
    '',
    more <= 0
      ? text
      : `${characters.slice(0, SHOWN_CONTENT).join('')}\n… ${formatCount(more)} more characters; --json shows all`,
  ].join('\n');
}

function grants(report: BoxReport): string {
  const row = (grant: BoxGrantLine): string[] => [
    grant.agent,
    grant.mode + (grant.upto_position === null ? '' : ` to ${grant.upto_position}`),
    grant.expires_at === null
      ? 'always'
      : `${grant.expires_at.toISOString().slice(0, 16)}Z${grant.is_expired ? ' (over)' : ''}`,
    grant.source_agent ?? grant.source,
  ];
  const table = formatTable(
    [{ title: 'agent', max: 24 }, { title: 'may', max: 12 }, { title: 'until' }, { title: 'given by' }],
    report.grants.map(row),
    indented,
  );
  const more = report.grant_count - report.grants.length;
  return more > 0 ? `${table}\n  … ${formatCount(more)} more` : table;
}

function describeBox(report: BoxReport, withContents: boolean): string {
  const parts = [head(report)];
  if (report.segments.length > 0) parts.push(`\nmanifest\n${manifest(report)}`);
  const [first, last] = [report.entries[0], report.entries.at(-1)];
  const noun = report.kind === 'tape' ? 'entries' : 'cards';
  const span =
    first === undefined || last === undefined
      ? `no ${noun}`
      : `${noun} ${formatCount(first.position)}–${formatCount(last.position)} of ${formatCount(report.count)}`;
  if (report.entries.length === 0) parts.push(`\n${span}`);
  else if (withContents)
    parts.push(`\n${span}`, ...report.entries.map((entry) => `\n${describeEntry(entry, report.segments)}`));
  else parts.push(`\n${span}\n${entryTable(report)}`);
  if (report.next !== null)
    parts.push(`  … ${formatCount(report.count - report.next)} more: --after ${report.next}`);
  if (report.grant_count > 0) parts.push(`\n${countOf(report.grant_count, 'grant')}\n${grants(report)}`);
  return parts.join('\n');
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
  const report = await inspectBox(reader.pool, box, {
    project: flags.project ?? context.config.project,
    after: flags.after,
    limit: flags.limit,
    withContents: flags.cards ?? false,
  });
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
    .description('Make a sealed box and print its id.')
    .option('--text <text>', 'a text card, repeatable', collect(same))
    .option('--file <file>', 'a file as a text card, repeatable; - is stdin', collect(same))
    .option(
      '--cards <file>',
      'a JSON file with a card or a list of cards, repeatable; - is stdin',
      collect(same),
    )
    .option('--card <id>', 'a card that exists, repeatable', collect(same))
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
    .description('What stands in a context box or a tape, by which rule and from where, and who may read it.')
    .argument('<box>', 'its id, or at least the first 8 digits of it')
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
    .description('Let an agent read a box, or append to a tape.')
    .argument('<box>', 'its id, or at least the first 8 digits of it')
    .argument('<agent>', 'id or name of the agent')
    .option('--mode <mode>', 'read or append (read)')
    .option('--until <time>', 'when it ends: a day, or a time with its zone (never); the past takes it back')
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
