/** For tests: a server with public agents on a separate database, and clients of the official SDK. */
import {
  A2A_VERSION_HEADER,
  type Message,
  type Part,
  Role,
  type SendMessageRequest,
  type Task,
} from '@a2a-js/sdk';
import {
  type Client,
  ClientFactory,
  DefaultAgentCardResolver,
  JsonRpcTransportFactory,
} from '@a2a-js/sdk/client';
import { approvalRoutes, createHttpFrame, type HttpFrame, type HttpFrameOptions } from '@boxcar/http';
import type { JsonValue, Scope } from '@boxcar/kernel';
import { createModelRouter, type ScriptedFunction } from '@boxcar/llm';
import { PermissionEvaluator } from '@boxcar/policy';
import {
  type AgentFunction,
  createKey,
  createWorker,
  type HandoffSettings,
  HandoffTool,
  type OpenRuntime,
  openRuntime,
} from '@boxcar/runtime';
import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import { type A2ARoutesOptions, a2aRoutes } from '../a2a-routes.js';

export type Version = '1.0' | '0.3';

export interface LogLine {
  readonly level: string;
  readonly event: string;
  readonly fields: Readonly<Record<string, unknown>>;
}

export interface StageOptions extends A2ARoutesOptions, Partial<Omit<HttpFrameOptions, 'runtime' | 'log'>> {
  /** The database of another stage, for a second process on the same rows. */
  readonly database?: TestDatabase;
  /** The text of a policy. */
  readonly policy?: string;
  readonly functions?: Record<string, ScriptedFunction>;
  readonly handoffs?: HandoffSettings;
  /** Functions that may be restarted; the worker of the stage runs them. */
  readonly agents?: Readonly<Record<string, AgentFunction>>;
  /** False: the stage has no worker, so no turns run. */
  readonly works?: boolean;
}

export interface Stage extends AsyncDisposable {
  readonly database: TestDatabase;
  readonly opened: OpenRuntime;
  readonly frame: HttpFrame;
  readonly url: string;
  readonly log: LogLine[];
  key(rest?: {
    readonly scopes?: readonly Scope[];
    readonly projectId?: string;
    readonly agent?: string;
    readonly name?: string;
  }): Promise<string>;
  /** A public agent with a script. */
  agent(name: string, script: readonly JsonValue[], rest?: Readonly<Record<string, unknown>>): Promise<void>;
  client(agent: string, key: string, version?: Version): Promise<Client>;
}

const CALL: readonly Scope[] = ['a2a:call'];

export async function openStage(options: StageOptions = {}): Promise<Stage> {
  const {
    database: given,
    policy,
    functions = {},
    handoffs,
    agents = {},
    works = true,
    publicUrl,
    waitMs,
    ...frameOptions
  } = options;
  const database = given ?? (await testDatabase());
  const log: LogLine[] = [];
  const write = (level: string, event: string, fields: LogLine['fields'] = {}): void =>
    void log.push({ level, event, fields });
  const opened = openRuntime({
    databaseUrl: database.url,
    directUrl: database.url,
    model: createModelRouter({ scripted: { functions } }),
    log: write,
    handoffs,
    ...(policy === undefined ? {} : { permissionEvaluator: new PermissionEvaluator({ text: policy }) }),
  });
  const { runtime } = opened;
  const tool = new HandoffTool({ runtime, concurrency: 0 });
  for (const [name, run] of Object.entries(agents)) tool.registerAgent(name, run, { retry: 'safe' });
  const worker = works ? await createWorker(runtime, { sweepMs: 200 }) : undefined;
  const frame = createHttpFrame({ runtime, port: 0, ...frameOptions, log: write }).mount([
    ...approvalRoutes(runtime),
    ...a2aRoutes(runtime, { publicUrl, waitMs }),
  ]);
  const { url } = await frame.listen();
  return {
    database,
    opened,
    frame,
    url,
    log,
    key: async ({ scopes = CALL, ...rest } = {}) => (await createKey(database.pool, { scopes, ...rest })).key,
    agent: async (name, script, rest = {}) => {
      const profile = {
        name,
        instructions: `You are ${name}.`,
        model: 'scripted',
        script,
        public: true,
        ...rest,
      };
      await runtime.applyProfile(profile);
    },
    client: (agent, key, version = '1.0') => openClient(`${url}/a2a/${agent}`, key, version),
    [Symbol.asyncDispose]: async () => {
      await frame.close({ graceMs: 0 });
      await tool.close();
      await worker?.close({ graceMs: 1_000 });
      await opened.close();
      if (given === undefined) await database.close();
    },
  };
}

/** A client of the official SDK for this protocol version. It also reads the card in the form of that version. */
export async function openClient(address: string, key: string, version: Version): Promise<Client> {
  const withKey: typeof fetch = (input, init) => {
    const headers = new Headers(init?.headers);
    headers.set('authorization', `Bearer ${key}`);
    if (version === '0.3') headers.delete(A2A_VERSION_HEADER);
    return fetch(input, { ...init, headers });
  };
  const legacyCompat = { enabled: version === '0.3' };
  const resolver = new DefaultAgentCardResolver({ fetchImpl: withKey, legacyCompat });
  const card = await resolver.resolve(
    address,
    '.well-known/agent-card.json'.replace(/^/, `${new URL(address).pathname}/`),
  );
  const supportedInterfaces = card.supportedInterfaces.filter(({ protocolVersion }) =>
    protocolVersion.startsWith(version),
  );
  const transports = [new JsonRpcTransportFactory({ fetchImpl: withKey, legacyCompat })];
  return new ClientFactory({ transports }).createFromAgentCard({ ...card, supportedInterfaces });
}

export const partOf = (content: NonNullable<Part['content']>): Part => ({
  content,
  metadata: undefined,
  filename: '',
  mediaType: '',
});

let sent = 0;

/** A message with this text or these parts. */
export function request(
  words: string | readonly Part[],
  rest: Partial<Message> & { readonly returnImmediately?: boolean } = {},
): SendMessageRequest {
  const { returnImmediately = false, ...message } = rest;
  sent += 1;
  return {
    tenant: '',
    message: {
      messageId: `message-${sent}`,
      contextId: '',
      taskId: '',
      role: Role.ROLE_USER,
      parts: typeof words === 'string' ? [partOf({ $case: 'text', value: words })] : [...words],
      metadata: undefined,
      extensions: [],
      referenceTaskIds: [],
      ...message,
    },
    configuration: { acceptedOutputModes: [], taskPushNotificationConfig: undefined, returnImmediately },
    metadata: undefined,
  };
}

/** The answer of an agent that turns each message into a task. */
export const taskOf = (answer: Message | Task): Task => {
  if ('messageId' in answer) throw new Error('a message in place of a task');
  return answer;
};

/** The text or the data of a result. */
export function resultOf({ artifacts }: Task): unknown {
  const content = artifacts[0]?.parts[0]?.content;
  return content?.value;
}

export const bearer = (key: string): Readonly<Record<string, string>> => ({ authorization: `Bearer ${key}` });

/** A gate that a test opens. */
export function gate(): { readonly opened: Promise<void>; open(): void } {
  let open: () => void = () => undefined;
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { opened, open };
}
