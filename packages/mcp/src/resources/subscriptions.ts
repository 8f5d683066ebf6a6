/** The subscriptions of one client: a limited number of resources. All of them end with the client. */
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
   * A repeated call for the same resource has no effect.
   *
   * @returns False: the client cannot see such a resource.
   * @throws ProtocolError above the limit.
   */
  async add(uri: string): Promise<boolean> {
    if (this.#stops.has(uri)) return true;
    if (this.#stops.size >= MAX_SUBSCRIPTIONS) throw tooManySubscriptions();
    // The slot is reserved during the lookup.
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
