/** The methods of the protocol, on the rows of tasks. The SDK's transports translate both protocol versions into these calls. */
import {
  type AgentCard,
  type CancelTaskRequest,
  type GetTaskRequest,
  type ListTasksRequest,
  type ListTasksResponse,
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
import type { AgentDoor, Log } from '@boxcar/runtime';
import type { PublicTask } from '@boxcar/store';
import { cardOf } from './card.js';
import { malformed, toA2AError } from './errors.js';
import { messageOf, readMessage } from './message.js';
import { phasesOfState, toTask } from './task.js';
import { followTask } from './task-stream.js';

const PAGE = 50;
const MAX_PAGE = 100;

export interface RequestOptions {
  /** Where the agent is reached. */
  readonly url: string;
  /** Of a message that waits for its end. */
  readonly waitMs: number;
  /** Fires when nobody waits for the answer any more. */
  readonly signal: AbortSignal;
  /** Fires when the server stops: what waits is answered as it is. */
  readonly closing: AbortSignal;
  readonly log: Log;
}

const noTask = (id: string): Error =>
  new TaskNotFoundError({ message: `There is no task ${id.slice(0, 100)} of this agent.` });

const hasEnded = ({ ended_at }: PublicTask): boolean => ended_at !== null;

function checkHistory(length: number | undefined): number | undefined {
  if (length === undefined || (Number.isInteger(length) && length >= 0)) return length;
  throw malformed('historyLength: must be a whole number from 0.');
}

function readTime(text: string | undefined): Date | undefined {
  if (text === undefined || text === '') return undefined;
  const time = new Date(text);
  const year = time.getUTCFullYear();
  // No task is older or younger, and Postgres knows no year 0.
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

  /** A method was called: the SDK could read its parameters. */
  get isReached(): boolean {
    return this.#isReached;
  }

  async getAgentCard(): Promise<AgentCard> {
    return cardOf(this.#door.agent, this.#options.url);
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
    yield* this.#follow(task, historyLength);
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
    yield* this.#follow(task, undefined);
  }

  createTaskPushNotificationConfig(): Promise<TaskPushNotificationConfig> {
    return this.#refuse(noNotifications());
  }

  getTaskPushNotificationConfig(): Promise<TaskPushNotificationConfig> {
    return this.#refuse(noNotifications());
  }

  listTaskPushNotificationConfigs(): Promise<never> {
    return this.#refuse(noNotifications());
  }

  deleteTaskPushNotificationConfig(): Promise<void> {
    return this.#refuse(noNotifications());
  }

  async #send(request: SendMessageRequest): Promise<PublicTask> {
    const message = messageOf(request);
    const read = readMessage(message);
    if (message.taskId !== '') await this.#refuseTask(message.taskId, message.contextId);
    return this.#door.send(read);
  }

  /** A message to a task: none takes one, since agents ask nothing while they work. @throws A2AError why. */
  async #refuseTask(taskId: string, contextId: string): Promise<never> {
    const task = await this.#load(taskId);
    if (contextId !== '' && contextId !== task.conversation)
      throw malformed(`message.contextId: task ${taskId} is in another context.`);
    throw new UnsupportedOperationError({
      message: `Task ${taskId} ${hasEnded(task) ? 'has ended' : 'is at work'} and takes no message. To go on, send one without taskId in context ${task.conversation}.`,
    });
  }

  async #load(id: string): Promise<PublicTask> {
    // What the SDK translates from protocol 0.3 may have any type.
    if (typeof id !== 'string' || id.trim() === '') throw malformed('id: must be that of a task.');
    const task = await this.#door.get(id);
    if (task === undefined) throw noTask(id);
    return task;
  }

  /** The task at its end, or as it is when the time is over. */
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

  async *#follow(task: PublicTask, historyLength: number | undefined): AsyncGenerator<StreamResponse, void> {
    const { signal, log } = this.#options;
    try {
      yield* followTask(this.#door, task, { signal, historyLength });
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

const noNotifications = (): Error =>
  new PushNotificationNotSupportedError({
    message: 'This agent sends no push notifications: follow the stream of the task, or ask for it.',
  });
