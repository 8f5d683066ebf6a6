/** A handoff for a terminal of 80 columns: the request, its progress, and its log. */
import { toPlain } from '@boxcar/host/base';
import { errorLine } from '@boxcar/host/errors';
import {
  type Handoff,
  type HandoffEvent,
  isJsonObject,
  type JsonObject,
  type JsonValue,
  type WebhookDelivery,
} from '@boxcar/kernel';
import { formatTrace, type ShownRule } from './policy-text.js';
import { countOf, formatCount, formatDuration, formatFields, formatTable } from './text.js';

const INDENT = 2;
const SHOWN_CHARACTERS = 4_000;

const section = (title: string, body: string): string => `\n${title}\n${body}`;

function valueText(value: JsonValue): string {
  const text = toPlain(typeof value === 'string' ? value : JSON.stringify(value, null, 2));
  const characters = [...text];
  const more = characters.length - SHOWN_CHARACTERS;
  return more <= 0
    ? text
    : `${characters.slice(0, SHOWN_CHARACTERS).join('')}\n… ${formatCount(more)} more characters; --json shows all`;
}

function describeTimes({ created_at, ended_at }: Handoff): string {
  const taken = formatDuration(Math.max((ended_at ?? new Date()).getTime() - created_at.getTime(), 0));
  return `${created_at.toISOString()}, ${ended_at === null ? `${taken} ago` : `took ${taken}`}`;
}

/** The stored decision: level, rule, version. */
const decisionText = ({ level, rule_id, policy_version }: JsonObject): string =>
  `${level} by ${rule_id}, version ${String(policy_version).slice(0, 12)}`;

function head(handoff: Handoff): string {
  const fields: [string, string][] = [
    ['handoff', handoff.handoff_id],
    ['status', handoff.status],
    ['phase', handoff.phase],
    ['from', handoff.source_agent],
    ['to', `${handoff.target_agent} on ${handoff.platform}`],
    ['requested', describeTimes(handoff)],
    ['attempts', String(handoff.attempts)],
  ];
  const addGiven = (name: string, value: string | null): void => {
    if (value !== null) fields.push([name, value]);
  };
  addGiven('error', handoff.error === null ? null : errorLine(handoff.error));
  addGiven('policy', handoff.decision === null ? null : decisionText(handoff.decision));
  addGiven('ticket', handoff.ticket_id);
  addGiven('turn', handoff.turn_id);
  addGiven('run', handoff.run_id ?? handoff.calling_run_id);
  addGiven('target run', handoff.target_run_id);
  addGiven('joined to', handoff.joined_to);
  addGiven('hop', handoff.hop === null ? null : String(handoff.hop));
  addGiven('undoes', handoff.compensates);
  if (handoff.parent_handoff_id !== null) {
    fields.push(['part of', `${handoff.parent_handoff_id}, depth ${handoff.depth}`]);
    fields.push(['root', handoff.root_handoff_id]);
  }
  return formatFields(fields);
}

const traceOf = (decision: JsonObject | null): readonly ShownRule[] => {
  const trace = decision?.trace;
  return Array.isArray(trace) ? (trace as unknown as readonly ShownRule[]) : [];
};

/** The cards that did not reach the platform. */
function lossSection({ loss }: Handoff): string | undefined {
  if (loss === null) return undefined;
  const sent = Array.isArray(loss.sent_cards) ? loss.sent_cards.length : 0;
  const lost = Array.isArray(loss.lost) ? loss.lost.filter(isJsonObject) : [];
  const title = `loss report: ${countOf(sent, 'card')} sent, ${formatCount(lost.length)} lost`;
  if (lost.length === 0) return `\n${title}`;
  return section(
    title,
    formatTable(
      [{ title: 'card' }, { title: 'what' }, { title: 'why' }],
      lost.map(({ card_id, what, why }) => [`…${String(card_id).slice(-12)}`, String(what), String(why)]),
      { indent: INDENT },
    ),
  );
}

/** Members that are already shown in the head or in the preceding columns. */
const SAID = new Set([
  ...['event_type', 'handoff_id', 'seq', 'created_at', 'completed_at', 'duration_ms'],
  ...['source_agent', 'target_agent', 'platform'],
]);

const eventData = (event: HandoffEvent): string =>
  Object.entries(event)
    .filter(([name]) => !SAID.has(name))
    .map(([name, value]) => `${name} ${typeof value === 'string' ? value : JSON.stringify(value)}`)
    .join(', ');

/** Each event with its number and the time since the request. */
function logLines({ created_at }: Handoff, events: readonly HandoffEvent[]): string {
  const rows = events.map((event) => {
    const afterMs = Date.parse(event.created_at) - created_at.getTime();
    return { event, no: String(event.seq), after: `+${formatDuration(Math.max(afterMs, 0))}` };
  });
  const widthOf = (texts: readonly string[]): number => Math.max(...texts.map((text) => text.length));
  const [noWidth, afterWidth] = [widthOf(rows.map(({ no }) => no)), widthOf(rows.map(({ after }) => after))];
  return formatFields(
    rows.map(({ event, no, after }) => [
      `${' '.repeat(INDENT)}${no.padStart(noWidth)}  ${after.padStart(afterWidth)}  ${event.event_type}`,
      eventData(event),
    ]),
  );
}

/** The receivers of its outcome, and the state of each delivery. */
const sentTo = (webhooks: readonly WebhookDelivery[]): string =>
  formatTable(
    [{ title: 'delivery' }, { title: 'status' }, { title: 'attempts', align: 'right' }, { title: 'url' }],
    webhooks.map(({ delivery_id, status, attempts, url }) => [delivery_id, status, String(attempts), url]),
    { indent: INDENT },
  );

export function describeHandoff(
  handoff: Handoff,
  {
    events,
    webhooks,
  }: { readonly events: readonly HandoffEvent[]; readonly webhooks: readonly WebhookDelivery[] },
): string {
  const parts = [head(handoff), section('task', valueText(handoff.task))];
  if (Object.keys(handoff.context).length > 0) parts.push(section('context', valueText(handoff.context)));
  if (handoff.payload !== null) parts.push(section('payload', valueText(handoff.payload)));
  const trace = traceOf(handoff.decision);
  if (trace.length > 0) parts.push(section('rules of the policy', formatTrace(trace, INDENT)));
  const loss = lossSection(handoff);
  if (loss !== undefined) parts.push(loss);
  if (handoff.status === 'completed') parts.push(section('result', valueText(handoff.result)));
  if (webhooks.length > 0) parts.push(section('callback', sentTo(webhooks)));
  parts.push(section('log', logLines(handoff, events)));
  return parts.join('\n');
}
