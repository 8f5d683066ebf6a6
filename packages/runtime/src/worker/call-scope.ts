/**
 * Traces an error that nothing caught to the tool call whose code left it. The trace follows timers, promises and callbacks
 * that the tool has started, also after its call has ended.
 */
import { AsyncLocalStorage } from 'node:async_hooks';

interface CallScope {
  crash(error: unknown): void;
}

const scopes = new AsyncLocalStorage<CallScope>();

/** Runs the code of a tool. */
export const runInCallScope = <T>(scope: CallScope, work: () => T): T => scopes.run(scope, work);

/**
 * For the handlers of `unhandledRejection` and `uncaughtException` of a process that runs workers: fails the tool call whose code
 * left the error, with `tool_crashed`. The worker goes on.
 *
 * @returns False when the error is not of a tool call: then the process should end, with `worker.close({ crash: error })`.
 */
export function failStrayCall(error: unknown): boolean {
  const scope = scopes.getStore();
  scope?.crash(error);
  return scope !== undefined;
}
