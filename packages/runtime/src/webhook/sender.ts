/**
 * Sends events to outside receivers. Each process with a worker has one sender.
 *
 * S1  The sender reads the database only when it is woken: by an end in its process or by the probe of a sweep. An idle
 *     sender sends no statements.
 * S2  A claimed event belongs to its sender for a limited time. An event without a recorded outcome is sent again,
 *     under the same id.
 * S3  The number of concurrent attempts per host is limited, so that a slow receiver does not delay the others.
 * S4  An address is checked at each connection: the checked address is the address that is connected to.
 * Rule: docs/reference/handoff.md, "Callbacks".
 */
import type { lookup } from 'node:dns';
import { deliveryPauseMs, errorText, KernelError, startTimer } from '@boxcar/kernel';
import {
  type ClaimedDelivery,
  claimDeliveries,
  type DeliveryOutcome,
  loadPushes,
  type Push,
  type RecordedDelivery,
  recordDeliveries,
} from '@boxcar/store';
import type { RuntimeCore, Webhooks } from '../core/index.js';
import { Batcher, newId } from '../lib/index.js';
import { deliver, type Sending } from './deliver.js';
import {
  ALLOW_VARIABLE,
  type CheckedWebhooks,
  checkWebhooks,
  SECRET_VARIABLE,
  type WebhookSettings,
} from './settings.js';

/** Limits of sending. For tests. */
export interface SendingLimits {
  readonly maxInFlight?: number;
  readonly perHost?: number;
  readonly attemptMs?: number;
  /** Time in addition to `attemptMs`, in which the outcome must be recorded. */
  readonly recordMs?: number;
  /** Replaces Node's own `lookup`. */
  readonly lookUp?: typeof lookup;
}

const MAX_IN_FLIGHT = 20;
const PER_HOST = 4;
const ATTEMPT_MS = 10_000;
const RECORD_MS = 20_000;
/** How long a process that stops waits for attempts in progress. */
const GRACE_MS = 1_000;

export class WebhookSender implements Webhooks {
  readonly #runtime: Pick<RuntimeCore, 'pool' | 'log'>;
  readonly #holderId = newId();
  readonly #records: Batcher<DeliveryOutcome, RecordedDelivery | undefined>;
  /** Number of attempts in progress by host. */
  readonly #busy = new Map<string, number>();
  readonly #running = new Set<Promise<void>>();
  limits: SendingLimits = {};
  #settings: CheckedWebhooks | undefined;
  #sending: Promise<Sending> | undefined;
  #stop = new AbortController();
  #members = 0;
  #claiming: Promise<void> | undefined;
  #isAsked = false;
  /** The last claim left some events unclaimed for lack of room. */
  #hasMore = false;

  constructor(runtime: Pick<RuntimeCore, 'pool' | 'log'>, settings?: WebhookSettings) {
    this.#runtime = runtime;
    this.#records = new Batcher(async (outcomes: readonly DeliveryOutcome[]) => {
      const recorded = new Map((await recordDeliveries(runtime.pool, outcomes)).map((one) => [one.id, one]));
      return outcomes.map(({ id }) => recorded.get(id));
    });
    if (settings !== undefined) this.configure(settings);
  }

  get isConfigured(): boolean {
    return this.#settings !== undefined;
  }

  /** @throws KernelError `bad_config`. */
  configure(settings: WebhookSettings): void {
    this.#settings = checkWebhooks(settings);
    this.#sending = undefined;
  }

  async check(url: string, field: string): Promise<string> {
    const settings = this.#settings;
    if (settings === undefined)
      throw new KernelError('bad_config', {
        message: `${field}: callbacks are signed, and this process has no secret to sign with.`,
        next: `Set ${SECRET_VARIABLE}, here and for the workers.`,
        details: { field, variable: SECRET_VARIABLE },
      });
    const { AddressRules } = await import('@boxcar/adapters/wire');
    const rules = new AddressRules(settings.allowPrivate, ALLOW_VARIABLE);
    try {
      return rules.check(url, field).href;
    } catch (error) {
      if (!(error instanceof KernelError) || error.code !== 'bad_request') throw error;
      throw new KernelError('bad_request', { message: error.problem, next: error.next, details: { field } });
    }
  }

  join(): () => Promise<void> {
    this.#members += 1;
    let hasLeft = false;
    return async () => {
      if (hasLeft) return;
      hasLeft = true;
      this.#members -= 1;
      if (this.#members === 0) await this.#settle();
    };
  }

  wake(): void {
    if (this.#members === 0 || this.#settings === undefined) return;
    this.#isAsked = true;
    this.#claiming ??= this.#claimAll()
      .catch((error: unknown) => {
        this.#runtime.log('warn', 'webhook.claim_failed', { error: errorText(error) });
      })
      .finally(() => {
        this.#claiming = undefined;
        if (this.#isAsked) this.wake();
      });
  }

  async #claimAll(): Promise<void> {
    while (this.#isAsked && this.#members > 0) {
      this.#isAsked = false;
      const { maxInFlight = MAX_IN_FLIGHT, perHost = PER_HOST, recordMs = RECORD_MS } = this.limits;
      const limit = maxInFlight - this.#running.size;
      if (limit <= 0) {
        this.#hasMore = true;
        return;
      }
      const sending = await this.#open();
      const claimed = await claimDeliveries(this.#runtime.pool, {
        holderId: this.#holderId,
        limit,
        perHost,
        busy: this.#busy,
        leaseMs: sending.attemptMs + recordMs,
      });
      const pushes = await this.#pushesOf(claimed);
      for (const delivery of claimed) this.#start(delivery, pushes.get(delivery.id), sending);
      this.#hasMore = claimed.length === limit || [...this.#busy.values()].some((count) => count >= perHost);
    }
  }

  /** The current content of the notifications, read at sending. */
  async #pushesOf(claimed: readonly ClaimedDelivery[]): Promise<ReadonlyMap<string, Push>> {
    const ids = claimed.flatMap(({ id, push_config }) => (push_config === null ? [] : [id]));
    return ids.length === 0 ? new Map() : loadPushes(this.#runtime.pool, ids);
  }

  #start(delivery: ClaimedDelivery, push: Push | undefined, sending: Sending): void {
    const { host } = delivery;
    this.#busy.set(host, (this.#busy.get(host) ?? 0) + 1);
    const running = this.#send(delivery, push, sending)
      // The outcome was not recorded, so the event is sent again later.
      .catch((error: unknown) => {
        this.#runtime.log('warn', 'webhook.not_recorded', {
          delivery_id: delivery.id,
          error: errorText(error),
        });
      })
      .finally(() => {
        this.#running.delete(running);
        const left = (this.#busy.get(host) ?? 1) - 1;
        if (left > 0) this.#busy.set(host, left);
        else this.#busy.delete(host);
        if (this.#hasMore) this.wake();
      });
    this.#running.add(running);
  }

  async #send(delivery: ClaimedDelivery, push: Push | undefined, sending: Sending): Promise<void> {
    const { id, handoff_id, host, attempts, failures } = delivery;
    const attempt = await deliver(delivery, push, sending);
    const { baseMs = 0 } = this.#settings ?? {};
    const pauseMs =
      attempt.outcome === 'retry' ? deliveryPauseMs(failures + 1, { baseMs, random: Math.random() }) : 0;
    const recorded = await this.#records.add({
      id,
      holderId: this.#holderId,
      attempts,
      pauseMs,
      ...attempt,
    });
    if (recorded === undefined || attempt.outcome === 'left') return;
    const { status, next_at } = recorded;
    const event = status === 'pending' ? 'webhook.retrying' : `webhook.${status}`;
    this.#runtime.log(status === 'delivered' ? 'info' : 'warn', event, {
      delivery_id: id,
      handoff_id,
      host,
      attempts,
      ...(attempt.lastStatus === null ? {} : { http_status: attempt.lastStatus }),
      ...(attempt.lastError === null ? {} : { error: attempt.lastError }),
      ...(status === 'pending' ? { next_at } : {}),
    });
  }

  /** Creates the sending parts. Their packages are loaded with the first event. */
  #open(): Promise<Sending> {
    this.#sending ??= this.#load();
    const loading = this.#sending;
    loading.catch(() => {
      if (this.#sending === loading) this.#sending = undefined;
    });
    return loading;
  }

  async #load(): Promise<Sending> {
    const { keys = [], allowPrivate = [] } = this.#settings ?? {};
    const { signersOf } = await import('./signers.js');
    const { AddressRules, createFetch } = await import('@boxcar/adapters/wire');
    const { lookUp, attemptMs = ATTEMPT_MS } = this.limits;
    return {
      notificationOf: async ({ task, config }) =>
        (await import('@boxcar/adapters/a2a')).notificationOf(task, config),
      fetch: createFetch(new AddressRules(allowPrivate, ALLOW_VARIABLE), {
        what: 'The address of the callback',
        ...(lookUp === undefined ? {} : { lookUp }),
      }),
      signers: signersOf(keys),
      attemptMs,
      stop: this.#stop.signal,
    };
  }

  /** Waits for attempts in progress. Attempts that take longer are left to other processes. */
  async #settle(): Promise<void> {
    await this.#claiming;
    const grace = startTimer(GRACE_MS, () => this.#stop.abort());
    await Promise.all(this.#running);
    grace.clear();
    this.#stop = new AbortController();
    this.#sending = undefined;
  }
}
