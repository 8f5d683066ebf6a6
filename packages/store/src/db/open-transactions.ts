/**
 * Handlers with an open transaction, as seen by the code that they call.
 *
 * A handler that takes a second connection of the pool while it holds one can cause a deadlock: all other connections may be held
 * by handlers that wait for the same. So a pool of `createPool` refuses the second connection. A call of a handler may also start
 * work for the whole process (batches, rings, promotions, watchers); such work runs outside of the handler.
 */
import { AsyncLocalStorage } from 'node:async_hooks';
import { KernelError } from '@boxcar/kernel/base';
import type pg from 'pg';

/** The transaction of one handler. Keep it small: connections that were opened inside it hold a reference to it. */
export interface HandlerScope {
  readonly pool: pg.Pool;
  readonly primitive: string;
  /** The handler that has submitted this primitive. */
  readonly outer: HandlerScope | undefined;
  isOpen: boolean;
}

const scopes = new AsyncLocalStorage<HandlerScope | undefined>();

/** A scope inside the one that this code runs in; its transaction is not open yet. */
export const handlerScope = (pool: pg.Pool, primitive: string): HandlerScope => ({
  pool,
  primitive,
  outer: scopes.getStore(),
  isOpen: false,
});

export const insideHandler = <T>(scope: HandlerScope, work: () => T): T => scopes.run(scope, work);

/** What the code of a tool or handler runs for. Its form is in the runtime (`call-scope.ts`). */
export const runningCode = new AsyncLocalStorage<object | undefined>();

/** Runs work that does not belong to the calling handler or tool: it may take other connections. */
export function outsideHandlers<T>(work: () => T): T {
  const outside = scopes.getStore() === undefined ? work : () => scopes.run(undefined, work);
  return runningCode.getStore() === undefined ? outside() : runningCode.run(undefined, outside);
}

/**
 * Refuses a connection to code of a handler that already holds one.
 *
 * @param within - The scope of that code, if it is not the current one.
 * @throws KernelError `nested_connection`.
 */
export function refuseNested(
  pool: pg.Pool,
  within: { readonly scope: HandlerScope | undefined } = { scope: scopes.getStore() },
): void {
  for (let at = within.scope; at !== undefined; at = at.outer) {
    if (!at.isOpen || at.pool !== pool) continue;
    throw new KernelError('nested_connection', {
      message: `The handler of ${at.primitive} asked for a second connection while its transaction is open.`,
      details: { primitive: at.primitive },
    });
  }
}
