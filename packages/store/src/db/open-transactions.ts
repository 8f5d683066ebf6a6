/**
 * Tracks handlers with an open transaction in the code that they call.
 *
 * A handler that takes a second connection of the pool while it holds a first one can cause a deadlock: handlers that wait for a second
 * connection may hold all the others. So a pool of `createPool` refuses the second connection. A call of a handler may also start work
 * for the whole process (batches, rings, promotions, watchers); such work runs outside of the handler.
 */
import { AsyncLocalStorage } from 'node:async_hooks';
import { KernelError } from '@boxcar/kernel/base';
import type pg from 'pg';

/** The transaction of one handler. Keep this object small: connections that were opened inside the handler hold a reference to it. */
export interface HandlerScope {
  readonly pool: pg.Pool;
  readonly primitive: string;
  /** The handler that submitted this primitive. */
  readonly outer: HandlerScope | undefined;
  isOpen: boolean;
}

const scopes = new AsyncLocalStorage<HandlerScope | undefined>();

/** A new scope inside the current one. Its transaction is not open yet. */
export const handlerScope = (pool: pg.Pool, primitive: string): HandlerScope => ({
  pool,
  primitive,
  outer: scopes.getStore(),
  isOpen: false,
});

export const insideHandler = <T>(scope: HandlerScope, work: () => T): T => scopes.run(scope, work);

/** The turn, handler or tool for which the current code runs. The runtime defines the type (`call-scope.ts`). */
export const runningCode = new AsyncLocalStorage<object | undefined>();

/** Runs work that does not belong to the calling handler or tool: it may take other connections. */
export function outsideHandlers<T>(work: () => T): T {
  const outside = scopes.getStore() === undefined ? work : () => scopes.run(undefined, work);
  return runningCode.getStore() === undefined ? outside() : runningCode.run(undefined, outside);
}

/**
 * Throws when code of a handler that already holds a connection asks for another one.
 *
 * @param within - The scope of that code, if it is not the current scope.
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
