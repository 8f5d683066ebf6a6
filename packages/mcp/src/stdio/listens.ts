/**
 * `subscriptions/listen` over stdio. The SDK keeps the list of a connection and passes on what the server says of its resources; here is
 * heard which resources those are, and they are followed.
 *
 * L1  The SDK acknowledges before it is known how a resource is. So each is told once when it begins to be followed: what was written in
 *     between is not missed.
 */
import { errorText } from '@boxcar/kernel';
import type { JSONRPCMessage, McpServer, RequestId } from '@modelcontextprotocol/server';
import type { McpClientScope } from '../client-scope.js';
import { urisOf } from '../resources/listen-filter.js';
import { Subscriptions } from '../resources/subscriptions.js';

export const isListen = (message: JSONRPCMessage): boolean =>
  'method' in message && message.method === 'subscriptions/listen';

export class Listens {
  readonly #scope: McpClientScope;
  readonly #subscriptions: Subscriptions;
  /** What each request has named. */
  readonly #named = new Map<RequestId, readonly string[]>();
  /** The one that serves the connection. */
  server: McpServer | undefined;

  constructor(scope: McpClientScope) {
    this.#scope = scope;
    this.#subscriptions = new Subscriptions(scope, (uri) => this.#tell(uri));
  }

  /** A message of the client, before the SDK hears it. */
  heard(message: JSONRPCMessage): void {
    if (!('method' in message)) return;
    if ('id' in message && isListen(message)) void this.#begin(message.id, urisOf(message) ?? []);
    if (message.method === 'notifications/cancelled') this.#end(message.params?.requestId as RequestId);
  }

  close(): void {
    this.#named.clear();
    this.#subscriptions.close();
  }

  async #begin(id: RequestId, uris: readonly string[]): Promise<void> {
    this.#named.set(id, uris);
    for (const uri of uris)
      try {
        if (await this.#subscriptions.add(uri)) this.#tell(uri);
      } catch (error) {
        this.#scope.log('warn', 'mcp.not_followed', { uri, error: errorText(error) });
      }
    // It may have been ended meanwhile.
    if (!this.#named.has(id)) this.#drop(uris);
  }

  #end(id: RequestId): void {
    const uris = this.#named.get(id);
    if (uris === undefined) return;
    this.#named.delete(id);
    this.#drop(uris);
  }

  #drop(uris: readonly string[]): void {
    const named = new Set([...this.#named.values()].flat());
    for (const uri of uris) if (!named.has(uri)) this.#subscriptions.remove(uri);
  }

  #tell(uri: string): void {
    this.server?.server.sendResourceUpdated({ uri }).catch((error: unknown) => {
      this.#scope.log('debug', 'mcp.change_not_told', { uri, error: errorText(error) });
    });
  }
}
