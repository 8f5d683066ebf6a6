/** A2A agents on the server of the official SDK: protocol 1.0, and 0.3 through its compatibility layer. */
import {
  A2A_VERSION_HEADER,
  type AgentCard,
  type Artifact,
  type Part,
  Role,
  type Task,
  TaskState,
} from '@a2a-js/sdk';
import { LegacyJsonRpcTransportHandler } from '@a2a-js/sdk/compat/v0_3/server';
import {
  AgentEvent,
  type AgentExecutor,
  DefaultRequestHandler,
  type ExecutionEventBus,
  InMemoryTaskStore,
  JsonRpcTransportHandler,
  type RequestContext,
  ServerCallContext,
} from '@a2a-js/sdk/server';
import { type Dialect, json, type Reply, type ServedRequest } from './platform-server.js';

export const textPart = (value: string): Part => ({
  content: { $case: 'text', value },
  metadata: undefined,
  filename: '',
  mediaType: 'text/plain',
});

const NO_ARTIFACT: Artifact = {
  artifactId: 'answer',
  name: '',
  description: '',
  parts: [],
  metadata: undefined,
  extensions: [],
};

/** How an agent handles a message: it publishes on the bus, with the test's text. */
export type Play = (context: RequestContext, bus: Bus, text: string) => void | Promise<void>;

/** A short interface to the bus of a task. */
export class Bus {
  readonly #bus: ExecutionEventBus;
  readonly #context: RequestContext;

  constructor(bus: ExecutionEventBus, context: RequestContext) {
    this.#bus = bus;
    this.#context = context;
  }

  get #ids() {
    return { taskId: this.#context.taskId, contextId: this.#context.contextId };
  }

  /** Every execution begins with this. */
  task(state: TaskState): void {
    const { taskId: id, contextId } = this.#ids;
    const status = { state, message: undefined, timestamp: undefined };
    const known: Task = this.#context.task ?? {
      id,
      contextId,
      status,
      artifacts: [],
      history: [],
      metadata: undefined,
    };
    this.#bus.publish(AgentEvent.task({ ...known, status }));
  }

  artifact(artifactId: string, parts: readonly Part[], append = false): void {
    const artifact: Artifact = { ...NO_ARTIFACT, artifactId, parts: [...parts] };
    this.#bus.publish(
      AgentEvent.artifactUpdate({ ...this.#ids, artifact, append, lastChunk: false, metadata: undefined }),
    );
  }

  status(state: TaskState, words?: string): void {
    const message =
      words === undefined
        ? undefined
        : {
            messageId: 'status',
            ...this.#ids,
            role: Role.ROLE_AGENT,
            parts: [textPart(words)],
            metadata: undefined,
            extensions: [],
            referenceTaskIds: [],
          };
    this.#bus.publish(
      AgentEvent.statusUpdate({
        ...this.#ids,
        status: { state, message, timestamp: undefined },
        metadata: undefined,
      }),
    );
  }

  message(parts: readonly Part[]): void {
    this.#bus.publish(
      AgentEvent.message({
        messageId: 'reply',
        ...this.#ids,
        taskId: '',
        role: Role.ROLE_AGENT,
        parts: [...parts],
        metadata: undefined,
        extensions: [],
        referenceTaskIds: [],
      }),
    );
  }
}

/** Asks until each question has an answer, and repeats the last answer. */
export const playQuestions =
  (...questions: readonly string[]): Play =>
  ({ task, userMessage }, bus, text) => {
    const heard = new Set(
      (task?.history ?? []).flatMap(({ role, messageId }) => (role === Role.ROLE_USER ? [messageId] : [])),
    );
    const next = questions[heard.add(userMessage.messageId).size - 1];
    bus.task(TaskState.TASK_STATE_WORKING);
    if (next !== undefined) {
      bus.status(TaskState.TASK_STATE_INPUT_REQUIRED, next);
      return;
    }
    const [part] = userMessage.parts;
    const words = part?.content?.$case === 'text' ? part.content.value : '';
    bus.artifact('answer', [textPart(`${words}: ${text}`)]);
    bus.status(TaskState.TASK_STATE_COMPLETED);
  };

/** Writes an answer in three pieces. */
const playAnswer: Play = (_context, bus, text) => {
  bus.task(TaskState.TASK_STATE_WORKING);
  const size = Math.ceil(text.length / 3);
  for (let at = 0; at < text.length; at += size)
    bus.artifact('answer', [textPart(text.slice(at, at + size))], at > 0);
  bus.status(TaskState.TASK_STATE_COMPLETED);
};

const WORK = new Set(['SendMessage', 'SendStreamingMessage', 'message/send', 'message/stream']);

export interface A2ADialectOptions {
  readonly version: '1.0' | '0.3';
  readonly play?: Play;
  readonly isStreaming?: boolean;
  readonly inputModes?: readonly string[];
  /** A task that is still working after its execution is completed with this answer on the third request for its state. */
  readonly lateAnswer?: string;
  /** The address of the agent in its card. Default: the server itself. */
  readonly urlOf?: (origin: string) => string;
}

/** The card in the form of its protocol version. */
function cardOf(
  { version, isStreaming = true, inputModes = [], urlOf }: A2ADialectOptions,
  origin: string,
): unknown {
  const url = urlOf?.(origin) ?? `${origin}/rpc`;
  const shared = {
    name: 'Harbour',
    description: 'Knows harbours.',
    version: '1',
    defaultInputModes: inputModes,
    defaultOutputModes: ['text/plain'],
    skills: [],
  };
  if (version === '0.3')
    return {
      ...shared,
      protocolVersion: '0.3.0',
      url,
      preferredTransport: 'JSONRPC',
      capabilities: { streaming: isStreaming },
    };
  return {
    ...shared,
    supportedInterfaces: [{ url, protocolBinding: 'JSONRPC', protocolVersion: '1.0', tenant: '' }],
    capabilities: { streaming: isStreaming, extensions: [] },
    securitySchemes: {},
    securityRequirements: [],
    signatures: [],
  };
}

/** The card that the SDK's server uses. */
const ownCard = (isStreaming: boolean): AgentCard => ({
  name: 'Harbour',
  description: '',
  supportedInterfaces: [
    { url: 'http://localhost/', protocolBinding: 'JSONRPC', protocolVersion: '1.0', tenant: '' },
    { url: 'http://localhost/', protocolBinding: 'JSONRPC', protocolVersion: '0.3', tenant: '' },
  ],
  provider: undefined,
  version: '1',
  capabilities: { streaming: isStreaming, extensions: [] },
  securitySchemes: {},
  securityRequirements: [],
  defaultInputModes: [],
  defaultOutputModes: [],
  skills: [],
  signatures: [],
});

async function toReply(answered: object): Promise<Reply> {
  if (!(Symbol.asyncIterator in answered)) return json(200, answered);
  const frames: string[] = [];
  for await (const event of answered as AsyncIterable<unknown>)
    frames.push(`data: ${JSON.stringify(event)}\n\n`);
  return { status: 200, headers: { 'content-type': 'text/event-stream' }, frames };
}

export function a2aDialect(options: A2ADialectOptions): Dialect {
  const { version, play = playAnswer, isStreaming = true } = options;
  let text = '';
  const executor: AgentExecutor = {
    execute: async (context, bus) => {
      await play(context, new Bus(bus, context), text);
      bus.finished();
    },
    cancelTask: async (taskId, bus) => {
      bus.publish(
        AgentEvent.statusUpdate({
          taskId,
          contextId: '',
          status: { state: TaskState.TASK_STATE_CANCELED, message: undefined, timestamp: undefined },
          metadata: undefined,
        }),
      );
    },
  };
  const store = new InMemoryTaskStore();
  const handler = new DefaultRequestHandler(ownCard(isStreaming), store, executor);
  const transport =
    version === '0.3' ? new LegacyJsonRpcTransportHandler(handler) : new JsonRpcTransportHandler(handler);
  const handle = async ({ text: body }: ServedRequest): Promise<Reply> =>
    toReply(await transport.handle(body, new ServerCallContext({ requestedVersion: version })));

  let looks = 0;

  async function answerLate({ text: body }: ServedRequest): Promise<void> {
    const { method, params } = JSON.parse(body) as { method: string; params: { id: string } };
    if (options.lateAnswer === undefined || !/get/i.test(method)) return;
    looks += 1;
    const context = new ServerCallContext({ requestedVersion: version });
    const task = await store.load(params.id, context);
    if (looks < 3 || task === undefined) return;
    const artifact = { ...NO_ARTIFACT, parts: [textPart(options.lateAnswer)] };
    const status = { state: TaskState.TASK_STATE_COMPLETED, message: undefined, timestamp: undefined };
    await store.save({ ...task, artifacts: [artifact], status }, context);
  }

  return {
    keyHeader: ['authorization', 'Bearer '],
    serveOther: async (request, origin) => {
      if (request.method === 'GET' && request.path === '/card.json')
        return json(200, cardOf(options, origin));
      const { method } = JSON.parse(request.text || '{}') as { method?: string };
      if (method === undefined || WORK.has(method)) return undefined;
      await answerLate(request);
      return handle(request);
    },
    read: ({ method, path, headers, text: body }) => {
      if (method !== 'POST' || path !== '/rpc') throw new Error(`no ${method} ${path}`);
      const asked = headers[A2A_VERSION_HEADER.toLowerCase()];
      if (asked !== version) throw new Error(`version ${String(asked)} in place of ${version}`);
      const { jsonrpc } = JSON.parse(body) as { jsonrpc?: string };
      if (jsonrpc !== '2.0') throw new Error('not JSON-RPC 2.0');
    },
    answer: (said, request) => {
      text = said;
      return handle(request);
    },
    error: (status, message) => ({ jsonrpc: '2.0', id: null, error: { code: -32_000 - status, message } }),
  };
}
