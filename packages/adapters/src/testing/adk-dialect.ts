/**
 * Imitates the ADK's API server, `adk api_server` (adk-devtools 2.0.0): it knows its apps, runs a message only in a session that was
 * opened before, and does not open a session twice.
 */
import { z } from 'zod';
import { type Dialect, json, type Reply, type ServedRequest } from './platform-server.js';

const runSchema = z.strictObject({
  appName: z.string(),
  userId: z.string(),
  sessionId: z.string(),
  newMessage: z.strictObject({
    role: z.literal('user'),
    parts: z.array(z.strictObject({ text: z.string().min(1) })).min(1),
  }),
  streaming: z.boolean().optional(),
  stateDelta: z.record(z.string(), z.unknown()).optional(),
});

const SESSION = /^\/apps\/([^/]+)\/users\/([^/]+)\/sessions\/([^/]+)$/;

/** The events of an agent with one model: a call, its result, and the final text. */
const eventsOf = (text: string, app: string): readonly unknown[] => {
  const event = (part: object, more: object = {}): object => ({
    id: 'event',
    invocationId: 'e-1',
    author: app,
    actions: { stateDelta: {}, artifactDelta: {} },
    timestamp: 1_700_000_000,
    content: { role: 'model', parts: [part] },
    ...more,
  });
  return [
    event(
      { functionCall: { id: 'adk-1', name: 'look', args: {} } },
      { usageMetadata: { promptTokenCount: 10, candidatesTokenCount: 2 } },
    ),
    event({ functionResponse: { id: 'adk-1', name: 'look', response: { ok: true } } }),
    event(
      { text },
      { usageMetadata: { promptTokenCount: 20, candidatesTokenCount: 3, thoughtsTokenCount: 4 } },
    ),
  ];
};

const headersOk = ({ headers }: ServedRequest): boolean => headers['content-type'] === 'application/json';

/** @param events - The events that a run returns. Default: `eventsOf`. */
export function adkDialect(apps: readonly string[], events = eventsOf): Dialect {
  const sessions = new Set<string>();

  function openSession(request: ServedRequest): Reply | undefined {
    const [, app = '', user = '', session = ''] = SESSION.exec(request.path) ?? [];
    if (request.method !== 'POST' || session === '') return undefined;
    const key = [app, user, session].map(decodeURIComponent).join('\0');
    if (!headersOk(request)) return json(415, { error: 'no JSON' });
    if (sessions.has(key)) return json(400, { error: `Session already exists: ${session}` });
    sessions.add(key);
    return json(200, {
      id: decodeURIComponent(session),
      appName: app,
      userId: user,
      state: {},
      events: [],
      lastUpdateTime: 0,
    });
  }

  return {
    keyHeader: ['authorization', 'Bearer '],
    serveOther: (request) => {
      if (request.method === 'GET' && request.path === '/list-apps') return json(200, apps);
      return openSession(request);
    },
    read: (request) => {
      if (request.method !== 'POST' || request.path !== '/run' || !headersOk(request))
        throw new Error(`no ${request.method} ${request.path}`);
      const { appName, userId, sessionId } = runSchema.parse(JSON.parse(request.text));
      if (!sessions.has([appName, userId, sessionId].join('\0')))
        throw new Error(`Session not found: ${sessionId}`);
    },
    answer: (text, request) => json(200, events(text, runSchema.parse(JSON.parse(request.text)).appName)),
    error: (_status, message) => ({ error: message }),
  };
}
