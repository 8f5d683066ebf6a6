/** `boxcar handoffs ls|show`. */
import { settingSchemas } from '@boxcar/host/config';
import { openStack } from '@boxcar/host/open';
import {
  HANDOFF_STATUSES,
  type Handoff,
  type HandoffEvent,
  type HandoffStatus,
  isJsonObject,
  type JsonValue,
} from '@boxcar/kernel';
import { listHandoffPage } from '@boxcar/runtime';
import { findHandoff, findHandoffId, loadHandoffEvents } from '@boxcar/store';
import { type Command, Option } from 'commander';
import { EXIT, flag, helpOf, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { readId } from '../../input/id-argument.js';
import { shortIds } from '../../text/short-ids.js';
import { countOf, formatShortDuration, formatTable } from '../../text/text.js';

interface ListFlags {
  readonly status?: HandoffStatus;
  readonly source?: string;
  readonly target?: string;
  readonly platform?: string;
  readonly run?: string;
  readonly limit?: number;
  readonly cursor?: string;
  readonly project?: string;
}

const ageOf = ({ created_at }: Handoff): string =>
  `${formatShortDuration(Math.max(Date.now() - created_at.getTime(), 0))} ago`;

/** `boxcar handoffs ls`. */
async function listHandoffs(context: Context, flags: ListFlags): Promise<number> {
  await using stack = await openStack(context.config, { log: context.log('warn') });
  const { runtime } = stack;
  const { project_id: projectId } = await runtime.getProject(flags.project ?? context.config.project);
  const { status, source, target, platform, run, limit, cursor } = flags;
  const page = await listHandoffPage(runtime, projectId, {
    status,
    source_agent: source,
    target_agent: target,
    platform,
    run,
    limit,
    cursor,
  });
  const short = shortIds(page.handoffs.map(({ handoff_id }) => handoff_id));
  context.answer(page, () =>
    page.handoffs.length === 0
      ? 'no handoffs'
      : formatTable(
          [
            { title: 'handoff' },
            { title: 'status' },
            { title: 'from', max: 20 },
            { title: 'to', max: 24 },
            { title: 'platform' },
            { title: 'time', align: 'right' },
            { title: 'task' },
          ],
          page.handoffs.map((handoff) => [
            short.get(handoff.handoff_id) ?? handoff.handoff_id,
            handoff.phase === 'awaiting_approval' ? 'pending (approval)' : handoff.status,
            handoff.source_agent,
            handoff.target_agent,
            handoff.platform,
            ageOf(handoff),
            handoff.task,
          ]),
        ),
  );
  if (page.next_cursor !== null)
    context.note(`${countOf(page.handoffs.length, 'handoff')} shown; the next: --cursor ${page.next_cursor}`);
  return EXIT.success;
}

const asText = (value: JsonValue): string =>
  typeof value === 'string' ? value : JSON.stringify(value, null, 2).replaceAll('\n', '\n  ');

/** What the policy said, rule by rule. */
function decisionLines({ decision }: Handoff): readonly string[] {
  if (decision === null) return [];
  const { level, rule_id, policy_version, trace } = decision;
  return [
    `  policy: ${level} by ${rule_id} (version ${String(policy_version).slice(0, 12)})`,
    ...(Array.isArray(trace) ? trace : []).flatMap((rule) =>
      isJsonObject(rule)
        ? [
            `    ${rule.rule_id} ${rule.level}: ${rule.matched === true ? 'matched' : `not, by ${rule.failed_key}`}`,
          ]
        : [],
    ),
  ];
}

function lossLines({ loss }: Handoff): readonly string[] {
  if (loss === null) return [];
  const lost = Array.isArray(loss.lost) ? loss.lost : [];
  const sent = Array.isArray(loss.sent_cards) ? loss.sent_cards.length : 0;
  return [
    `  cards: ${sent} sent, ${lost.length} lost`,
    ...lost.flatMap((card) =>
      isJsonObject(card) ? [`    ${card.card_id} (${card.what}): ${card.why}`] : [],
    ),
  ];
}

const eventLine = ({ event_type, handoff_id: _id, seq, created_at, ...rest }: HandoffEvent): string =>
  `    ${seq}  ${created_at}  ${event_type}  ${Object.entries(rest)
    .map(([name, value]) => `${name}=${typeof value === 'string' ? value : JSON.stringify(value)}`)
    .join(' ')}`;

const linesOf = (handoff: Handoff, events: readonly HandoffEvent[]): string =>
  [
    `${handoff.handoff_id}  ${handoff.status} (${handoff.phase})`,
    `  ${handoff.source_agent} to ${handoff.target_agent} on ${handoff.platform}`,
    `  task: ${handoff.task}`,
    ...(Object.keys(handoff.context).length === 0 ? [] : [`  context: ${asText(handoff.context)}`]),
    ...(handoff.payload === null ? [] : [`  payload: ${asText(handoff.payload)}`]),
    ...decisionLines(handoff),
    ...(handoff.ticket_id === null ? [] : [`  approval: ${handoff.ticket_id}`]),
    ...(handoff.turn_id === null ? [] : [`  turn: ${handoff.turn_id}`]),
    ...(handoff.joined_to === null ? [] : [`  joined to: ${handoff.joined_to}`]),
    ...(handoff.parent_handoff_id === null ? [] : [`  part of: ${handoff.parent_handoff_id}`]),
    ...(handoff.attempts === 0 ? [] : [`  attempts: ${handoff.attempts}`]),
    ...lossLines(handoff),
    ...(handoff.error === null ? [] : [`  error: ${handoff.error.code}: ${handoff.error.message}`]),
    ...(handoff.result === null ? [] : [`  result: ${asText(handoff.result)}`]),
    '  log:',
    ...events.map(eventLine),
  ].join('\n');

/** `boxcar handoffs show`. */
async function showHandoff(
  context: Context,
  { ref, project }: { readonly ref: string; readonly project: string | undefined },
): Promise<number> {
  await using stack = await openStack(context.config, { log: context.log('warn') });
  const { pool } = stack.runtime;
  const found = await findHandoffId(pool, ref, project ?? context.config.project);
  const [handoff, events] = await Promise.all([
    findHandoff(pool, found),
    loadHandoffEvents(pool, found.handoffId),
  ]);
  if (handoff === undefined) throw new Error(`handoff ${found.handoffId} was removed meanwhile`);
  context.answer({ handoff, events }, () => linesOf(handoff, events));
  return EXIT.success;
}

export function addHandoffs(program: Command, run: Run): void {
  const handoffs = program.command('handoffs').addHelpText(
    'after',
    helpOf({
      examples: ['boxcar handoffs ls --status pending', 'boxcar handoffs show 0198c1f2'],
    }),
  );
  handoffs
    .command('ls')
    .description('Tasks that were handed over, newest first.')
    .addOption(new Option('--status <status>', 'only these').choices(HANDOFF_STATUSES))
    .option('--source <agent>', 'only from this agent')
    .option('--target <agent>', 'only to this agent')
    .option('--platform <name>', 'only on this platform, by any of its names')
    .option('--run <run>', "the caller's run, or that of the turn that asked or serves")
    .option('--limit <n>', 'rows at most (default: 50)', flag(settingSchemas.pageSize))
    .option('--cursor <cursor>', 'next_cursor of the page before')
    .option('--project <name>', 'project, by id or name')
    .addHelpText(
      'after',
      helpOf({
        examples: [
          'boxcar handoffs ls --platform openai',
          "boxcar handoffs ls --status failed --json | jq '.handoffs[].error'",
        ],
      }),
    )
    .action((flags: ListFlags) => run((context) => listHandoffs(context, flags)));
  handoffs
    .command('show')
    .description('One handoff: request, policy, attempts, what was lost, and its log.')
    .argument('<handoff>', 'id of a handoff, or at least the first 8 digits of it', readId)
    .option('--project <name>', 'project, by id or name')
    .addHelpText('after', helpOf({ examples: ['boxcar handoffs show 0198c1f2'] }))
    .action((ref: string, { project }: { readonly project?: string }) =>
      run((context) => showHandoff(context, { ref, project })),
    );
}
