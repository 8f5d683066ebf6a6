/** `boxcar approvals ls|show|approve|deny`. */
import { toLine } from '@boxcar/host/base';
import { settingSchemas } from '@boxcar/host/config';
import { openStack } from '@boxcar/host/open';
import { type ApprovalTicket, TICKET_STATUSES, type TicketStatus } from '@boxcar/kernel';
import { ApprovalGate } from '@boxcar/runtime';
import { findTicketId } from '@boxcar/store';
import { type Command, Option } from 'commander';
import { EXIT, flag, helpOf, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { readId } from '../../input/id-argument.js';
import { shortIds } from '../../text/short-ids.js';
import { countOf, formatShortDuration, formatTable } from '../../text/text.js';

interface ListFlags {
  readonly status?: TicketStatus;
  readonly run?: string;
  readonly agent?: string;
  readonly limit?: number;
  readonly cursor?: string;
  readonly project?: string;
}

/** What is left of its time, or when it was decided. */
function timeOf({ status, expires_at, resolved_at }: ApprovalTicket): string {
  if (status === 'pending')
    return `${formatShortDuration(Math.max(Date.parse(expires_at) - Date.now(), 0))} left`;
  return resolved_at === null
    ? ''
    : `${formatShortDuration(Math.max(Date.now() - Date.parse(resolved_at), 0))} ago`;
}

/** `boxcar approvals ls`. */
async function listApprovals(context: Context, flags: ListFlags): Promise<number> {
  await using stack = await openStack(context.config, { log: context.log('warn'), policy: false });
  const { runtime } = stack;
  const { project_id: projectId } = await runtime.getProject(flags.project ?? context.config.project);
  const { status, run, agent, limit, cursor } = flags;
  const page = await new ApprovalGate({ runtime, projectId }).list({
    status,
    run_id: run,
    agent,
    limit,
    cursor,
  });
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

interface DecideFlags {
  readonly reason?: string;
  readonly project?: string;
}

/** Opens the gate of a ticket's project. */
async function withTicket(
  context: Context,
  of: { readonly ref: string; readonly project: string | undefined; readonly policy: false | 'decides' },
  work: (gate: ApprovalGate, ticketId: string) => Promise<ApprovalTicket>,
): Promise<number> {
  const { ref, project, policy } = of;
  await using stack = await openStack(context.config, { log: context.log('warn'), policy });
  const { runtime } = stack;
  const { ticketId, projectId } = await findTicketId(runtime.pool, ref, project ?? context.config.project);
  const ticket = await work(new ApprovalGate({ runtime, projectId }), ticketId);
  context.answer({ approval: ticket }, () => linesOf(ticket));
  return EXIT.success;
}

const TICKET = 'id of a ticket, or at least the first 8 digits of it';

export function addApprovals(program: Command, run: Run): void {
  const approvals = program.command('approvals').addHelpText(
    'after',
    helpOf({
      examples: [
        'boxcar approvals ls --status pending',
        "boxcar approvals deny 0198c1f2 --reason 'too much'",
      ],
    }),
  );
  approvals
    .command('ls')
    .description('Calls that wait for an approval, or had it, newest first.')
    .addOption(new Option('--status <status>', 'only these').choices(TICKET_STATUSES))
    .option('--run <run>', 'only of this run, as its caller named it')
    .option('--agent <name>', 'only of the agent with this name')
    .option('--limit <n>', 'rows at most (default: 50)', flag(settingSchemas.pageSize))
    .option('--cursor <cursor>', 'next_cursor of the page before')
    .option('--project <name>', 'project, by id or name')
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
    .description('One request: who asks for what, and who decided.')
    .argument('<ticket>', TICKET, readId)
    .option('--project <name>', 'project, by id or name')
    .addHelpText('after', helpOf({ examples: ['boxcar approvals show 0198c1f2'] }))
    .action((ref: string, { project }: DecideFlags) =>
      run((context) => withTicket(context, { ref, project, policy: false }, (gate, id) => gate.get(id))),
    );
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
      .option('--reason <text>', 'why; kept with the ticket')
      .option('--project <name>', 'project, by id or name')
      .addHelpText(
        'after',
        helpOf({ remarks: 'A ticket is decided once. After its time it is expired.', examples: [example] }),
      )
      .action((ref: string, { reason, project }: DecideFlags) =>
        run((context) =>
          withTicket(context, { ref, project, policy: 'decides' }, (gate, id) => gate[verb](id, { reason })),
        ),
      );
}
