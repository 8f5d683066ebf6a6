/** `boxcar approvals ls|show|approve|deny`. */
import { toLine } from '@boxcar/host/base';
import { settingSchemas } from '@boxcar/host/config';
import { type ApprovalTicket, TICKET_STATUSES, type TicketStatus } from '@boxcar/kernel';
import { type Command, Option } from 'commander';
import { EXIT, flag, helpOf, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { readId } from '../../input/id-argument.js';
import { shortIds } from '../../text/short-ids.js';
import { countOf, formatShortDuration, formatTable } from '../../text/text.js';
import { openTickets, type TicketsFlags } from './tickets.js';

interface ListFlags extends TicketsFlags {
  readonly status?: TicketStatus;
  readonly run?: string;
  readonly agent?: string;
  readonly limit?: number;
  readonly cursor?: string;
}

/** The remaining time, or the time of the decision. */
function timeOf({ status, expires_at, resolved_at }: ApprovalTicket): string {
  if (status === 'pending')
    return `${formatShortDuration(Math.max(Date.parse(expires_at) - Date.now(), 0))} left`;
  return resolved_at === null
    ? ''
    : `${formatShortDuration(Math.max(Date.now() - Date.parse(resolved_at), 0))} ago`;
}

/** `boxcar approvals ls`. */
async function listApprovals(context: Context, flags: ListFlags): Promise<number> {
  const { status, run, agent, limit, cursor } = flags;
  await using tickets = await openTickets(context, flags, false);
  const page = await tickets.list({ status, run_id: run, agent, limit, cursor });
  const short = shortIds(page.approvals.map(({ ticket_id }) => ticket_id));
  context.answer(page, () =>
    page.approvals.length === 0
      ? 'no approvals'
      : formatTable(
          [
            { title: 'ticket' },
            { title: 'status' },
            { title: 'agent', max: 20 },
            { title: 'tool', max: 24 },
            { title: 'time', align: 'right' },
            { title: 'arguments' },
          ],
          page.approvals.map((ticket) => [
            short.get(ticket.ticket_id) ?? ticket.ticket_id,
            ticket.status,
            ticket.agent_slug,
            ticket.tool_name,
            timeOf(ticket),
            JSON.stringify(ticket.tool_args),
          ]),
        ),
  );
  if (page.next_cursor !== null)
    context.note(
      `${countOf(page.approvals.length, 'approval')} shown; the next: --cursor ${page.next_cursor}`,
    );
  return EXIT.success;
}

const linesOf = (ticket: ApprovalTicket): string =>
  [
    `${ticket.ticket_id}  ${ticket.status}`,
    `  ${ticket.agent_slug} asks to call ${ticket.tool_name} (run ${ticket.run_id})`,
    `  arguments: ${JSON.stringify(ticket.tool_args, null, 2).replaceAll('\n', '\n  ')}`,
    `  card of the arguments: ${ticket.metadata.card_id}`,
    `  requested ${ticket.requested_at}, expires ${ticket.expires_at}`,
    ...(ticket.resolved_at === null
      ? []
      : [
          `  ${ticket.status} by ${toLine(ticket.resolved_by ?? '')} at ${ticket.resolved_at}${ticket.decision_reason === null ? '' : `: ${toLine(ticket.decision_reason)}`}`,
        ]),
  ].join('\n');

interface DecideFlags extends TicketsFlags {
  readonly reason?: string;
}

function answerTicket(context: Context, ticket: ApprovalTicket): number {
  context.answer({ approval: ticket }, () => linesOf(ticket));
  return EXIT.success;
}

/** `boxcar approvals show`. */
async function showApproval(context: Context, ref: string, flags: TicketsFlags): Promise<number> {
  await using tickets = await openTickets(context, flags, false);
  return answerTicket(context, await tickets.get(ref));
}

/** `boxcar approvals approve` and `deny`. */
async function decideApproval(
  context: Context,
  verb: 'approve' | 'deny',
  { ref, ...flags }: DecideFlags & { readonly ref: string },
): Promise<number> {
  await using tickets = await openTickets(context, flags, true);
  return answerTicket(context, await tickets.decide(verb, ref, flags.reason));
}

const URL_FLAG = ['--url <address>', 'a server to ask, in place of the database'] as const;
const TICKET = 'id of a ticket, or at least the first 8 digits of it';

export function addApprovals(program: Command, run: Run): void {
  const approvals = program.command('approvals').addHelpText(
    'after',
    helpOf({
      examples: [
        'boxcar approvals ls --status pending',
        "boxcar approvals deny 0198c1f2 --reason 'too much'",
        'boxcar approvals ls --url http://127.0.0.1:7420',
      ],
    }),
  );
  approvals
    .command('ls')
    .description('Lists requests for approval, open and decided, newest first.')
    .addOption(new Option('--status <status>', 'only these').choices(TICKET_STATUSES))
    .option('--run <run>', 'only of this run, as its caller named it')
    .option('--agent <name>', 'only tapes of the agent with this name')
    .option('--limit <n>', 'rows at most (default: 50)', flag(settingSchemas.pageSize))
    .option('--cursor <cursor>', 'next_cursor of the page before')
    .option('--project <name>', 'project, by id or name')
    .option(...URL_FLAG)
    .addHelpText(
      'after',
      helpOf({
        examples: [
          'boxcar approvals ls',
          "boxcar approvals ls --status pending --json | jq '.approvals[].tool_args'",
        ],
      }),
    )
    .action((flags: ListFlags) => run((context) => listApprovals(context, flags)));
  approvals
    .command('show')
    .description('Shows a request for approval: the caller, the call and the decision.')
    .argument('<ticket>', TICKET, readId)
    .option('--project <name>', 'project, by id or name')
    .option(...URL_FLAG)
    .addHelpText('after', helpOf({ examples: ['boxcar approvals show 0198c1f2'] }))
    .action((ref: string, flags: TicketsFlags) => run((context) => showApproval(context, ref, flags)));
  for (const [verb, description, example] of [
    [
      'approve',
      'Lets a call begin. It begins once, with the arguments that are shown.',
      'boxcar approvals approve 0198c1f2',
    ],
    [
      'deny',
      'Refuses a call: its agent reads why.',
      "boxcar approvals deny 0198c1f2 --reason 'over the limit'",
    ],
  ] as const)
    approvals
      .command(verb)
      .description(description)
      .argument('<ticket>', TICKET, readId)
      .option('--reason <text>', 'the reason; stored with the ticket')
      .option('--project <name>', 'project, by id or name')
      .option(...URL_FLAG)
      .addHelpText(
        'after',
        helpOf({ remarks: 'A ticket can be decided once, before it expires.', examples: [example] }),
      )
      .action((ref: string, flags: DecideFlags) =>
        run((context) => decideApproval(context, verb, { ref, ...flags })),
      );
}
