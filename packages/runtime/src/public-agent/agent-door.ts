/**
 * Public agents: profiles that other platforms call. Each message is a handoff, so that policy, approvals, budgets, logs and streams are
 * those of every other door.
 *
 * D1  A key reaches the public profiles of its project, and of their tasks those that it has given itself: a key of an agent those of
 *     that agent, every other key those of the keys of its name. Everything else is answered as what does not exist.
 * D2  The same message twice is one task. What follows from a message, its conversation and the agent of that too, follows from its words.
 * D3  Nothing is kept here: each answer is read from rows, in whatever process it is asked for.
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

/** What is asked of a public agent. */
export interface PublicMessage {
  /** The same id is the same message. */
  readonly messageId: string;
  /** By which the caller knows messages that belong together; the agent remembers the ones before. Default: a new one. */
  readonly conversation?: string | undefined;
  readonly task: string;
  readonly payload?: JsonValue | undefined;
}

/** What is answered to the question of a task. */
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
  /** Null: there is no more. */
  readonly nextCursor: string | null;
  /** Counted up to 10,000. */
  readonly count: number;
}

const CURSOR = 'tasks';
/** Characters. */
const MAX_NAME = 200;

const digestOf = (words: readonly string[]): string =>
  createHash('sha256').update(JSON.stringify(words)).digest('hex');

/** What callers with a key of this name are called: as long as any name may be, and the same for no other key. */
function callerNamed(key: string): string {
  const name = `a2a:${key}`;
  return name.length <= MAX_NAME
    ? name
    : `${name.slice(0, 150).toWellFormed()}~${digestOf([key]).slice(0, 32)}`;
}

/** An id that follows from words, in the form of those that are made by chance. */
function idOf(words: readonly string[]): string {
  const hex = digestOf(words);
  const variant = ((Number.parseInt(hex.charAt(16), 16) & 3) | 8).toString(16);
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-8${hex.slice(13, 16)}-${variant}${hex.slice(17, 20)}-${hex.slice(20, 32)}`;
}

const isSameQuestion = (one: TaskQuestion, other: TaskQuestion | null): boolean =>
  one.handoff_id === other?.handoff_id && one.seq === other.seq;

/** A public agent, as one caller reaches it. */
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

  /** Whoever has given a task is notified of its questions and its end. */
  get pushes(): PushReceivers {
    return new PushReceivers(this.#runtime);
  }

  get #projectId(): ProjectId {
    return this.#scope.projectId;
  }

  /** What belongs to the caller, and to nobody else. */
  #words(kind: string, text: string): readonly string[] {
    const { projectId, publicAgent, sourceAgent, sourceAgentId } = this.#scope;
    return [kind, projectId, publicAgent, sourceAgentId ?? '', sourceAgent, text];
  }

  /**
   * Makes a task of a message, or finds the one that it has become (D2). A task that is refused is one too: its row says why.
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
   * Answers what a task asks. The same reply twice is one reply (D2).
   *
   * @returns The task after that. Undefined: it asks nothing, or its question was answered meanwhile.
   * @throws KernelError `bad_request`, `payload_too_large`, `idempotency_conflict`; `database_unavailable`.
   */
  async reply(task: PublicTask, { messageId, text }: PublicReply): Promise<PublicTask | undefined> {
    const { handoff_id: taskId, question } = task;
    const key = digestOf(this.#words('reply', `${taskId} ${messageId}`));
    // Looked for after the question was read: a reply that is not found cannot have answered an earlier one.
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

  /** @throws KernelError `idempotency_conflict`: the id of the message was used for other words. */
  async #isAnswered(key: string, text: string): Promise<boolean> {
    const given = await findKeyedReply(this.#runtime.pool, key);
    if (given === undefined) return false;
    if (given.text === null || given.text === text) return true;
    throw new KernelError('idempotency_conflict', {
      message: 'A message with this id and other words has answered a question of this task.',
      next: 'Give each message an id of its own.',
    });
  }

  /** @returns The id of the handoff, whatever became of it. */
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
        // The same words again find their first answer, and leave no row of their own.
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

  /** Tasks of the caller, the newest first. @throws KernelError `bad_request` for a cursor that is none. */
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

  /** The task as it is at its end, when it asks something, or when the time is over. @throws The signal's reason. */
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

  /** Resolves when a task asks something, or has ended without a turn. @throws The signal's reason. */
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
   * What a task says, from its first word to its end, or until it asks something else than `asked`.
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

  /** Ends a task, with everything below it. @returns False: it has ended otherwise. */
  async cancel(task: PublicTask): Promise<boolean> {
    return (await cancelHandoff(this.#runtime, task.handoff_id, this.#projectId)).phase === 'canceled';
  }
}

/**
 * The public agent of this name in the project of the key. One statement.
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
