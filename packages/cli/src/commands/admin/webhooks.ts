/** `boxcar webhooks ls|show|retry`. */
import { toLine } from '@boxcar/host/base';
import { settingSchemas } from '@boxcar/host/config';
import { DELIVERY_STATUSES, type DeliveryStatus, KernelError, type WebhookDelivery } from '@boxcar/kernel';
import { checkWebhookOptions, listWebhookPage, retryWebhook } from '@boxcar/runtime';
import { findDelivery, findDeliveryId, findHandoffId, findProjectByRef } from '@boxcar/store';
import { type Command, Option } from 'commander';
import { EXIT, flag, helpOf, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { inFlags } from '../../input/flag-errors.js';
import { readId } from '../../input/id-argument.js';
import { usage } from '../../input/usage.js';
import { openReader, type Reader } from '../../reader.js';
import { shortIds } from '../../text/short-ids.js';
import { countOf, formatFields, formatShortDuration, formatTable } from '../../text/text.js';

interface ListFlags {
  readonly status?: DeliveryStatus;
  readonly handoff?: string;
  readonly limit?: number;
  readonly cursor?: string;
  readonly project?: string;
}

const FLAGS = { 'options.limit': '--limit', 'options.cursor': '--cursor' };

const since = (at: Date): string => formatShortDuration(Math.max(Date.now() - at.getTime(), 0));

/** The time of the next attempt, or the time of the end. */
function timeOf({ next_at, ended_at, created_at }: WebhookDelivery): string {
  if (next_at === null) return `${since(ended_at ?? created_at)} ago`;
  const leftMs = next_at.getTime() - Date.now();
  return leftMs > 0 ? `in ${formatShortDuration(leftMs)}` : 'due';
}

/** The result of the last attempt. */
const lastOf = ({ last_status, last_error }: WebhookDelivery): string =>
  toLine(last_error ?? (last_status === null ? '' : `HTTP ${last_status}`));

const answerOf = ({ attempts, last_status }: WebhookDelivery): string =>
  last_status !== null ? `HTTP ${last_status}` : attempts === 0 ? '' : 'no answer';

/** `boxcar webhooks ls`. */
async function listWebhooks(context: Context, { handoff, project, ...rest }: ListFlags): Promise<number> {
  await inFlags(FLAGS, async () => checkWebhookOptions(rest)).catch((error: unknown) => {
    throw usage(error as KernelError);
  });
  await using reader = await openReader(context.config, context.log('warn'));
  const ref = project ?? context.config.project;
  const { id: projectId } = await findProjectByRef(reader.pool, ref);
  const of = handoff === undefined ? undefined : await findHandoffId(reader.pool, handoff, ref);
  const page = await listWebhookPage(reader, projectId, { ...rest, handoff_id: of?.handoffId });
  const short = shortIds(page.webhooks.map(({ delivery_id }) => delivery_id));
  context.answer(page, () =>
    page.webhooks.length === 0
      ? 'no webhooks'
      : formatTable(
          [
            { title: 'delivery' },
            { title: 'status' },
            { title: 'tries', align: 'right' },
            { title: 'time', align: 'right' },
            { title: 'event' },
            { title: 'last' },
            { title: 'url' },
          ],
          page.webhooks.map((delivery) => [
            short.get(delivery.delivery_id) ?? delivery.delivery_id,
            delivery.status,
            String(delivery.attempts),
            timeOf(delivery),
            delivery.event_type,
            answerOf(delivery),
            toLine(delivery.url),
          ]),
        ),
  );
  if (page.next_cursor !== null)
    context.note(`${countOf(page.webhooks.length, 'webhook')} shown; the next: --cursor ${page.next_cursor}`);
  return EXIT.success;
}

const linesOf = (delivery: WebhookDelivery): string =>
  formatFields([
    ['delivery', delivery.delivery_id],
    ['status', delivery.status],
    ['event', delivery.event_type],
    ['handoff', delivery.handoff_id],
    ...(delivery.push_config === null ? [] : ([['push config', toLine(delivery.push_config)]] as const)),
    ['url', toLine(delivery.url)],
    ['attempts', String(delivery.attempts)],
    [delivery.next_at === null ? 'ended' : 'next', timeOf(delivery)],
    ...(lastOf(delivery) === '' ? [] : ([['last', lastOf(delivery)]] as const)),
  ]);

/** Runs work on one delivery of a project. */
async function withDelivery(
  context: Context,
  { ref, project }: { readonly ref: string; readonly project: string | undefined },
  work: (reader: Reader, found: Awaited<ReturnType<typeof findDeliveryId>>) => Promise<WebhookDelivery>,
): Promise<number> {
  await using reader = await openReader(context.config, context.log('warn'));
  const found = await findDeliveryId(reader.pool, ref, project ?? context.config.project);
  const delivery = await work(reader, found);
  context.answer({ webhook: delivery }, () => linesOf(delivery));
  return EXIT.success;
}

const DELIVERY = 'id of a delivery, or at least the first 8 digits of it';

export function addWebhooks(program: Command, run: Run): void {
  const webhooks = program
    .command('webhooks')
    .addHelpText(
      'after',
      helpOf({ examples: ['boxcar webhooks ls --status failed', 'boxcar webhooks retry 5b1c0a7e'] }),
    );
  webhooks
    .command('ls')
    .description('Lists callbacks (ends and questions of handoffs), newest first.')
    .addOption(new Option('--status <status>', 'only these').choices(DELIVERY_STATUSES))
    .option('--handoff <handoff>', 'only of this handoff', readId)
    .option('--limit <n>', 'rows at most (default: 50)', flag(settingSchemas.pageSize))
    .option('--cursor <cursor>', 'next_cursor of the page before')
    .option('--project <name>', 'project, by id or name')
    .addHelpText(
      'after',
      helpOf({
        remarks: 'Addresses are shown without their query.',
        examples: [
          'boxcar webhooks ls',
          "boxcar webhooks ls --status failed --json | jq '.webhooks[].last_error'",
        ],
      }),
    )
    .action((flags: ListFlags) => run((context) => listWebhooks(context, flags)));
  webhooks
    .command('show')
    .description('Shows a delivery: content, address, and the result of the last attempt.')
    .argument('<delivery>', DELIVERY, readId)
    .option('--project <name>', 'project, by id or name')
    .addHelpText('after', helpOf({ examples: ['boxcar webhooks show 5b1c0a7e'] }))
    .action((ref: string, { project }: { project?: string }) =>
      run((context) =>
        withDelivery(context, { ref, project }, async ({ pool }, found) => {
          const delivery = await findDelivery(pool, found);
          if (delivery !== undefined) return delivery;
          throw new KernelError('not_found', { message: `No delivery '${ref}'.` });
        }),
      ),
    );
  webhooks
    .command('retry')
    .description('Sends a delivery now, and retries for a day if that fails.')
    .argument('<delivery>', DELIVERY, readId)
    .option('--project <name>', 'project, by id or name')
    .addHelpText(
      'after',
      helpOf({
        remarks: 'A worker sends it within about a second. A delivery that has arrived is not sent again.',
        examples: ['boxcar webhooks retry 5b1c0a7e'],
      }),
    )
    .action((ref: string, { project }: { project?: string }) =>
      run((context) =>
        withDelivery(context, { ref, project }, (reader, { deliveryId, projectId }) =>
          retryWebhook(reader, deliveryId, projectId),
        ),
      ),
    );
}
