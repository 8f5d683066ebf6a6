import { cut, toLine, toPlain } from '@boxcar/host/base';
import type { ProviderDataFacts, WireNote } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import {
  type CardOrigin,
  type ExplainedMessage,
  type ExplainedOmission,
  explainStep,
  type StepExplanation,
} from '@boxcar/runtime';
import { type Command, InvalidArgumentError } from 'commander';
import { collect, helpOf, notBlank, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { readId } from '../../input/id-argument.js';
import { openReader } from '../../reader.js';
import { describeOffer, describeOmission, describePlace } from '../../text/origin-text.js';
import { countOf, formatCount, formatFields, formatTable, wrap } from '../../text/text.js';
import { withPlugins } from './with-plugins.js';

const SHOWN_LINES = 6;
const SHOWN_OMISSIONS = 20;
const WIDTH = 80;
const INDENT = '    ';

/** @throws InvalidArgumentError when the text is not a number of at least 1. */
export function readStep(text: string): number {
  const step = Number(text);
  if (!Number.isSafeInteger(step) || step < 1) throw new InvalidArgumentError('It must be a number from 1.');
  return step;
}

const section = (title: string, body: string): string => `\n${title}\n${body}`;

function head(explained: StepExplanation): string {
  const { agent, profile, findings } = explained;
  const state =
    explained.committed_at === null ? 'not committed' : `committed ${explained.committed_at.toISOString()}`;
  const hash = explained.prompt_hash?.slice(0, 12) ?? 'no hash';
  return formatFields([
    ['turn', `${explained.turn_id} (${explained.turn_status})`],
    ['agent', `${agent.name} (${agent.agent_id})`],
    ['profile', `${profile.name}@${profile.version}`],
    [
      'step',
      `${explained.step}, attempt ${explained.attempt}, ${explained.model ?? 'model not recorded'}, ${state}`,
    ],
    [
      'prompt',
      `${countOf(explained.messages.length, 'message')}, about ${countOf(explained.tokens, 'token')}, ${hash}`,
    ],
    ['verified', explained.verified ? 'yes: the rows give the sent prompt, byte by byte' : 'no'],
    ...findings.map((finding): [string, string] => ['', `${finding.code}: ${finding.message}`]),
  ]);
}

/** The lines of a message, shortened unless all are requested. */
function body(text: string, isFull: boolean): readonly string[] {
  const lines = toPlain(text).split('\n');
  if (isFull) return lines.map((line) => INDENT + line);
  const shown = lines.slice(0, SHOWN_LINES).map((line) => INDENT + cut(line, WIDTH - INDENT.length));
  const more = lines.length - shown.length;
  return more <= 0 ? shown : [...shown, `${INDENT}… ${countOf(more, 'more line')}; --full shows all`];
}

const reasonOf = (card: CardOrigin): string => {
  const inherited = card.place.kind === 'context' && card.place.path.length > 0;
  const by = card.author.name ?? card.author.id;
  return `${describePlace(card)}; ${card.type}${inherited || card.place.kind === 'profile' ? '' : ` by ${by}`}`;
};

function message(of: ExplainedMessage, isFull: boolean): string {
  const facts = [of.role, `${formatCount(of.tokens)} tokens`];
  if (of.name !== undefined) facts.push(`result of ${of.name}${of.is_error === true ? ', an error' : ''}`);
  const made = of.source === 'selector' ? ['made by the selector of the turn'] : of.cards.map(reasonOf);
  const reasons = of.notice === null ? made : [`notice: ${of.notice}`];
  const calls = (of.tool_calls ?? []).flatMap((call) =>
    body(`→ ${call.name} ${JSON.stringify(call.arguments)}`, isFull),
  );
  return [
    `${of.index}  ${facts.join(', ')}`,
    ...reasons.flatMap((reason) =>
      wrap(reason, WIDTH - 5).map((line, index) => (index === 0 ? `   ${line}` : `     ${line}`)),
    ),
    ...(of.content === '' ? [] : body(of.content, isFull)),
    ...calls,
    ...(of.provider_data === undefined ? [] : [attached(of.provider_data)]),
  ].join('\n');
}

const attached = ({ model, kinds, size_bytes: bytes, hash }: ProviderDataFacts): string =>
  `${INDENT}+ for ${model}: ${kinds.join(', ')} (${countOf(bytes, 'byte')}, ${hash.slice(0, 12)})`;

function tools(explained: StepExplanation): string {
  if (explained.tools === null) return '  not known';
  const { missing_tools: missing } = explained;
  const note =
    missing.length === 0
      ? []
      : [`  not offered, because the worker had no such tool: ${missing.map(toLine).join(', ')}`];
  if (explained.tools.length === 0) return ['  none', ...note].join('\n');
  const table = formatTable(
    [
      { title: 'tool', max: 24 },
      { title: 'from' },
      { title: 'tokens', align: 'right' },
      { title: 'because' },
    ],
    explained.tools.map((tool) => [
      tool.name,
      tool.source,
      formatCount(tool.tokens),
      describeOffer(tool.offered_by),
    ]),
    { indent: 2 },
  );
  return [table, ...note].join('\n');
}

function omissions(omitted: readonly ExplainedOmission[]): string {
  const shown = omitted.slice(0, SHOWN_OMISSIONS);
  const table = formatTable(
    [{ title: 'why' }, { title: 'card' }, { title: 'type', max: 20 }, { title: 'where' }],
    shown.map(({ reason, cut: byBudget, card }) => [
      describeOmission({ reason, cut: byBudget }),
      `…${card.card_id.slice(-12)}`,
      card.type,
      describePlace(card),
    ]),
    { indent: 2 },
  );
  const more = omitted.length - shown.length;
  return more > 0 ? `${table}\n  … ${formatCount(more)} more; --json lists all` : table;
}

function describeStep(explained: StepExplanation, isFull: boolean): string {
  const parts = [
    head(explained),
    section('messages', explained.messages.map((each) => message(each, isFull)).join('\n')),
    section('tools', tools(explained)),
  ];
  if (explained.omissions.length > 0) parts.push(section('left out', omissions(explained.omissions)));
  const { wire } = explained;
  if (lacksModel(explained)) parts.push(section('on the wire', entry(UNKNOWN_WIRE)));
  else if (wire !== null && wire.length > 0)
    parts.push(section('on the wire', wire.map(wireNote).join('\n')));
  return parts.join('\n');
}

const UNKNOWN_WIRE =
  'not known: no adapter for this model here; --plugin <file> names a module that registers it';

const lacksSelector = ({ findings }: StepExplanation): boolean =>
  findings.some(({ code }) => code === 'selector_unknown' || code === 'selector_failed');

/** Whether the rows have the prompt, but the adapter that would change it is not registered here. */
const lacksModel = (explained: StepExplanation): boolean =>
  explained.wire === null && explained.tools !== null && !lacksSelector(explained);

function entry(text: string): string {
  const lines = wrap(text, WIDTH - 4);
  return lines.map((line, index) => (index === 0 ? `  ${line}` : `    ${line}`)).join('\n');
}

function wireNote({ kind, message, messages = [] }: WireNote): string {
  const at =
    messages.length === 0 ? '' : ` (${messages.length === 1 ? 'message' : 'messages'} ${listOf(messages)})`;
  return entry(`${kind}: ${toLine(message)}${at}`);
}

/** Numbers in order, with consecutive numbers as ranges. */
function listOf(numbers: readonly number[]): string {
  const runs: [number, number][] = [];
  for (const number of numbers) {
    const last = runs.at(-1);
    if (last !== undefined && last[1] + 1 === number) last[1] = number;
    else runs.push([number, number]);
  }
  return runs.map(([from, to]) => (from === to ? `${from}` : `${from}–${to}`)).join(', ');
}

interface Flags {
  readonly project?: string;
  readonly step?: number;
  readonly attempt?: number;
  readonly full?: boolean;
  readonly plugin?: readonly string[];
}

/** `boxcar explain`: the prompt of a step, and the reason for each part. */
async function explain(context: Context, turn: string, flags: Flags): Promise<number> {
  await using reader = await openReader(context.config, context.log('warn'));
  // No provider is called; the adapters only report their changes to a prompt.
  const router = createModelRouter({ providers: context.config.models });
  const explained = await withPlugins(
    context,
    (has) =>
      reader.report((pool) =>
        explainStep(pool, turn, {
          project: flags.project ?? context.config.project,
          step: flags.step,
          attempt: flags.attempt,
          selectors: has?.selectors,
          model: has?.model ?? router,
        }),
      ),
    {
      plugins: flags.plugin,
      needs: (answer) =>
        answer.findings.some(({ code }) => code === 'selector_unknown') || lacksModel(answer),
    },
  );
  context.answer(explained, () => describeStep(explained, flags.full === true));
  return 0;
}

export function addExplain(program: Command, run: Run): void {
  program
    .command('explain')
    .argument('<turn>', 'its id, or at least the first 8 digits', readId)
    .option('--step <n>', 'number of the step (default: the last committed one)', readStep)
    .option('--attempt <n>', 'attempt of the step (default: the committed one)', readStep)
    .option('--full', 'whole messages, unchanged')
    .option('--project <name>', 'project, by id or name')
    .option(
      '--plugin <file>',
      'a module with the selector or model of the turn, repeatable',
      collect(notBlank),
    )
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'Verified means that the prompt, built again from the rows, has the same hash as the prompt that was sent.',
        examples: [
          'boxcar explain 0198c1f2',
          'boxcar explain 0198c1f2 --step 1 --full',
          "boxcar explain 0198c1f2 --json | jq '.messages[].cards[].place'",
        ],
      }),
    )
    .action((turn: string, flags: Flags) => run((context) => explain(context, turn, flags)));
}
