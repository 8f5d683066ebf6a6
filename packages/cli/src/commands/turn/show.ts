import { toPlain } from '@boxcar/host/base';
import { errorLine } from '@boxcar/host/errors';
import { isJsonObject, type JsonValue } from '@boxcar/kernel';
import {
  type CallLine,
  type EvidenceLine,
  inspectTurn,
  type StepLine,
  type TurnLine,
  type TurnReport,
} from '@boxcar/store/report';
import type { Command } from 'commander';
import { helpOf, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { readId } from '../../input/id-argument.js';
import { openReader } from '../../reader.js';
import { describeCost, formatBudgets } from '../../text/budget-text.js';
import { countOf, formatCount, formatDuration, formatFields, formatTable } from '../../text/text.js';
import { describeWait } from '../../text/tree-text.js';

const INDENT = 2;
const SHOWN_CARDS = 20;
const SHOWN_CHILDREN = 20;
const SHOWN_DELIVERABLE = 4_000;

const section = (title: string, body: string): string => `\n${title}\n${body}`;
const rest = (shown: number, all: number): string =>
  all > shown ? `\n${' '.repeat(INDENT)}… ${formatCount(all - shown)} more` : '';

function describeTimes(report: TurnReport): string {
  const { created_at, ended_at, deadline_at } = report;
  const taken = formatDuration((ended_at ?? new Date()).getTime() - created_at.getTime());
  const parts = [created_at.toISOString(), ended_at === null ? `${taken} ago` : `took ${taken}`];
  if (ended_at === null && deadline_at !== null) parts.push(`deadline ${deadline_at.toISOString()}`);
  return parts.join(', ');
}

function head(report: TurnReport): string {
  const { run } = report;
  const fields: [string, string][] = [
    ['turn', report.turn_id],
    ['status', report.status],
    ['agent', `${report.agent.name} (${report.agent.agent_id})`],
    ['profile', `${report.profile.name}@${report.profile.version}`],
    ['asked by', `${report.primitive}, channel ${report.channel_id}, depth ${report.depth}`],
    ['created', describeTimes(report)],
    ['steps', `${report.step_count} of ${report.max_steps}, epoch ${report.epoch}`],
    ['run', run.run_id],
    [
      '',
      `${countOf(run.turns, 'turn')} (${formatCount(run.open_turns)} open), ${countOf(run.steps, 'step')}, tokens ${formatCount(run.usage.input_tokens)} in, ${formatCount(run.usage.output_tokens)} out`,
    ],
  ];
  const { spent, subtree } = report;
  fields.splice(7, 0, [
    'used',
    `tokens ${formatCount(spent.input_tokens)} in, ${formatCount(spent.output_tokens)} out, ${describeCost(spent)}`,
  ]);
  if (subtree.turns > 1)
    fields.splice(8, 0, [
      'with all below',
      `${countOf(subtree.turns, 'turn')}, tokens ${formatCount(subtree.input_tokens)} in, ${formatCount(subtree.output_tokens)} out, ${describeCost(subtree)}`,
    ]);
  if (report.holder_id !== null) fields.splice(2, 0, ['held by', report.holder_id]);
  if (report.pending_calls > 0) fields.splice(2, 0, ['waits for', countOf(report.pending_calls, 'call')]);
  if (report.wait !== null) {
    const { due_at, detail } = report.wait;
    const until = due_at === null ? '' : `, until ${due_at}`;
    fields.splice(2, 0, ['waits for', `${describeWait(report.wait)}${until}`]);
    if (typeof detail.message === 'string') fields.splice(3, 0, ['', detail.message]);
  }
  if (report.error !== null) fields.splice(2, 0, ['error', errorLine(report.error)]);
  return formatFields(fields);
}

const TURN_COLUMNS = [
  { title: 'turn' },
  { title: 'status' },
  { title: 'profile', max: 16 },
  { title: 'asked by' },
] as const;
const turnRow = (line: TurnLine): string[] => [line.turn_id, line.status, line.profile, line.primitive];

const lineage = (report: TurnReport): string =>
  formatTable(TURN_COLUMNS, report.lineage.map(turnRow), { indent: INDENT });

function stepRow(step: StepLine): string[] {
  const outcome =
    step.error !== null
      ? errorLine(step.error)
      : (step.finish_reason ?? (step.committed_at === null ? 'not committed' : ''));
  return [
    String(step.step),
    String(step.attempt),
    step.model ?? '',
    step.usage === null ? '' : formatCount(step.usage.input_tokens),
    step.usage === null ? '' : formatCount(step.usage.output_tokens),
    step.model_ms === null ? '' : formatCount(step.model_ms),
    step.prompt_hash?.slice(0, 12) ?? '',
    outcome,
  ];
}

const steps = (report: TurnReport): string =>
  formatTable(
    [
      { title: 'step', align: 'right' },
      { title: 'try', align: 'right' },
      { title: 'model', max: 16 },
      { title: 'in', align: 'right' },
      { title: 'out', align: 'right' },
      { title: 'ms', align: 'right' },
      { title: 'prompt' },
      { title: 'outcome' },
    ],
    report.steps.map(stepRow),
    { indent: INDENT },
  );

const callRow = (call: CallLine): string[] => [
  `${call.step}.${call.ordinal}`,
  // For a call of an external worker: also the target whose queue has it.
  call.target === null ? call.name : `${call.name} (${call.target})`,
  call.status,
  call.duration_ms === null ? '' : formatCount(call.duration_ms),
  call.error === null ? call.arguments_preview : errorLine(call.error),
];

const calls = (report: TurnReport): string =>
  formatTable(
    [
      { title: 'call', align: 'right' },
      { title: 'name', max: 24 },
      { title: 'status' },
      { title: 'ms', align: 'right' },
      { title: 'arguments, or error' },
    ],
    report.calls.map(callRow),
    { indent: INDENT },
  );

const tryOf = ({ step, attempt }: EvidenceLine): string =>
  attempt === null ? String(step) : `${step}.${attempt}`;

const evidenceRow = (line: EvidenceLine): string[] => [
  tryOf(line),
  line.kind,
  String(line.epoch),
  line.holder_id === null ? 'outside' : `…${line.holder_id.slice(-12)}`,
  line.usage === null ? '' : formatCount(line.usage.input_tokens),
  line.usage === null ? '' : formatCount(line.usage.output_tokens),
  line.preview,
];

const evidence = (report: TurnReport): string =>
  formatTable(
    [
      { title: 'step' },
      { title: 'kind' },
      { title: 'epoch', align: 'right' },
      { title: 'by' },
      { title: 'in', align: 'right' },
      { title: 'out', align: 'right' },
      { title: 'content' },
    ],
    report.evidence.map(evidenceRow),
    { indent: INDENT },
  );

function manifest({ context }: TurnReport): string {
  const rows = context.segments.map((segment) => [
    segment.rule,
    segment.argument ?? '',
    formatCount(segment.count),
    formatCount(segment.tokens),
    segment.source === undefined
      ? 'own cards'
      : `${segment.source} ${segment.to < segment.from ? 'nothing' : `${segment.from}–${segment.to}`}`,
  ]);
  return formatTable(
    [
      { title: 'rule' },
      { title: 'argument', max: 16 },
      { title: 'cards', align: 'right' },
      { title: 'tokens', align: 'right' },
      { title: 'source' },
    ],
    rows,
    { indent: INDENT },
  );
}

const SHOWN_RANGES = 3;

/** The cards that a token budget left out, if any. */
function cuts({ context }: TurnReport): string {
  const rows = context.segments.flatMap(({ cut, source }) =>
    (cut?.parts ?? []).map((part) => [
      `${cut?.strategy}, ${formatCount(cut?.budget ?? 0)}`,
      part.reason,
      formatCount(part.count),
      formatCount(part.tokens),
      `${part.ranges
        .slice(0, SHOWN_RANGES)
        .map(([from, to]) => (from === to ? `${from}` : `${from}–${to}`))
        .join(', ')}${part.ranges.length > SHOWN_RANGES ? ', …' : ''} of …${source?.slice(-6) ?? ''}`,
    ]),
  );
  const columns = [
    { title: 'cut to budget' },
    { title: 'reason', max: 16 },
    { title: 'cards', align: 'right' },
    { title: 'tokens', align: 'right' },
    { title: 'positions' },
  ] as const;
  return rows.length === 0 ? '' : `\n\n${formatTable(columns, rows, { indent: INDENT })}`;
}

function cards({ context }: TurnReport): string {
  const shown = context.cards.slice(0, SHOWN_CARDS);
  return (
    formatTable(
      [
        { title: 'card' },
        { title: 'type', max: 20 },
        { title: 'role' },
        { title: 'tokens', align: 'right' },
        { title: 'content' },
      ],
      // Ids of cards made at the same moment differ only at their end.
      shown.map((card) => [
        `…${card.card_id.slice(-12)}`,
        card.type,
        card.role ?? 'user',
        formatCount(card.tokens),
        card.preview,
      ]),
      { indent: INDENT },
    ) + rest(shown.length, context.card_count)
  );
}

function children(report: TurnReport): string {
  const shown = report.children.slice(0, SHOWN_CHILDREN);
  return (
    formatTable(TURN_COLUMNS, shown.map(turnRow), { indent: INDENT }) + rest(shown.length, report.child_count)
  );
}

function deliverable(content: JsonValue): string {
  const inner = isJsonObject(content) ? (content.text ?? content.data ?? content) : content;
  const text = toPlain(typeof inner === 'string' ? inner : JSON.stringify(inner, null, 2));
  const characters = [...text];
  const more = characters.length - SHOWN_DELIVERABLE;
  return more <= 0
    ? text
    : `${characters.slice(0, SHOWN_DELIVERABLE).join('')}\n… ${formatCount(more)} more characters; --json shows all`;
}

/** A report as text for a terminal of 80 columns; the deliverable keeps its own lines. */
function describeTurn(report: TurnReport): string {
  const parts = [head(report)];
  if (report.lineage.length > 1) parts.push(section('lineage', lineage(report)));
  if (report.budgets.length > 0) parts.push(section('budget', formatBudgets(report.budgets)));
  if (report.steps.length > 0) parts.push(section('steps', steps(report)));
  if (report.calls.length > 0) parts.push(section('calls', calls(report)));
  if (report.evidence.length > 0)
    parts.push(
      section('came too late, kept and not applied', evidence(report)),
      section(
        'to erase it: boxcar erase --evidence',
        formatTable(
          [{ title: 'step' }, { title: 'id' }],
          report.evidence.map((line) => [tryOf(line), line.evidence_id]),
          { indent: INDENT },
        ),
      ),
    );
  const { context } = report;
  parts.push(
    section(
      `context ${context.box_id}: ${countOf(context.card_count, 'card')}, ${countOf(context.tokens, 'token')}`,
      `${manifest(report)}${cuts(report)}\n\n${cards(report)}`,
    ),
  );
  if (report.child_count > 0)
    parts.push(section(countOf(report.child_count, 'child turn'), children(report)));
  if (report.deliverable !== null)
    parts.push(section('deliverable', deliverable(report.deliverable.content)));
  return parts.join('\n');
}

/** `boxcar show`: the outcome of a turn. */
async function showTurn(
  context: Context,
  turn: string,
  flags: { readonly project?: string },
): Promise<number> {
  await using reader = await openReader(context.config, context.log('warn'));
  const project = flags.project ?? context.config.project;
  const report = await reader.report((pool) => inspectTurn(pool, turn, { project }));
  context.answer(report, () => describeTurn(report));
  return 0;
}

export function addShow(program: Command, run: Run): void {
  program
    .command('show')
    .argument('<turn>', 'its id, or at least the first 8 digits', readId)
    .option('--project <name>', 'project, by id or name')
    .addHelpText(
      'after',
      helpOf({ examples: ['boxcar show 0198c1f2', 'boxcar show 0198c1f2 --json | jq .deliverable'] }),
    )
    .action((turn: string, flags: { project?: string }) => run((context) => showTurn(context, turn, flags)));
}
