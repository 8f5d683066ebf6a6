/**
 * `subscriptions/listen` over stdio. The SDK keeps the list of a connection and passes on the server's notifications. This file reads the
 * named resources from the messages and follows them.
 *
 * L1  The SDK acknowledges a request before the state of its resources is known. So each resource is reported once when following begins,
 *     and a write in between is not missed.
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
  /** The resources that each request has named. */
  readonly #named = new Map<RequestId, readonly string[]>();
  /** The server of the connection. */
  server: McpServer | undefined;

  constructor(scope: McpClientScope) {
    this.#scope = scope;
    this.#subscriptions = new Subscriptions(scope, (uri) => this.#tell(uri));
  }

  /** Must be called with each message of the client, before the SDK handles it. */
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
    // The request may have ended meanwhile.
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
