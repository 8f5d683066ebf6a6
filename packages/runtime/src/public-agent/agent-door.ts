/**
 * Public agents: profiles that other platforms call. Each message is a handoff, so it has the same policy, approvals, budgets, logs and
 * streams as a request at any other door.
 *
 * D1  A key reaches the public profiles of its project, and the tasks that it has given itself. The key of an agent reaches the tasks of
 *     that agent; every other key reaches the tasks of all keys with its name. All other profiles and tasks are reported as not existing.
 * D2  A repeated message is the same task. The keys and ids of a message, including those of its conversation and its agent, are derived
 *     from the caller and the ids in the message.
 * D3  Nothing is cached here: each answer is read from rows, in any process.
 * Rule: docs/reference/a2a.md.
 */
import { createHash } from 'node:crypto';
import {
  type AgentId,
  type HandoffPart,
  type HandoffPhase,
  type JsonValue,
  KernelError,
  type ProjectId,
  type TurnId,
  tryParseId,
} from '@boxcar/kernel';
import {
  countPublicTasks,
  findKeyedReply,
  findPublicAgent,
  findPublicTask,
  listPublicTasks,
  type PublicAgent,
  type PublicTask,
  type TaskQuestion,
  type TaskScope,
} from '@boxcar/store';
import type { Handler } from '../handler/index.js';
import {
  cancelHandoff,
  type HandoffRuntime,
  handoffPrimitive,
  logRefused,
  readHandoffEnvironment,
  replyTo,
  streamHandoff,
  type TaskOrigin,
  waitForHandoff,
  waitForTurnOf,
} from '../handoff/index.js';
import type { KeyPrincipal } from '../key/index.js';
import { type PagePlace, readCursor } from '../lib/index.js';
import { PushReceivers } from './push-receivers.js';
import { untilAsked } from './until-asked.js';

/** A message to a public agent. */
export interface PublicMessage {
  /** The same id is the same message. */
  readonly messageId: string;
  /** The caller's name for messages that belong together; the agent remembers the earlier messages. Default: a new conversation. */
  readonly conversation?: string | undefined;
  readonly task: string;
  readonly payload?: JsonValue | undefined;
}

/** A reply to the question of a task. */
export interface PublicReply {
  /** The same id is the same reply. */
  readonly messageId: string;
  readonly text: string;
}

export interface ListTasksOptions {
  readonly conversation?: string | undefined;
  readonly phases?: readonly HandoffPhase[] | undefined;
  readonly since?: Date | undefined;
  readonly limit: number;
  readonly cursor?: string | undefined;
}

export interface TaskPage {
  readonly tasks: readonly PublicTask[];
  /** Null: this is the last page. */
  readonly nextCursor: string | null;
  /** Counted up to 10,000. */
  readonly count: number;
}

const CURSOR = 'tasks';
/** In characters. */
const MAX_NAME = 200;

const digestOf = (words: readonly string[]): string =>
  createHash('sha256').update(JSON.stringify(words)).digest('hex');

/** The name of callers with a key of this name. It fits the limit for names, and differs for every other key name. */
function callerNamed(key: string): string {
  const name = `a2a:${key}`;
  return name.length <= MAX_NAME
    ? name
    : `${name.slice(0, 150).toWellFormed()}~${digestOf([key]).slice(0, 32)}`;
}

/** Derives an id from words. It has the form of a UUID. */
function idOf(words: readonly string[]): string {
  const hex = digestOf(words);
  const variant = ((Number.parseInt(hex.charAt(16), 16) & 3) | 8).toString(16);
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-8${hex.slice(13, 16)}-${variant}${hex.slice(17, 20)}-${hex.slice(20, 32)}`;
}

const isSameQuestion = (one: TaskQuestion, other: TaskQuestion | null): boolean =>
  one.handoff_id === other?.handoff_id && one.seq === other.seq;

/** A public agent, for one caller. */
export class AgentDoor {
  readonly agent: PublicAgent;
  readonly #runtime: HandoffRuntime;
  readonly #scope: TaskScope;

  constructor(runtime: HandoffRuntime, agent: PublicAgent, principal: KeyPrincipal) {
    this.agent = agent;
    this.#runtime = runtime;
    const { projectId, agent: caller, name } = principal;
    this.#scope = {
      projectId,
      publicAgent: agent.name,
      sourceAgent: caller === null ? callerNamed(name) : caller.name,
      sourceAgentId: caller?.id ?? null,
    };
  }

  /** Receivers that are notified of the questions and the end of the caller's tasks. */
  get pushes(): PushReceivers {
    return new PushReceivers(this.#runtime);
  }

  get #projectId(): ProjectId {
    return this.#scope.projectId;
  }

  /** Words that identify the caller, so that derived ids differ from those of every other caller. */
  #words(kind: string, text: string): readonly string[] {
    const { projectId, publicAgent, sourceAgent, sourceAgentId } = this.#scope;
    return [kind, projectId, publicAgent, sourceAgentId ?? '', sourceAgent, text];
  }

  /**
   * Makes a task from a message, or finds the task of a repeated message (D2). A refused request is a task too: its row contains the
   * reason.
   *
   * @throws KernelError `bad_request`, `payload_too_large`, `idempotency_conflict`, `feature_disabled`; `database_unavailable`.
   */
  async send({ messageId, conversation, task, payload }: PublicMessage): Promise<PublicTask> {
    const named = conversation ?? idOf(this.#words('conversation', messageId));
    const origin: TaskOrigin = {
      publicAgent: this.#scope.publicAgent,
      conversation: named,
      messageId,
      servingAgentId: idOf(this.#words('agent', named)) as AgentId,
    };
    const request = {
      source_agent: this.#scope.sourceAgent,
      target_agent: `profile:${this.#scope.publicAgent}`,
      platform: 'agdd',
      task,
      ...(payload === undefined ? {} : { payload }),
      idempotency_key: `a2a:${digestOf(this.#words('message', messageId))}`,
      wait: false,
    };
    const found = await this.get(await this.#accept(request, origin));
    if (found === undefined) throw new KernelError('internal_error', { message: 'The task has no row.' });
    return found;
  }

  /**
   * Replies to the question of a task. A repeated reply is the same reply (D2).
   *
   * @returns The task after the reply. Undefined: the task has no open question, or the question was answered in the meantime.
   * @throws KernelError `bad_request`, `payload_too_large`, `idempotency_conflict`; `database_unavailable`.
   */
  async reply(task: PublicTask, { messageId, text }: PublicReply): Promise<PublicTask | undefined> {
    const { handoff_id: taskId, question } = task;
    const key = digestOf(this.#words('reply', `${taskId} ${messageId}`));
    // The reply is looked up after the question was read. So a reply that is not found cannot have answered an earlier question.
    const isDone = (await this.#isAnswered(key, text)) || (await this.#answer(question, { key, text }));
    return isDone ? this.get(taskId) : undefined;
  }

  /** @returns False: there was no open question. */
  async #answer(
    question: PublicTask['question'],
    { key, text }: { readonly key: string; readonly text: string },
  ): Promise<boolean> {
    if (question === null) return false;
    const { sourceAgent: by } = this.#scope;
    const reply = { projectId: this.#projectId, text, question: question.seq, by, key };
    try {
      await replyTo(this.#runtime, question.handoff_id, reply);
      return true;
    } catch (error) {
      if (!(error instanceof KernelError && error.code === 'question_closed')) throw error;
      return this.#isAnswered(key, text);
    }
  }

  /** @throws KernelError `idempotency_conflict`: the id of the message was used for another text. */
  async #isAnswered(key: string, text: string): Promise<boolean> {
    const given = await findKeyedReply(this.#runtime.pool, key);
    if (given === undefined) return false;
    if (given.text === null || given.text === text) return true;
    throw new KernelError('idempotency_conflict', {
      message: 'A message with this id and other words has answered a question of this task.',
      next: 'Give each message an id of its own.',
    });
  }

  /** @returns The id of the handoff, also if the handoff was refused. */
  async #accept(request: { readonly source_agent: string }, origin: TaskOrigin): Promise<string> {
    const runtime = this.#runtime;
    const isEnabled = readHandoffEnvironment().isEnabled ?? true;
    const handler = handoffPrimitive(
      runtime,
      runtime.handoffs,
      () => ({ isEnabled, gate: runtime.gate }),
      origin,
    );
    const { sourceAgentId } = this.#scope;
    try {
      const { answer } = await runtime.accept('handoff', request, {
        projectId: this.#projectId,
        ...(sourceAgentId === null ? {} : { sourceAgentId }),
        // A repeated request finds its first answer, and leaves no row of its own.
        idempotencyKey: `a2a:${digestOf(this.#words(origin.conversation, origin.messageId))}`,
        handler: handler as Handler,
      });
      return (answer as { handoff_id: string }).handoff_id;
    } catch (error) {
      logRefused(runtime, request, error);
      if (!(error instanceof KernelError) || error.code === 'idempotency_conflict') throw error;
      const { handoff_id: handoffId } = error.details;
      if (typeof handoffId === 'string') return handoffId;
      throw error;
    }
  }

  /** Undefined: the caller has no such task. */
  async get(taskId: string): Promise<PublicTask | undefined> {
    const id = tryParseId<'handoff'>(taskId);
    return id && findPublicTask(this.#runtime.pool, this.#scope, id);
  }

  /** Tasks of the caller, the newest first. @throws KernelError `bad_request` for a cursor that is not valid. */
  async list({ limit, cursor, ...filters }: ListTasksOptions): Promise<TaskPage> {
    const after: PagePlace | undefined = cursor === undefined ? undefined : readCursor(CURSOR, cursor);
    if (cursor !== undefined && after === undefined)
      throw new KernelError('bad_request', {
        message: 'cursor: must be the one of a page of tasks.',
        details: { field: 'cursor' },
      });
    const { pool } = this.#runtime;
    const [rows, count] = await Promise.all([
      listPublicTasks(pool, this.#scope, { ...filters, limit: limit + 1, after }),
      countPublicTasks(pool, this.#scope, filters),
    ]);
    const tasks = rows.slice(0, limit);
    const last = rows.length > limit ? tasks.at(-1) : undefined;
    const nextCursor = last === undefined ? null : `${CURSOR}:${last.place_at}:${last.handoff_id}`;
    return { tasks: tasks.map(({ place_at: _place, ...task }) => task), nextCursor, count };
  }

  /** Waits until the task ends, asks a question, or the time is over, and resolves with its state then. @throws The signal's reason. */
  async wait(
    task: PublicTask,
    { timeoutMs, signal }: { readonly timeoutMs: number; readonly signal: AbortSignal },
  ): Promise<PublicTask> {
    if (task.ended_at !== null || task.question !== null) return task;
    const id = task.handoff_id as Parameters<typeof waitForHandoff>[1];
    const stop = new AbortController();
    const options = { projectId: this.#projectId, signal: AbortSignal.any([signal, stop.signal]) };
    try {
      await Promise.race([
        waitForHandoff(this.#runtime, id, { ...options, timeoutMs }),
        this.#untilAsked(task.handoff_id, options),
      ]);
    } catch (error) {
      if (!(error instanceof KernelError && error.code === 'wait_timeout')) throw error;
    } finally {
      stop.abort();
    }
    return (await this.get(task.handoff_id)) ?? task;
  }

  /** Resolves when a task asks a question, or has ended without a turn. @throws The signal's reason. */
  async #untilAsked(
    taskId: string,
    options: { readonly projectId: ProjectId; readonly signal: AbortSignal },
  ): Promise<void> {
    const { turn_id: turnId } = await waitForTurnOf(this.#runtime, taskId, options);
    if (turnId === null) return;
    using follower = this.#runtime.watcher.follow(turnId as TurnId);
    await untilAsked(follower, options.signal, async () => (await this.get(taskId))?.question !== null);
  }

  /**
   * Streams the text of a task from its beginning to its end, or until the task asks a question other than `asked`.
   *
   * @throws The signal's reason.
   */
  stream(
    taskId: string,
    { signal, asked }: { readonly signal: AbortSignal; readonly asked: PublicTask['question'] },
  ): AsyncGenerator<HandoffPart, void> {
    const isOver = async (): Promise<boolean> => {
      const question = (await this.get(taskId))?.question ?? null;
      return question !== null && !isSameQuestion(question, asked);
    };
    return streamHandoff(this.#runtime, taskId, { projectId: this.#projectId, signal, isOver });
  }

  /** Ends a task together with its subtree. @returns False: the task had already ended in another way. */
  async cancel(task: PublicTask): Promise<boolean> {
    return (await cancelHandoff(this.#runtime, task.handoff_id, this.#projectId)).phase === 'canceled';
  }
}

/**
 * Finds the public agent of this name in the project of the key, with one statement.
 *
 * @throws KernelError `not_found` for a profile that does not exist or is not public.
 */
export async function openAgentDoor(
  runtime: HandoffRuntime,
  name: string,
  principal: KeyPrincipal,
): Promise<AgentDoor> {
  const agent = name.includes('\0')
    ? undefined
    : await findPublicAgent(runtime.pool, principal.projectId, name);
  if (agent !== undefined) return new AgentDoor(runtime, agent, principal);
  throw new KernelError('not_found', {
    message: `There is no public agent '${name.slice(0, 200)}' in this project.`,
    next: 'Check the name; a profile is public when it says public: true.',
    details: { agent: name.slice(0, 200) },
  });
}
