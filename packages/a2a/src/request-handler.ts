/** The methods of the protocol, on the rows of tasks. The SDK's transports translate calls of both protocol versions into these methods. */
import {
  type AgentCard,
  type CancelTaskRequest,
  type DeleteTaskPushNotificationConfigRequest,
  type GetTaskPushNotificationConfigRequest,
  type GetTaskRequest,
  type ListTaskPushNotificationConfigsRequest,
  type ListTaskPushNotificationConfigsResponse,
  type ListTasksRequest,
  type ListTasksResponse,
  type Message,
  type SendMessageRequest,
  type StreamResponse,
  type SubscribeToTaskRequest,
  type Task,
  type TaskPushNotificationConfig,
  TaskState,
} from '@a2a-js/sdk';
import {
  PushNotificationNotSupportedError,
  TaskNotCancelableError,
  TaskNotFoundError,
  UnsupportedOperationError,
} from '@a2a-js/sdk/errors';
import type { A2ARequestHandler } from '@a2a-js/sdk/server';
import { phasesOfState, toTask } from '@boxcar/adapters/a2a';
import type { AgentDoor, Log, PushRequest } from '@boxcar/runtime';
import type { PublicTask } from '@boxcar/store';
import { cardOf } from './card.js';
import { malformed, toA2AError } from './errors.js';
import { isText, messageOf, readMessage, readReply } from './message.js';
import { readPush, toPush } from './push.js';
import { type FollowOptions, followTask } from './task-stream.js';

const PAGE = 50;
const MAX_PAGE = 100;

export interface RequestOptions {
  /** The address of the agent. */
  readonly url: string;
  /** The protocol version of the request. */
  readonly version: string;
  /** The limit for a message that waits for the end of its task. */
  readonly waitMs: number;
  /** Fires when the client no longer waits for the answer. */
  readonly signal: AbortSignal;
  /** Fires when the server stops: waiting requests are then answered with the present state. */
  readonly closing: AbortSignal;
  readonly log: Log;
}

const noTask = (id: string): Error =>
  new TaskNotFoundError({ message: `This agent has no task ${id.slice(0, 100)}.` });

const hasEnded = ({ ended_at }: PublicTask): boolean => ended_at !== null;

function checkHistory(length: number | undefined): number | undefined {
  if (length === undefined || (Number.isInteger(length) && length >= 0)) return length;
  throw malformed('historyLength: must be a whole number from 0.');
}

function readTime(text: string | undefined): Date | undefined {
  if (text === undefined || text === '') return undefined;
  const time = new Date(text);
  const year = time.getUTCFullYear();
  // All tasks are within this range, and Postgres has no year 0.
  if (year >= 1 && year <= 9999) return time;
  throw malformed('statusTimestampAfter: must be a time.');
}

function readState(state: TaskState) {
  if (state === TaskState.TASK_STATE_UNSPECIFIED) return undefined;
  if (state === TaskState.UNRECOGNIZED) throw malformed('status: must be a state of tasks.');
  return phasesOfState(state);
}

/** One request of one caller. */
export class RequestHandler implements A2ARequestHandler {
  readonly #door: AgentDoor;
  readonly #options: RequestOptions;
  #isReached = false;

  constructor(door: AgentDoor, options: RequestOptions) {
    this.#door = door;
    this.#options = options;
  }

  /** True after the SDK has called a method, so it could read the parameters. */
  get isReached(): boolean {
    return this.#isReached;
  }

  async getAgentCard(): Promise<AgentCard> {
    return cardOf(this.#door.agent, { url: this.#options.url, pushes: this.#door.pushes.isOffered });
  }

  getAuthenticatedExtendedAgentCard(): Promise<AgentCard> {
    return this.#refuse(new UnsupportedOperationError({ message: 'This agent has one card, and no other.' }));
  }

  sendMessage(request: SendMessageRequest): Promise<Task> {
    return this.#run(async () => {
      const { configuration } = request;
      const historyLength = checkHistory(configuration?.historyLength);
      const sent = await this.#send(request);
      const task = configuration?.returnImmediately === true ? sent : await this.#wait(sent);
      return toTask(task, { historyLength });
    });
  }

  async *sendMessageStream(request: SendMessageRequest): AsyncGenerator<StreamResponse, void> {
    const { historyLength, task } = await this.#run(async () => ({
      historyLength: checkHistory(request.configuration?.historyLength),
      task: await this.#send(request),
    }));
    yield* this.#follow(task, { historyLength, asked: null });
  }

  getTask({ id, historyLength }: GetTaskRequest): Promise<Task> {
    return this.#run(async () =>
      toTask(await this.#load(id), { historyLength: checkHistory(historyLength) }),
    );
  }

  listTasks(request: ListTasksRequest): Promise<ListTasksResponse> {
    return this.#run(async () => {
      const { contextId, pageToken, includeArtifacts = false } = request;
      const pageSize = request.pageSize ?? PAGE;
      if (!Number.isInteger(pageSize) || pageSize < 1 || pageSize > MAX_PAGE)
        throw malformed(`pageSize: must be a whole number from 1 to ${MAX_PAGE}.`);
      const historyLength = checkHistory(request.historyLength);
      const page = await this.#door.list({
        conversation: contextId === '' ? undefined : contextId,
        phases: readState(request.status),
        since: readTime(request.statusTimestampAfter),
        limit: pageSize,
        cursor: pageToken === '' ? undefined : pageToken,
      });
      return {
        tasks: page.tasks.map((task) => toTask(task, { historyLength, hasArtifacts: includeArtifacts })),
        nextPageToken: page.nextCursor ?? '',
        pageSize,
        totalSize: page.count,
      };
    });
  }

  cancelTask({ id }: CancelTaskRequest): Promise<Task> {
    return this.#run(async () => {
      const task = await this.#load(id);
      if (hasEnded(task) || !(await this.#door.cancel(task)))
        throw new TaskNotCancelableError({ message: `Task ${id} has ended already.` });
      return toTask(await this.#load(id));
    });
  }

  async *resubscribe({ id }: SubscribeToTaskRequest): AsyncGenerator<StreamResponse, void> {
    const task = await this.#run(() => this.#load(id));
    if (hasEnded(task))
      throw new UnsupportedOperationError({ message: `Task ${id} has ended; ask for it instead.` });
    yield* this.#follow(task, { historyLength: undefined, asked: task.question });
  }

  createTaskPushNotificationConfig(config: TaskPushNotificationConfig): Promise<TaskPushNotificationConfig> {
    return this.#run(async () => {
      const push = await this.#checkPush(config);
      const task = await this.#load(config.taskId);
      return toPush(task.handoff_id, await this.#door.pushes.set(task, push));
    });
  }

  getTaskPushNotificationConfig({
    taskId,
    id,
  }: GetTaskPushNotificationConfigRequest): Promise<TaskPushNotificationConfig> {
    return this.#run(async () => {
      const configs = await this.#configsOf(taskId);
      const config = configs.find((one) => one.id === (id || taskId));
      if (config !== undefined) return config;
      throw new TaskNotFoundError({
        message: `Task ${taskId.slice(0, 100)} has no such push notification configuration.`,
      });
    });
  }

  listTaskPushNotificationConfigs({
    taskId,
  }: ListTaskPushNotificationConfigsRequest): Promise<ListTaskPushNotificationConfigsResponse> {
    return this.#run(async () => ({ configs: [...(await this.#configsOf(taskId))], nextPageToken: '' }));
  }

  deleteTaskPushNotificationConfig({ taskId, id }: DeleteTaskPushNotificationConfigRequest): Promise<void> {
    return this.#run(async () => {
      this.#checkOffer();
      const task = await this.#load(taskId);
      await this.#door.pushes.delete(task, isText(id) && id !== '' ? id : task.handoff_id);
    });
  }

  async #configsOf(taskId: string): Promise<readonly TaskPushNotificationConfig[]> {
    this.#checkOffer();
    const task = await this.#load(taskId);
    return (await this.#door.pushes.list(task)).map((config) => toPush(task.handoff_id, config));
  }

  /** @throws A2AError. */
  #checkOffer(): void {
    if (!this.#door.pushes.isOffered)
      throw new PushNotificationNotSupportedError({
        message: 'This agent sends no push notifications: follow the stream of the task, or ask for it.',
      });
  }

  /** @throws A2AError; KernelError `bad_request` for an address to which sending is not allowed. */
  async #checkPush(config: TaskPushNotificationConfig): Promise<PushRequest> {
    this.#checkOffer();
    const push = readPush(config, this.#options.version);
    return { ...push, url: await this.#door.pushes.check(push.url, 'pushNotificationConfig.url') };
  }

  /**
   * Checks the configuration before the message becomes a task or a reply. When the message is sent again, it finds its task and sets the
   * configuration then.
   */
  async #send(request: SendMessageRequest): Promise<PublicTask> {
    const message = messageOf(request);
    const config = request.configuration?.taskPushNotificationConfig;
    const push = config && (await this.#checkPush(config));
    const task = await (message.taskId === ''
      ? this.#door.send(readMessage(message))
      : this.#reply(message, push));
    if (push !== undefined) await this.#door.pushes.set(task, push);
    return task;
  }

  /** A message to a task answers the question of that task. @throws A2AError when the task has no open question. */
  async #reply(message: Message, push: PushRequest | undefined): Promise<PublicTask> {
    const { taskId, contextId } = message;
    const reply = readReply(message);
    const task = await this.#load(taskId);
    if (contextId !== '' && contextId !== task.conversation)
      throw malformed(`message.contextId: task ${taskId} is in another context.`);
    if (push !== undefined) await this.#door.pushes.checkRoom(task, push);
    const replied = await this.#door.reply(task, reply);
    if (replied !== undefined) return replied;
    throw new UnsupportedOperationError({
      message: `Task ${taskId} ${hasEnded(task) ? 'has ended' : 'asks nothing'} and accepts no message. To continue, send a message without taskId in context ${task.conversation}.`,
    });
  }

  async #load(id: string): Promise<PublicTask> {
    // Values that the SDK translates from protocol 0.3 may have any type.
    if (typeof id !== 'string' || id.trim() === '') throw malformed('id: must be that of a task.');
    const task = await this.#door.get(id);
    if (task === undefined) throw noTask(id);
    return task;
  }

  /** Returns the task at its end, or its present state after the time limit. */
  async #wait(task: PublicTask): Promise<PublicTask> {
    const { waitMs: timeoutMs, signal, closing, log } = this.#options;
    log('debug', 'a2a.waits', { handoff_id: task.handoff_id });
    try {
      return await this.#door.wait(task, { timeoutMs, signal: AbortSignal.any([signal, closing]) });
    } catch (error) {
      if (!signal.aborted && !closing.aborted) throw error;
      return task;
    }
  }

  async *#follow(task: PublicTask, of: Omit<FollowOptions, 'signal'>): AsyncGenerator<StreamResponse, void> {
    const { signal, log } = this.#options;
    try {
      yield* followTask(this.#door, task, { signal, ...of });
    } catch (error) {
      throw toA2AError(error, log);
    }
  }

  async #run<T>(work: () => Promise<T>): Promise<T> {
    this.#isReached = true;
    try {
      return await work();
    } catch (error) {
      throw toA2AError(error, this.#options.log);
    }
  }

  #refuse(error: Error): Promise<never> {
    this.#isReached = true;
    return Promise.reject(error);
  }
}
