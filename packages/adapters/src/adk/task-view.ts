/**
 * The task of an A2A agent, assembled from whole tasks, messages and updates. Text is emitted as parts while it grows. If an agent
 * replaces text that it has written, the result is an object, because emitted parts cannot be withdrawn.
 */
import { type Message, type Part, type Task, TaskState } from '@a2a-js/sdk';
import type { JsonObject, JsonValue } from '@boxcar/kernel';
import type { ResultPart } from '../adapter.js';
import type { ConcealedText, Concealer } from '../wire/conceal.js';

/** An item of a stream or the return value of a call, in one shape. */
export type Arrived =
  | { readonly $case: 'task'; readonly value: Task }
  | { readonly $case: 'message'; readonly value: Message }
  | { readonly $case: 'statusUpdate'; readonly value: StatusUpdate }
  | { readonly $case: 'artifactUpdate'; readonly value: ArtifactUpdate };

interface StatusUpdate {
  readonly taskId: string;
  readonly contextId: string;
  readonly status: Task['status'];
}

interface ArtifactUpdate {
  readonly taskId: string;
  readonly contextId: string;
  readonly artifact: Task['artifacts'][number] | undefined;
  readonly append: boolean;
}

const FINAL: ReadonlySet<TaskState> = new Set([
  TaskState.TASK_STATE_COMPLETED,
  TaskState.TASK_STATE_FAILED,
  TaskState.TASK_STATE_CANCELED,
  TaskState.TASK_STATE_REJECTED,
]);

const BETWEEN = '\n\n';

const textIn = (parts: readonly Part[]): string =>
  parts.map(({ content }) => (content?.$case === 'text' ? content.value : '')).join('');

const hasOther = (parts: readonly Part[]): boolean => parts.some(({ content }) => content?.$case !== 'text');

function fileOf({ content, filename, mediaType }: Part): JsonObject | undefined {
  const named = { ...(filename ? { name: filename } : {}), ...(mediaType ? { media_type: mediaType } : {}) };
  if (content?.$case === 'url') return { ...named, url: content.value };
  return content?.$case === 'raw'
    ? { ...named, bytes: Buffer.from(content.value).toString('base64') }
    : undefined;
}

export class TaskView {
  readonly #concealer: Concealer;
  readonly #concealed: ConcealedText;
  readonly #onPart: (part: ResultPart) => void;
  readonly #onId: (id: string) => void;
  /** The lists are copies, so that an answer of many pieces can grow without a copy for each piece. */
  readonly #artifacts = new Map<string, Part[]>();
  #newestArtifact: string | undefined;
  #message: Message | undefined;
  #taskId: string | null = null;
  #contextId = '';
  #status: Task['status'];
  #heard: readonly string[] = [];
  /** The emitted text before and after secrets were concealed. */
  #raw = '';
  #shown = '';

  constructor(options: {
    readonly concealer: Concealer;
    readonly onPart: (part: ResultPart) => void;
    readonly onId: (id: string) => void;
  }) {
    this.#concealer = options.concealer;
    this.#concealed = options.concealer.openText();
    this.#onPart = options.onPart;
    this.#onId = options.onId;
  }

  get taskId(): string | null {
    return this.#taskId;
  }

  get contextId(): string {
    return this.#contextId;
  }

  get state(): TaskState {
    return this.#status?.state ?? TaskState.TASK_STATE_UNSPECIFIED;
  }

  /** The agent's message about the state: why the task failed, or what the agent asks. */
  get statusText(): string {
    return textIn(this.#status?.message?.parts ?? []);
  }

  /** The id of that message; empty when there is none. */
  get statusId(): string {
    return this.#status?.message?.messageId ?? '';
  }

  /** The agent's question: its text, else its data as JSON. */
  get question(): string {
    const data = this.askedWith.map(({ content }) => JSON.stringify(content?.value));
    return this.statusText.trim() === '' && data.length > 0 ? data.join(BETWEEN) : this.statusText;
  }

  /** The data of the agent's question. */
  get askedWith(): readonly Part[] {
    return (this.#status?.message?.parts ?? []).filter(({ content }) => content?.$case === 'data');
  }

  /** True when nothing more arrives without a further message. */
  get isSettled(): boolean {
    const waits =
      this.state === TaskState.TASK_STATE_INPUT_REQUIRED || this.state === TaskState.TASK_STATE_AUTH_REQUIRED;
    return this.#message !== undefined || FINAL.has(this.state) || waits;
  }

  /** The ids of the messages that the task has received, when the agent keeps them. */
  get heard(): readonly string[] {
    return this.#heard;
  }

  /** Must be called before a further message: the question has been answered. */
  reopen(): void {
    this.#status = undefined;
  }

  take(arrived: Arrived): void {
    switch (arrived.$case) {
      case 'message':
        this.#message = arrived.value;
        this.#grow(textIn(arrived.value.parts));
        return;
      case 'task':
        this.#name(arrived.value.id, arrived.value.contextId);
        this.#status = arrived.value.status;
        this.#heard = arrived.value.history.map(({ messageId }) => messageId);
        for (const { artifactId, parts } of arrived.value.artifacts) this.#keep(artifactId, parts);
        this.#catchUp();
        return;
      case 'statusUpdate':
        this.#name(arrived.value.taskId, arrived.value.contextId);
        this.#status = arrived.value.status;
        return;
      case 'artifactUpdate':
        this.#name(arrived.value.taskId, arrived.value.contextId);
        this.#addArtifact(arrived.value);
        return;
      default:
        arrived satisfies never;
    }
  }

  #name(taskId: string, contextId: string): void {
    if (contextId !== '') this.#contextId = contextId;
    if (taskId === '' || this.#taskId !== null) return;
    this.#taskId = taskId;
    this.#onId(taskId);
  }

  #addArtifact({ artifact, append }: ArtifactUpdate): void {
    if (artifact === undefined) return;
    const { artifactId: id, parts } = artifact;
    const before = this.#artifacts.get(id);
    if (append && before !== undefined) {
      before.push(...parts);
      if (id === this.#newestArtifact) this.#grow(textIn(parts));
      return;
    }
    this.#keep(id, parts);
    if (before === undefined) this.#grow(`${this.#raw === '' ? '' : BETWEEN}${textIn(parts)}`);
  }

  #keep(id: string, parts: readonly Part[]): void {
    if (!this.#artifacts.has(id)) this.#newestArtifact = id;
    this.#artifacts.set(id, [...parts]);
  }

  /** A whole task contains text that was written before the task was fetched. */
  #catchUp(): void {
    const text = [...this.#artifacts.values()].map(textIn).join(BETWEEN);
    if (text.startsWith(this.#raw)) this.#grow(text.slice(this.#raw.length));
  }

  #grow(text: string): void {
    this.#raw += text;
    this.#show(this.#concealed.push(text));
  }

  #show(text: string): void {
    if (text === '') return;
    this.#shown += text;
    this.#onPart({ type: 'text', text });
  }

  #groups(): readonly (readonly Part[])[] {
    if (this.#message !== undefined) return [this.#message.parts];
    if (this.#artifacts.size > 0) return [...this.#artifacts.values()];
    return [this.#status?.message?.parts ?? []];
  }

  /** The result of a completed task. Undefined: the agent gave none. */
  result(): JsonValue | undefined {
    const groups = this.#groups();
    const parts = groups.flat();
    const text = groups.map(textIn).join(BETWEEN);
    if (!hasOther(parts)) {
      if (text.trim() === '') return undefined;
      if (!text.startsWith(this.#raw)) return { text: this.#concealer.text(text) };
      this.#grow(text.slice(this.#raw.length));
      this.#show(this.#concealed.end());
      return this.#shown;
    }
    const data = parts.flatMap(({ content }) =>
      content?.$case === 'data' ? [content.value as JsonValue] : [],
    );
    const files = parts.map(fileOf).filter((file) => file !== undefined);
    const [first] = data;
    const isOne = data.length === 1 && files.length === 0 && text.trim() === '';
    if (isOne && first !== undefined) return this.#concealer.value(first);
    return this.#concealer.value({
      ...(text.trim() === '' ? {} : { text }),
      ...(data.length === 0 ? {} : { data }),
      ...(files.length === 0 ? {} : { files }),
    });
  }
}
