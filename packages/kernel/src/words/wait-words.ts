/**
 * A chain of waits in sentences. The rules (`diagnose`) give kinds and figures; only this file has the words for them.
 */
import type {
  BatchCause,
  NamedTurn,
  NamedWorker,
  WaitAdvice,
  WaitCause,
  WaitFacts,
  WaitLink,
  WaitReport,
} from '../diagnose/index.js';
import { explainWait } from '../diagnose/index.js';

/** A link with its cause and its advice as sentences. */
export type DescribedLink = Omit<WaitLink, 'what' | 'next'> & {
  readonly what: string;
  readonly next: string | null;
};
export type DescribedWait = Omit<WaitReport, 'links'> & { readonly links: readonly DescribedLink[] };

const poolOf = (target: string): string => (target === '' ? 'the default pool' : `pool '${target}'`);
const workerCommand = (target: string): string =>
  `boxcar worker${target === '' ? '' : ` --target ${target}`}`;
const turnWords = ({ turn_id, agent }: NamedTurn): string =>
  agent === null ? turn_id : `${turn_id} (${agent})`;
const workerWords = ({ worker_id, hostname, pid }: NamedWorker): string =>
  `${worker_id}${hostname === null ? '' : ` (${hostname}, process ${pid ?? '?'})`}`;

const ROOM: Readonly<Record<string, string>> = {
  rate: 'its calls per minute are used up',
  concurrency: 'all its places are taken',
  order: 'others wait for it since longer',
  failing: 'it has failed too often',
};

function batchWords(batch: BatchCause): string {
  const { batch_id, total, remaining, min_success, shown } = batch;
  const lead = `call ${batch.tool} waits for batch ${batch_id}`;
  if (batch.state === 'ended') return `${lead}, which has ended as ${batch.status}`;
  const enough = min_success === null ? '' : `, ${batch.succeeded} of ${min_success} successes`;
  const text = `${lead}: ${total - remaining} of ${total} done${enough}`;
  if (batch.state === 'overdue') return `${text}; its deadline is over`;
  if (batch.state === 'running')
    return remaining > shown ? `${text}; ${shown} of ${remaining} open ones are shown` : text;
  return remaining === 0
    ? `${text}; its answer is not made yet`
    : `${text}; it is being ended (${batch.closing ?? 'early'})`;
}

function providerWords(cause: Extract<WaitCause, { kind: 'provider' }>): string {
  if (cause.provider === null) return 'waits for room at a provider';
  const { provider, max_concurrent, requests_per_minute, reason, waiting } = cause;
  const limits = [
    ...(max_concurrent === null ? [] : [`${max_concurrent} at once`]),
    ...(requests_per_minute === null ? [] : [`${requests_per_minute} a minute`]),
  ].join(', ');
  return `waits for room at provider ${provider}${limits === '' ? '' : ` (${limits})`}: ${ROOM[reason] ?? 'there is none'}; ${waiting} turns wait for it`;
}

function selectorWords({ selector, version, workers }: Extract<WaitCause, { kind: 'selector' }>): string {
  const which = `selector '${selector}'${version === null ? '' : ` version '${version}'`}`;
  const has = workers.map(workerWords);
  return `waits for a worker with ${which}; ${has.length === 0 ? 'no living worker of its pool has it' : `of the living workers of its pool ${has.join(', ')} ${has.length === 1 ? 'has' : 'have'} it`}`;
}

function answererOf({ target, is_held }: Extract<WaitCause, { kind: 'tool' }>): string {
  if (target !== null) return `a worker of the queue boxcar-tools-${target}`;
  return is_held ? 'the worker that has the turn' : 'a caller outside';
}

function causeWords(cause: WaitCause): string {
  switch (cause.kind) {
    case 'ended':
      return `has ended as ${cause.status}`;
    case 'given_up':
      return `${cause.tool === null ? '' : `call ${cause.tool}: `}the sweep has given it up: ${cause.error}`;
    case 'lease':
      return cause.is_alive
        ? `is held by worker ${workerWords(cause)}`
        : `was held by worker ${workerWords(cause)}, whose lease is over`;
    case 'format':
      return `was written by a newer build: it needs a worker that knows migration ${cause.format}, and the living workers of ${poolOf(cause.worker_target)} know at most ${cause.newest_build}`;
    case 'ring':
      return cause.live_workers === 0
        ? `is dispatched, and no living worker serves ${poolOf(cause.worker_target)}`
        : `is dispatched to ${poolOf(cause.worker_target)}: ${cause.live_workers} alive, ${cause.dispatched} dispatched in a window of ${cause.window}`;
    case 'window':
      return cause.live_workers === 0
        ? `is queued, and no living worker serves ${poolOf(cause.worker_target)}`
        : `is queued for ${poolOf(cause.worker_target)}, ${cause.ahead} of its project before it; ${cause.dispatched} dispatched in a window of ${cause.window}`;
    case 'project_limit':
      return `is queued: project ${cause.project} has ${cause.active} turns under way of ${cause.max_concurrent} that it may have`;
    case 'agent_busy':
      return `waits in the queue of its agent, after turn ${turnWords(cause.on)}`;
    case 'warm_cache':
      return `waits until the first model call of its sibling ${turnWords(cause.on)} has filled the prompt cache (warm_cache), for 10 s at most`;
    case 'child':
      return `call ${cause.tool} waits for turn ${turnWords(cause.on)}`;
    case 'tool':
      return `call ${cause.tool} is to be answered by ${answererOf(cause)}`;
    case 'batch':
      return batchWords(cause);
    case 'retry':
      return `waits to ask its model again (retry ${cause.retry}): ${[cause.code, cause.message].filter(Boolean).join(': ')}`;
    case 'provider':
      return providerWords(cause);
    case 'breaker':
      return `waits for provider ${cause.provider}, which failed ${cause.failures} times in a row; ${cause.waiting} turns wait for it`;
    case 'budget':
      return `is paused: budget ${cause.budget_id} allows ${cause.limit_value} ${cause.limit}, and ${cause.needed} more are needed`;
    case 'approval':
      return `waits for the approval of ${cause.tool} (ticket ${cause.ticket_id}); a person with approvals:write decides`;
    case 'selector':
      return selectorWords(cause);
    case 'cycle':
      return `${causeWords(cause.of)}, which waits for this one: a circle`;
    case 'unread':
      return cause.has_more ? 'was not read: there are too many turns below' : 'is not there';
    case 'nothing':
      return 'is suspended, no call of it is out, and nothing else it waits for';
    default:
      return cause satisfies never;
  }
}

const SWEEPS: Readonly<Record<Extract<WaitAdvice, { kind: 'sweep' }>['does'], string>> = {
  take_over: 'A sweep takes it over within seconds.',
  take_in: 'There is room: a sweep takes it in within seconds.',
  end_batch: 'A sweep does it within seconds.',
  wake: 'A sweep wakes it within seconds.',
  break_cycle: 'A sweep gives up the youngest wait of the circle within seconds (delegation_cycle).',
};

const FLAGS: Readonly<Record<string, string>> = {
  tokens: '--tokens',
  cost_usd: '--cost-usd',
  turns: '--turns',
  steps: '--steps',
  depth: '--depth',
  fan_out: '--fan-out',
};

function adviceWords(advice: WaitAdvice): string {
  switch (advice.kind) {
    case 'start_worker':
      return `Start a worker: ${workerCommand(advice.worker_target)}`;
    case 'start_newer_worker':
      return `Start a worker of the newer build: ${workerCommand(advice.worker_target)}`;
    case 'more_workers':
      return `More workers take it in sooner: ${workerCommand(advice.worker_target)}`;
    case 'sweep':
      return SWEEPS[advice.does];
    case 'retry_dead':
      return 'See the error, mend its cause, then: boxcar doctor --retry-dead';
    case 'tried_again':
      return 'It is tried again by itself. What went wrong: boxcar show <turn>; its state: boxcar providers ls';
    case 'decide':
      return `Decide: boxcar approvals show ${advice.ticket_id}, then approve or deny`;
    case 'report_defect':
      return `A defect${advice.is_perhaps_by_hand ? ', or rows changed by hand' : ''}: report it with the output of: boxcar doctor`;
    case 'watch_queue':
      return `See that a worker takes jobs of boxcar-tools-${advice.target}: boxcar doctor`;
    case 'more_room':
      return `More room: boxcar providers set ${advice.provider} …`;
    case 'raise_concurrency':
      return `More at once: boxcar projects set ${advice.project} --max-concurrent <n>`;
    case 'raise_budget':
      return `boxcar budget raise ${advice.budget_id} ${FLAGS[advice.limit] ?? '--tokens'} <n>`;
    case 'selector_worker':
      return advice.is_there
        ? 'Such a worker takes it as soon as it has a free slot.'
        : `Start a worker that registers it (runtime.registerSelector): boxcar worker --plugin <file>. Without one the turn ends as failed (selector_unknown)${advice.due_at === null ? '' : ` at ${advice.due_at}`}.`;
    case 'ask_again':
      return `boxcar why-stuck ${advice.turn_id}`;
    default:
      return advice satisfies never;
  }
}

const linkInWords = (link: WaitLink): DescribedLink => ({
  ...link,
  what: causeWords(link.what),
  next: link.next === null ? null : adviceWords(link.next),
});

/** `explainWait`, with sentences. Undefined when the turn does not exist. */
export function describeWait(facts: WaitFacts): DescribedWait | undefined {
  const report = explainWait(facts);
  return report === undefined ? undefined : { ...report, links: report.links.map(linkInWords) };
}
