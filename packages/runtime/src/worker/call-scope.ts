/**
 * The tool call whose code runs: for errors that nothing caught, and for a tool that holds the event loop. The trace follows
 * timers, promises and callbacks that the tool has started, also after its call has ended.
 */
import { AsyncLocalStorage } from 'node:async_hooks';
import type { ToolCallId, TurnId } from '@boxcar/kernel';

export interface RunningCall {
  readonly tool: string;
  readonly toolCallId: ToolCallId;
  readonly turnId: TurnId;
  /** Of the turn's claim. */
  readonly epoch: number;
}

interface CallScope {
  readonly call: RunningCall;
  crash(error: unknown): void;
}

const scopes = new AsyncLocalStorage<CallScope>();
const watchers = new Set<(call: RunningCall | undefined) => void>();

// Asked by the thread of the watchdog, through the debugger, while the loop is held.
Reflect.set(globalThis, Symbol.for('boxcar.currentCall'), () => scopes.getStore()?.call);

/** Runs the code of a tool. */
export function runInCallScope<T>(scope: CallScope, work: () => T): T {
  for (const enter of watchers) enter(scope.call);
  try {
    return scopes.run(scope, work);
  } finally {
    for (const enter of watchers) enter(undefined);
  }
}

/**
 * @param watcher - Is shown each call whose tool is entered, and undefined when the tool first gives the event loop back.
 * @returns Ends it.
 */
export function watchEntries(watcher: (call: RunningCall | undefined) => void): () => void {
  watchers.add(watcher);
  return () => void watchers.delete(watcher);
}

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
