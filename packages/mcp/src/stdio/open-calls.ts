/** The requests of a connection that have no answer yet. */
import type { JSONRPCMessage, RequestId } from '@modelcontextprotocol/server';

export class OpenCalls {
  readonly #ids = new Set<RequestId>();
  readonly #waiting = new Set<() => void>();

  /** Must be called with each message of the client. A canceled request gets no answer. */
  heard(message: JSONRPCMessage): void {
    if (!('method' in message)) return;
    if ('id' in message) this.#ids.add(message.id);
    else if (message.method === 'notifications/cancelled') this.#end(message.params?.requestId);
  }

  /** Must be called with each message to the client. */
  said(message: JSONRPCMessage): void {
    if (!('method' in message)) this.#end(message.id);
  }

  #end(id: unknown): void {
    if (!this.#ids.delete(id as RequestId) || this.#ids.size > 0) return;
    for (const wake of this.#waiting) wake();
  }

  /** Settles when every request has an answer, after `limitMs`, or when `giveUp` fires. */
  async settled(limitMs: number, giveUp?: AbortSignal): Promise<void> {
    if (this.#ids.size === 0 || giveUp?.aborted === true) return;
    let timer: NodeJS.Timeout | undefined;
    await new Promise<void>((resolve) => {
      this.#waiting.add(resolve);
      timer = setTimeout(resolve, limitMs);
      giveUp?.addEventListener('abort', () => resolve(), { once: true });
    });
    clearTimeout(timer);
    this.#waiting.clear();
  }
}
