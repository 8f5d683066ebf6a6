/** The output of `boxcar box show`: the box, its manifest, its cards or entries, and its readers. */
import { cut, toLine, toPlain } from '@boxcar/host/base';
import { type CardContent, isJsonObject, type Segment } from '@boxcar/kernel';
import type { BoxCard, BoxEntry, BoxGrantLine, BoxReport } from '@boxcar/store/report';
import { countOf, formatCount, formatFields, formatTable } from '../../text/text.js';

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

/** Lines below a segment, for details that do not fit on its own line. */
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

/** The content of an entry in one line. */
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

/** A card with its whole content, or an event with its text. */
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

export function describeBox(report: BoxReport, withContents: boolean): string {
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
