/** `boxcar handoffs ls|show|compensate|messages|reply`. */
import { settingSchemas } from '@boxcar/host/config';
import { openStack } from '@boxcar/host/open';
import { HANDOFF_STATUSES, type HandoffStatus, KernelError } from '@boxcar/kernel';
import {
  checkHandoffOptions,
  HandoffTool,
  handoffsOfRoot,
  type ListHandoffsOptions,
  listHandoffPage,
  listWebhookPage,
  messagesOf,
  replyTo,
} from '@boxcar/runtime';
import { findHandoff, findHandoffId, findProjectByRef, loadHandoffEvents } from '@boxcar/store';
import { type Command, Option } from 'commander';
import { EXIT, flag, helpOf, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { inFlags } from '../../input/flag-errors.js';
import { readId } from '../../input/id-argument.js';
import { usage } from '../../input/usage.js';
import { openReader } from '../../reader.js';
import { describeChain } from '../../text/chain-text.js';
import { describeHandoff } from '../../text/handoff-text.js';
import { describeMessages } from '../../text/message-text.js';
import { shortIds } from '../../text/short-ids.js';
import { countOf, formatShortDuration, formatTable } from '../../text/text.js';
import { warnWithoutWorker } from '../turn/submit.js';

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

const FLAGS = { 'options.limit': '--limit', 'options.cursor': '--cursor' };

/** @throws KernelError of the command line for a value that the list does not accept. */
async function optionsOf(flags: ListFlags): Promise<ListHandoffsOptions> {
  const { source, target, project: _project, ...rest } = flags;
  const options = { ...rest, source_agent: source, target_agent: target };
  await inFlags(FLAGS, async () => checkHandoffOptions(options)).catch((error: unknown) => {
    throw usage(error as KernelError);
  });
  return options;
}

/** `boxcar handoffs ls`. */
async function listHandoffs(context: Context, flags: ListFlags): Promise<number> {
  const options = await optionsOf(flags);
  await using reader = await openReader(context.config, context.log('warn'));
  const { id: projectId } = await findProjectByRef(reader.pool, flags.project ?? context.config.project);
  const page = await listHandoffPage(reader, projectId, options);
  const short = shortIds(page.handoffs.map(({ handoff_id }) => handoff_id));
  context.answer(page, () =>
    page.handoffs.length === 0
      ? 'no handoffs'
      : formatTable(
          [
            { title: 'handoff' },
            { title: 'status' },
            { title: 'age', align: 'right' },
            { title: 'platform', max: 12 },
            { title: 'from', max: 18 },
            { title: 'to' },
          ],
          page.handoffs.map((handoff) => [
            short.get(handoff.handoff_id) ?? handoff.handoff_id,
            handoff.phase === 'awaiting_approval' ? 'pending (approval)' : handoff.status,
            formatShortDuration(Math.max(Date.now() - handoff.created_at.getTime(), 0)),
            handoff.platform,
            handoff.source_agent,
            handoff.target_agent,
          ]),
        ),
  );
  if (page.next_cursor !== null)
    context.note(`${countOf(page.handoffs.length, 'handoff')} shown; the next: --cursor ${page.next_cursor}`);
  return EXIT.success;
}

/** `boxcar handoffs show`. */
async function showHandoff(
  context: Context,
  ref: string,
  { project, chain: isChain = false }: { readonly project?: string; readonly chain?: boolean },
): Promise<number> {
  await using reader = await openReader(context.config, context.log('warn'));
  const { pool } = reader;
  const found = await findHandoffId(pool, ref, project ?? context.config.project);
  const handoff = await findHandoff(pool, found);
  if (handoff === undefined) throw new KernelError('not_found', { message: `No handoff '${ref}'.` });
  if (isChain) {
    const chain = await handoffsOfRoot(reader, found.handoffId, found.projectId);
    context.answer({ chain }, () => describeChain(chain));
    return EXIT.success;
  }
  const events = await loadHandoffEvents(pool, found.handoffId);
  const { webhooks } = await listWebhookPage(reader, found.projectId, { handoff_id: found.handoffId });
  context.answer({ handoff, events, webhooks }, () => describeHandoff(handoff, { events, webhooks }));
  return EXIT.success;
}

/** `boxcar handoffs compensate`. */
async function compensate(
  context: Context,
  ref: string,
  { project }: { readonly project?: string },
): Promise<number> {
  await using stack = await openStack(context.config, { log: context.log('warn') });
  const { runtime } = stack;
  const { handoffId, projectId } = await findHandoffId(runtime.pool, ref, project ?? context.config.project);
  await warnWithoutWorker(context, runtime);
  const tool = new HandoffTool({ runtime, projectId, concurrency: 0 });
  const handoff = await tool.retryCompensation(handoffId, { signal: context.stop });
  const chain = await tool.getChain(handoffId);
  context.answer({ handoff, chain }, () => describeChain(chain));
  return EXIT.success;
}

/** `boxcar handoffs messages`. */
async function showMessages(
  context: Context,
  ref: string,
  { project }: { readonly project?: string },
): Promise<number> {
  await using reader = await openReader(context.config, context.log('warn'));
  const { handoffId, projectId } = await findHandoffId(reader.pool, ref, project ?? context.config.project);
  const messages = await messagesOf(reader, handoffId, projectId);
  context.answer({ messages }, () => describeMessages(messages));
  return EXIT.success;
}

/** `boxcar handoffs reply`. */
async function reply(
  context: Context,
  ref: string,
  text: string,
  { project, question }: { readonly project?: string; readonly question?: number },
): Promise<number> {
  await using stack = await openStack(context.config, { log: context.log('warn'), policy: false });
  const { runtime } = stack;
  const { handoffId, projectId } = await findHandoffId(runtime.pool, ref, project ?? context.config.project);
  const messages = await replyTo(runtime, handoffId, { projectId, text, question });
  context.answer({ messages }, () => describeMessages(messages));
  return EXIT.success;
}

const HANDOFF = 'its id, or at least the first 8 digits';

export function addHandoffs(program: Command, run: Run): void {
  const handoffs = program.command('handoffs').addHelpText(
    'after',
    helpOf({
      examples: ['boxcar handoffs ls --status failed', 'boxcar handoffs show 0198c1f2'],
    }),
  );
  handoffs
    .command('ls')
    .description('Lists handoffs in every state, newest first.')
    .addOption(new Option('--status <status>', 'only these').choices(HANDOFF_STATUSES))
    .option('--source <name>', 'only of the agent that asked')
    .option('--target <name>', 'only to this agent or target')
    .option('--platform <name>', 'only on this platform, by any of its names')
    .option('--run <run>', 'only of this run, named by its caller or by a turn that asks or serves')
    .option('--limit <n>', 'rows at most (default: 50)', flag(settingSchemas.pageSize))
    .option('--cursor <cursor>', 'next_cursor of the page before')
    .option('--project <name>', 'project, by id or name')
    .addHelpText(
      'after',
      helpOf({
        examples: [
          'boxcar handoffs ls',
          'boxcar handoffs ls --platform openai --status failed',
          "boxcar handoffs ls --json | jq '.handoffs[].error'",
        ],
      }),
    )
    .action((flags: ListFlags) => run((context) => listHandoffs(context, flags)));
  handoffs
    .command('show')
    .description('Shows a handoff: request, policy, approval, turn, result and log.')
    .argument('<handoff>', HANDOFF, readId)
    .option('--chain', 'all handoffs with the same first handoff')
    .option('--project <name>', 'project, by id or name')
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'boxcar show prints the turn that serves the handoff; boxcar approvals show prints its ticket.',
        examples: [
          'boxcar handoffs show 0198c1f2',
          'boxcar handoffs show 0198c1f2 --chain',
          'boxcar handoffs show 0198c1f2 --json | jq .events',
        ],
      }),
    )
    .action((ref: string, flags: { project?: string; chain?: boolean }) =>
      run((context) => showHandoff(context, ref, flags)),
    );
  handoffs
    .command('compensate')
    .description('Undoes the effects of a failed or canceled chain.')
    .argument('<handoff>', 'id of the chain, or at least the first 8 digits', readId)
    .option('--project <name>', 'project, by id or name')
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'Runs the compensations of completed hops that are not undone yet, the last hop\nfirst. Workers serve them; the command waits for their ends.',
        examples: ['boxcar handoffs compensate 0198c1f2'],
      }),
    )
    .action((ref: string, flags: { project?: string }) => run((context) => compensate(context, ref, flags)));
  handoffs
    .command('messages')
    .description('Lists the questions of a running handoff, and the replies.')
    .argument('<handoff>', HANDOFF, readId)
    .option('--project <name>', 'project, by id or name')
    .addHelpText('after', helpOf({ examples: ['boxcar handoffs messages 0198c1f2'] }))
    .action((ref: string, flags: { project?: string }) =>
      run((context) => showMessages(context, ref, flags)),
    );
  handoffs
    .command('reply')
    .description('Replies to a question of a handoff, which then continues.')
    .argument('<handoff>', HANDOFF, readId)
    .argument('<text>', 'the reply')
    .option(
      '--question <n>',
      'number of the question (default: the oldest open one)',
      flag(settingSchemas.position),
    )
    .option('--project <name>', 'project, by id or name')
    .addHelpText(
      'after',
      helpOf({
        examples: [
          "boxcar handoffs reply 0198c1f2 'The blue one.'",
          'boxcar handoffs reply 0198c1f2 yes --question 3',
        ],
      }),
    )
    .action((ref: string, text: string, flags: { project?: string; question?: number }) =>
      run((context) => reply(context, ref, text, flags)),
    );
}
