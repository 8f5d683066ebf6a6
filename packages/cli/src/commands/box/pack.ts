import { resolve } from 'node:path';
import { toLine, toPlain } from '@boxcar/host/base';
import { settingSchemas } from '@boxcar/host/config';
import { openStack } from '@boxcar/host/open';
import {
  assertHandover,
  errorText,
  type HandoverInput,
  instructionHandover,
  isJsonObject,
  KernelError,
} from '@boxcar/kernel';
import { countTokens, tokenizerOf } from '@boxcar/llm';
import {
  loadPlugins,
  type PackPreview,
  type PackRequest,
  type PreviewCard,
  type PreviewSum,
} from '@boxcar/runtime';
import type { Command } from 'commander';
import { parse } from 'yaml';
import { collect, EXIT, flag, helpOf, notBlank, type Run, same } from '../../command.js';
import type { Context } from '../../context.js';
import { type FlagNames, inFlags } from '../../input/flag-errors.js';
import { readInput } from '../../input/read-input.js';
import { wrongUsage } from '../../input/usage.js';
import { countOf, formatCount, formatFields, formatTable } from '../../text/text.js';
import { readArguments } from '../turn/submit.js';

interface PackFlags {
  readonly handover?: string;
  readonly profile?: string;
  readonly arg?: readonly string[];
  readonly jsonArgs?: string;
  readonly file?: string;
  readonly box?: readonly string[];
  readonly budget?: number;
  readonly strategy?: string;
  readonly project?: string;
  readonly sourceAgent?: string;
  readonly author: string;
  readonly plugin?: readonly string[];
  readonly dryRun?: boolean;
  readonly messages?: boolean;
}

const wrong = (field: string, message: string, cause?: unknown): KernelError =>
  new KernelError('bad_request', {
    message: `${message}.`,
    details: { field },
    cause,
  });

const wrongFlag = (field: string, message: string): KernelError => wrongUsage(message, field);

const wordsOf = (error: unknown): string => toLine(errorText(error));

async function readHandover(name: string): Promise<HandoverInput> {
  let value: unknown;
  try {
    value = parse((await readInput(name)).toString('utf8'));
  } catch (error) {
    throw wrong('handover', `--handover ${name}: ${wordsOf(error)}`, error);
  }
  if (!isJsonObject(value)) throw wrong('handover', `--handover ${name}: must be an object, as YAML or JSON`);
  assertHandover(value);
  return value;
}

/** The arguments that the fixed recipe packs; any other argument is a mistake. */
const RECIPE_ARGUMENTS: ReadonlySet<string> = new Set(['instruction', 'result_fields']);

type Spec = Pick<PackRequest, 'arguments' | 'handover'>;

/** Builds the fixed recipe: `--profile`, `--arg instruction=…`, `--box`. */
function recipe(flags: PackFlags, args: Record<string, unknown>): Spec {
  if (flags.profile === undefined)
    throw wrongFlag('profile', 'give a handover by --handover, or a profile by --profile');
  const unknown = Object.keys(args).find((key) => !RECIPE_ARGUMENTS.has(key));
  if (unknown !== undefined)
    throw wrongFlag(
      `arguments.${unknown}`,
      `--arg ${toLine(unknown)}: without --handover only instruction and result_fields are packed`,
    );
  const boxes = flags.box === undefined ? {} : { input_box_ids: flags.box };
  return { arguments: { ...args, ...boxes }, handover: instructionHandover(flags.profile) };
}

async function readSpec(flags: PackFlags): Promise<Spec> {
  if (flags.handover === '-' && flags.file === '-')
    throw wrongFlag('file', '--handover and --file cannot both be stdin');
  const args = await readArguments(flags, undefined);
  let spec: Spec;
  if (flags.handover === undefined) spec = recipe(flags, args);
  else {
    if (flags.box !== undefined)
      throw wrongFlag(
        'box',
        '--box: with --handover boxes are named by the arguments its include_boxes_from_args lists',
      );
    spec = {
      arguments: flags.profile === undefined ? args : { ...args, profile_name: flags.profile },
      handover: await readHandover(flags.handover),
    };
  }
  if (flags.budget === undefined && flags.strategy === undefined) return spec;
  const config = spec.handover.context_packing_config ?? {};
  return {
    ...spec,
    handover: {
      ...spec.handover,
      context_packing_config: {
        ...config,
        ...(flags.budget === undefined ? {} : { budget_tokens: flags.budget }),
        ...(flags.strategy === undefined ? {} : { budget_strategy: flags.strategy }),
      },
    },
  };
}

const RULES: Readonly<Record<string, string>> = { pack_arguments: 'argument' };
/** With more cards than this, similar neighbors share a line. */
const LISTED = 40;
const MAX_LINES = 200;

interface Group {
  readonly first: PreviewCard;
  last: PreviewCard;
  count: number;
  tokens: number | null;
  estimated: number;
  isMixed: boolean;
}

function groupsOf(cards: readonly PreviewCard[]): readonly Group[] {
  const groups: Group[] = [];
  for (const card of cards) {
    const open = groups.at(-1);
    const isAlike =
      open !== undefined &&
      card.source !== null &&
      (['rule', 'argument', 'source', 'reason'] as const).every((key) => open.first[key] === card[key]);
    if (cards.length <= LISTED || !isAlike) {
      groups.push({
        first: card,
        last: card,
        count: 1,
        tokens: card.tokens,
        estimated: card.estimated_tokens,
        isMixed: false,
      });
      continue;
    }
    open.last = card;
    open.count++;
    open.tokens = open.tokens === null || card.tokens === null ? null : open.tokens + card.tokens;
    open.estimated += card.estimated_tokens;
    open.isMixed ||= card.type !== open.first.type;
  }
  return groups;
}

/** Ids of boxes made at the same moment differ only at their end. */
function placeOf({ first, last }: Group): string {
  if (first.source === null) return first.argument ?? '';
  const positions = first === last ? `${first.position}` : `${first.position}–${last.position}`;
  return `…${first.source.slice(-6)}:${positions}`;
}

const orNone = (tokens: number | null): string => (tokens === null ? '' : formatCount(tokens));

function cardTable(cards: readonly PreviewCard[]): string {
  const groups = groupsOf(cards);
  const table = formatTable(
    [
      { title: 'rule', max: 8 },
      { title: 'from', max: 16 },
      { title: 'type', max: 19 },
      { title: 'tokens', align: 'right' },
      { title: 'est.', align: 'right' },
      { title: '' },
    ],
    groups
      .slice(0, MAX_LINES)
      .map((group) => [
        RULES[group.first.rule] ?? group.first.rule,
        placeOf(group),
        group.count === 1
          ? group.first.type
          : group.isMixed
            ? `${formatCount(group.count)} cards`
            : `${formatCount(group.count)} ${group.first.type}`,
        orNone(group.tokens),
        formatCount(group.estimated),
        group.first.is_kept ? 'kept' : `cut ${group.first.reason}`,
      ]),
  );
  const more = groups.length - MAX_LINES;
  return more > 0 ? `${table}\n… ${countOf(more, 'line')} more; --json shows all` : table;
}

const sum = ({ cards, tokens, estimated_tokens, size_bytes }: PreviewSum): string =>
  `${countOf(cards, 'card')}, ${tokens === null ? '' : `${countOf(tokens, 'token')}, `}estimate ${formatCount(estimated_tokens)}, ${countOf(size_bytes, 'byte')}`;

function totals({ profile, budget, kept, cut, prompt }: PackPreview): string {
  const { encoding, isExact } = tokenizerOf(profile.model);
  const fields: [string, string][] = [
    ['profile', `${profile.name}@${profile.version}, ${profile.model}`],
    ['kept', sum(kept)],
  ];
  if (cut.cards > 0) fields.push(['cut', sum(cut)]);
  if (budget !== null) {
    const outcome = budget.is_exceeded ? 'exceeded' : 'nothing to cut';
    fields.push([
      'budget',
      `${countOf(budget.budget_tokens, 'token')} by estimate, ${budget.budget_strategy}; all cards are ${formatCount(budget.estimated_tokens)}: ${outcome}`,
    ]);
  }
  fields.push(
    [
      'prompt',
      `${countOf(prompt.messages.length, 'message')}, ${prompt.tokens === null ? '' : `${countOf(prompt.tokens, 'token')}, `}estimate ${formatCount(prompt.estimated_tokens)}, without tools`,
    ],
    ['counted', isExact ? `by ${encoding}, the model's own` : `by ${encoding}, an estimate for this model`],
  );
  return formatFields(fields);
}

function messageText({ message, tokens, card_ids }: PackPreview['prompt']['messages'][number]): string {
  const from =
    card_ids.length === 0
      ? ''
      : `, ${card_ids.length === 1 ? `card ${card_ids[0]}` : countOf(card_ids.length, 'card')}`;
  const calls = message.role === 'assistant' ? (message.toolCalls ?? []) : [];
  return [
    `--- ${message.role}${tokens === null ? '' : `, ${countOf(tokens, 'token')}`}${from}`,
    ...(message.content === '' ? [] : [toPlain(message.content)]),
    ...calls.map((call) => toPlain(`${call.name} ${JSON.stringify(call.arguments)}`)),
  ].join('\n');
}

function describePreview(preview: PackPreview, flags: PackFlags): string {
  const parts = [cardTable(preview.cards), totals(preview)];
  if (preview.notices.length > 0)
    parts.push(preview.notices.map(({ field, message }) => toLine(`notice: ${field} ${message}`)).join('\n'));
  const { unmade } = preview.prompt;
  if (unmade !== undefined) parts.push(toLine(`no first prompt: ${unmade}`));
  if (flags.messages === true) parts.push(preview.prompt.messages.map(messageText).join('\n\n'));
  return parts.join('\n\n');
}

const CONFIG = 'handover.context_packing_config';

/** The flags by the arguments that they became. With `--handover`, boxes come from the caller's own arguments. */
const flagNames = ({ handover, budget, strategy }: PackFlags): FlagNames => ({
  ...(handover === undefined ? { 'arguments.input_box_ids': '--box' } : {}),
  ...(handover === undefined || budget !== undefined
    ? { budget_tokens: '--budget', [`${CONFIG}.budget_tokens`]: '--budget' }
    : {}),
  ...(handover === undefined || strategy !== undefined
    ? { budget_strategy: '--strategy', [`${CONFIG}.budget_strategy`]: '--strategy' }
    : {}),
});

/** `boxcar pack`: packs a context and prints its ids; with `--dry-run` it shows the content and writes nothing. */
async function runPack(context: Context, flags: PackFlags): Promise<number> {
  if (flags.messages === true && flags.dryRun !== true)
    throw wrongFlag('messages', '--messages: is for --dry-run only');
  const spec = await readSpec(flags);
  const { config } = context;
  await using stack = await openStack(config, { log: context.log('warn') });
  await loadPlugins(
    stack.runtime,
    (flags.plugin ?? config.plugins).map((path) => resolve(path)),
  );
  const request: PackRequest = {
    ...spec,
    projectId: flags.project ?? config.project,
    sourceAgentId: flags.sourceAgent ?? 'operator',
    toolSuffix: flags.author,
  };
  if (flags.dryRun === true) {
    const preview = await inFlags(flagNames(flags), () => stack.runtime.preview(request, { countTokens }));
    const { encoding, isExact } = tokenizerOf(preview.profile.model);
    context.answer({ ...preview, tokenizer: { encoding, is_exact: isExact } }, () =>
      describePreview(preview, flags),
    );
    return EXIT.success;
  }
  const packed = await inFlags(flagNames(flags), () => stack.runtime.packer.packContext(request));
  const answer = {
    context_box_id: packed.contextBoxId,
    target_profile_box_id: packed.targetProfileBoxId,
    attached_card_ids: packed.attachedCardIds,
  };
  context.answer(answer, () =>
    formatFields([
      ['context_box_id', answer.context_box_id],
      ['target_profile_box_id', answer.target_profile_box_id],
      ['cards', formatCount(answer.attached_card_ids.length)],
    ])
      .concat('\n\n', answer.attached_card_ids.join('\n'))
      .trimEnd(),
  );
  return EXIT.success;
}

export function addPack(program: Command, run: Run): void {
  program
    .command('pack')
    .option('--dry-run', 'write nothing: list the cards, what each costs, and what a budget cuts')
    .option('--messages', 'with --dry-run: print the first prompt too')
    .option('--profile <name>', 'the profile of the child')
    .option('--handover <file>', 'packing rules as YAML or JSON; - is stdin')
    .option('--arg <key=value>', 'one argument, repeatable: key=text or key:=json', collect(same))
    .option('--json-args <json>', 'all arguments as one JSON object')
    .option('--file <file>', 'the arguments from a file; - is stdin')
    .option('--box <id>', 'a box to inherit, repeatable (without --handover)', collect(notBlank))
    .option('--budget <tokens>', 'the most tokens, by estimate', flag(settingSchemas.tokens))
    .option('--strategy <name>', 'over budget: error, newest, deliverables_only, summary')
    .option('--project <name>', 'project, by id or name')
    .option('--source-agent <agent>', "in whose name, by id or name (the project's operator)")
    .option('--author <name>', 'author of the packed cards', 'boxcar.pack')
    .option('--plugin <file>', 'a module that registers strategies, repeatable', collect(notBlank))
    .addHelpText(
      'after',
      helpOf({
        examples: [
          "boxcar pack --dry-run --profile reviewer --arg instruction='Review it' \\",
          '      --box <box id> --budget 8000 --strategy newest',
          'boxcar pack --handover rules.yaml --arg ticket:=42 --dry-run --messages',
        ],
      }),
    )
    .action((flags: PackFlags) => run((context) => runPack(context, flags)));
}
