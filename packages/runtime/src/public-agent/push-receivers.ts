/** Who is notified of a task that another platform has given. Rule: docs/reference/a2a.md, "Push notifications". */
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

/** A receiver that is asked for. */
export interface PushRequest extends Omit<PushConfig, 'id'> {
  /** Default: the id of the task. The same id is the same receiver. */
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

  /** False: this installation has no secret to sign with. */
  get isOffered(): boolean {
    return this.#runtime.webhooks.isConfigured;
  }

  /** The address of a receiver as it is stored. @throws KernelError `bad_request` for one that nothing may be sent to. */
  check(url: string, field: string): Promise<string> {
    return this.#runtime.webhooks.check(url, field);
  }

  /** Before something else is done with the request. @throws KernelError `bad_request`: the task has too many. */
  async checkRoom(task: PublicTask, { id = task.handoff_id }: Pick<PushRequest, 'id'>): Promise<void> {
    const others = (await this.list(task)).filter((one) => one.id !== id);
    if (others.length >= MAX_PUSH_CONFIGS) throw tooMany(task);
  }

  /**
   * @param request - With an address that was checked.
   * @throws KernelError `bad_request`: the task has too many.
   */
  async set(task: PublicTask, request: PushRequest): Promise<PushConfig> {
    const { handoff_id: taskId } = task;
    const config = { ...request, id: request.id ?? taskId };
    if (!(await setPushConfig(this.#runtime.pool, taskId as HandoffId, config))) throw tooMany(task);
    // What has happened already is due at once.
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
