/**
 * A process that serves handoffs: to OpenAI, and to a courier that must not be called twice. It prints `ready <worker id>`. Each line on
 * stdin is the id of a ticket, which it approves; then it prints `approved <ticket id>`.
 *
 * argv: the JSON of `HandoffProcessOptions`.
 */
import { createInterface } from 'node:readline';
import type { HandoffAdapter } from '@boxcar/adapters';
import { errorText } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { ApprovalGate } from '../approval/index.js';
import { type HandoffSettings, HandoffTool } from '../handoff/index.js';
import { createLog } from '../lib/log.js';
import { openRuntime } from '../open.js';
import { createWorker, type WorkerOptions } from '../worker/worker.js';

export interface HandoffProcessOptions {
  readonly databaseUrl: string;
  readonly redisUrl?: string;
  readonly worker: WorkerOptions;
  /** In the format of `HandoffSettings`. */
  readonly targets: unknown;
  /** In the format of `HandoffSettings`. */
  readonly webhooks?: HandoffSettings['webhooks'];
  /** The address of the courier. */
  readonly courierUrl: string;
}

const options = JSON.parse(process.argv[2] ?? '{}') as HandoffProcessOptions;

const courier: HandoffAdapter = {
  platform: 'courier',
  retry: 'never',
  capabilities: {
    streaming: false,
    cancel: false,
    messages: false,
    max_context_tokens: null,
    carries: ['text', 'json'],
  },
  supportsPlatform: (name) => name.toLowerCase() === 'courier',
  executeHandoff: async ({ task, cards }, { signal }) => {
    const response = await fetch(options.courierUrl, { method: 'POST', body: task, signal });
    return {
      result: await response.text(),
      usage: null,
      remote_id: null,
      loss: { sent_cards: cards.map(({ id }) => id), lost: [] },
    };
  },
};

const { runtime } = openRuntime({
  databaseUrl: options.databaseUrl,
  redisUrl: options.redisUrl,
  model: createModelRouter({}),
  log: createLog('debug'),
  handoffs: { enabled: true, targets: options.targets, webhooks: options.webhooks },
});
new HandoffTool({ runtime, concurrency: 0 }).registerAdapter(courier);
const gate = new ApprovalGate({ runtime });
createInterface({ input: process.stdin }).on('line', (ticketId) => {
  gate.approve(ticketId).then(
    () => console.log(`approved ${ticketId}`),
    (error: unknown) => console.log(`failed ${ticketId} ${errorText(error)}`),
  );
});
const worker = await createWorker(runtime, options.worker);
console.log(`ready ${worker.id}`);
