/** What one client has subscribed to. A limited number of resources; all of them end with the client. */
import {
  ProtocolError as Problem,
  type ProtocolError,
  ProtocolErrorCode,
} from '@modelcontextprotocol/server';
import type { McpClientScope } from '../client-scope.js';
import { changeWatchOf } from './change-watch.js';

export const MAX_SUBSCRIPTIONS = 100;

export class Subscriptions {
  readonly #scope: McpClientScope;
  readonly #tell: (uri: string) => void;
  readonly #stops = new Map<string, () => void>();
  #isClosed = false;

  constructor(scope: McpClientScope, tell: (uri: string) => void) {
    this.#scope = scope;
    this.#tell = tell;
  }

  /**
   * Again for the same resource changes nothing.
   *
   * @returns False: the client does not see such a resource.
   * @throws ProtocolError beyond the limit.
   */
  async add(uri: string): Promise<boolean> {
    if (this.#stops.has(uri)) return true;
    if (this.#stops.size >= MAX_SUBSCRIPTIONS) throw tooManySubscriptions();
    // Its place is taken while it is looked for.
    this.#stops.set(uri, () => undefined);
    let stop: (() => void) | undefined;
    try {
      stop = await changeWatchOf(this.#scope.runtime).follow(this.#scope, uri, () => this.#tell(uri));
    } finally {
      if (stop === undefined) this.#stops.delete(uri);
    }
    if (stop === undefined) return false;
    if (this.#isClosed || !this.#stops.has(uri)) stop();
    else this.#stops.set(uri, stop);
    return true;
  }

  remove(uri: string): void {
    this.#stops.get(uri)?.();
    this.#stops.delete(uri);
  }

  close(): void {
    this.#isClosed = true;
    for (const uri of [...this.#stops.keys()]) this.remove(uri);
  }
}

const tooManySubscriptions = (): ProtocolError =>
  new Problem(
    ProtocolErrorCode.InvalidParams,
    `A client may follow ${MAX_SUBSCRIPTIONS} resources. End a subscription before you add another one.`,
  );
