/** The receivers that are notified about a task of another platform. Rule: docs/reference/a2a.md, "Push notifications". */
import { type HandoffId, KernelError } from '@boxcar/kernel';
import {
  deletePushConfig,
  listPushConfigs,
  MAX_PUSH_CONFIGS,
  type PublicTask,
  type PushConfig,
  setPushConfig,
} from '@boxcar/store';
import type { HandoffRuntime } from '../handoff/index.js';

/** A request for a receiver. */
export interface PushRequest extends Omit<PushConfig, 'id'> {
  /** Default: the id of the task. A request with the same id replaces the receiver. */
  readonly id: string | undefined;
}

const tooMany = ({ handoff_id }: PublicTask): KernelError =>
  new KernelError('bad_request', {
    message: `A task has ${MAX_PUSH_CONFIGS} push notification configurations at most.`,
    next: 'Delete one that is not needed.',
    details: { handoff_id },
  });

export class PushReceivers {
  readonly #runtime: Pick<HandoffRuntime, 'pool' | 'webhooks'>;

  constructor(runtime: Pick<HandoffRuntime, 'pool' | 'webhooks'>) {
    this.#runtime = runtime;
  }

  /** False: this installation has no secret for signatures. */
  get isOffered(): boolean {
    return this.#runtime.webhooks.isConfigured;
  }

  /**
   * The address of a receiver, in the form in which it is stored. @throws KernelError `bad_request` for an address to which nothing may be
   * sent.
   */
  check(url: string, field: string): Promise<string> {
    return this.#runtime.webhooks.check(url, field);
  }

  /**
   * Checks the limit of receivers before the rest of the request is carried out. @throws KernelError `bad_request`: the task has too many.
   */
  async checkRoom(task: PublicTask, { id = task.handoff_id }: Pick<PushRequest, 'id'>): Promise<void> {
    const others = (await this.list(task)).filter((one) => one.id !== id);
    if (others.length >= MAX_PUSH_CONFIGS) throw tooMany(task);
  }

  /**
   * @param request - The address must have been checked.
   * @throws KernelError `bad_request`: the task has too many receivers.
   */
  async set(task: PublicTask, request: PushRequest): Promise<PushConfig> {
    const { handoff_id: taskId } = task;
    const config = { ...request, id: request.id ?? taskId };
    if (!(await setPushConfig(this.#runtime.pool, taskId as HandoffId, config))) throw tooMany(task);
    // Events that have already happened are due at once.
    this.#runtime.webhooks.wake();
    return config;
  }

  list({ handoff_id }: PublicTask): Promise<readonly PushConfig[]> {
    return listPushConfigs(this.#runtime.pool, handoff_id as HandoffId);
  }

  delete({ handoff_id }: PublicTask, id: string): Promise<void> {
    return deletePushConfig(this.#runtime.pool, handoff_id as HandoffId, id);
  }
}
