/**
 * `subscriptions/listen` of the revision 2026-07-28: one stream, and the changes of the resources that its request names.
 *
 * The SDK writes the stream and asks for events without saying of what. So the request is read here first: resources that the client does
 * not see are taken out of it, and the acknowledgement names the others.
 */
import type { ServerEvent, ServerEventBus } from '@modelcontextprotocol/server';
import type { McpClientScope } from '../client-scope.js';
import { Subscriptions } from '../resources/subscriptions.js';

/** Who listens to one stream. */
class StreamBus implements ServerEventBus {
  readonly #listeners = new Set<(event: ServerEvent) => void>();

  publish(event: ServerEvent): void {
    for (const listener of this.#listeners) listener(event);
  }

  subscribe(listener: (event: ServerEvent) => void): () => void {
    this.#listeners.add(listener);
    return () => void this.#listeners.delete(listener);
  }
}

export interface Listening {
  /** The request, without what the client does not see. */
  readonly body: unknown;
  readonly bus: ServerEventBus;
  close(): void;
}

type Json = Readonly<Record<string, unknown>>;

const isObject = (value: unknown): value is Json =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

const objectAt = (value: unknown, name: string): Json => {
  const found = isObject(value) ? value[name] : undefined;
  return isObject(found) ? found : {};
};

/** What the request names; undefined when it is not a list of texts: the SDK says so. */
function urisOf(body: unknown): readonly string[] | undefined {
  const { resourceSubscriptions: uris } = objectAt(objectAt(body, 'params'), 'notifications');
  return Array.isArray(uris) && uris.every((uri) => typeof uri === 'string') ? (uris as string[]) : undefined;
}

const withUris = (body: unknown, uris: readonly string[]): unknown => ({
  ...(body as Json),
  params: {
    ...objectAt(body, 'params'),
    notifications: { ...objectAt(objectAt(body, 'params'), 'notifications'), resourceSubscriptions: uris },
  },
});

/** @throws ProtocolError for more resources than a client may follow. */
export async function openListening(scope: McpClientScope, body: unknown): Promise<Listening> {
  const bus = new StreamBus();
  const subscriptions = new Subscriptions(scope, (uri) => bus.publish({ kind: 'resource_updated', uri }));
  const close = (): void => subscriptions.close();
  const uris = urisOf(body);
  if (uris === undefined) return { body, bus, close };
  try {
    const seen: string[] = [];
    for (const uri of new Set(uris)) if (await subscriptions.add(uri)) seen.push(uri);
    return { body: withUris(body, seen), bus, close };
  } catch (error) {
    close();
    throw error;
  }
}

/** The id of a request, where it has one. */
export const requestIdOf = (body: unknown): string | number | null => {
  const id = isObject(body) ? body.id : null;
  return typeof id === 'string' || typeof id === 'number' ? id : null;
};
