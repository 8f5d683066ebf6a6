/**
 * Records the call or job that the running code of a tool or handler works for. Errors that nothing caught and code that blocks
 * the event loop are traced with it. The trace follows timers, promises and callbacks that the code has started, also after its
 * call has ended. Work of the kernel for the whole process leaves the trace (`outsideHandlers`), as do new connections of the
 * pool.
 */
import type { ToolCallId, TurnId, WorkerId } from '@boxcar/kernel';
import { runningCode } from '@boxcar/store';

/** A turn's call of a tool or of a handler. */
export interface RunningCall {
  readonly kind: 'call';
  readonly tool: string;
  readonly toolCallId: ToolCallId;
  readonly turnId: TurnId;
  readonly holderId: WorkerId;
}

/** A job of the queue door, whose handler runs. */
export interface RunningJob {
  readonly kind: 'job';
  readonly primitive: string;
  readonly jobId: string;
  /** The row id in `blocked_jobs`. */
  readonly noteId: string;
}

export type RunningCode = RunningCall | RunningJob;

interface CodeScope {
  readonly code: RunningCode;
  /** Fails the call. Absent for a handler, because most of the code that runs inside it belongs to the kernel. */
  readonly crash?: (error: unknown) => void;
}

const scopeNow = (): CodeScope | undefined => runningCode.getStore() as CodeScope | undefined;

const watchers = new Set<(code: RunningCode | undefined) => void>();
/** The code that was entered and has not yet returned to the event loop. */
let entered: RunningCode | undefined;

// The watchdog's thread calls this through the debugger while the event loop is blocked.
Reflect.set(globalThis, Symbol.for('boxcar.runningCode'), () => scopeNow()?.code);

function enter(code: RunningCode | undefined): void {
  entered = code;
  for (const show of watchers) show(code);
}

/** Runs the code of a tool or handler. */
export function runInScope<T>(scope: CodeScope, work: () => T): T {
  const outer = entered;
  enter(scope.code);
  try {
    return runningCode.run(scope, work);
  } finally {
    enter(outer);
  }
}

/**
 * @param watcher - Receives the call or job of entered code, and undefined when the code first returns to the event loop.
 * @returns A function that ends the watch.
 */
export function watchEntries(watcher: (code: RunningCode | undefined) => void): () => void {
  watchers.add(watcher);
  return () => void watchers.delete(watcher);
}

/** A job whose handler left the error that ends the process. */
let crashedJob: RunningJob | undefined;
let isCrashing = false;

/**
 * For the handlers of `unhandledRejection` and `uncaughtException` of a process that runs workers: fails the tool call whose code
 * left the error, with `tool_crashed`. The worker continues.
 *
 * @returns False when the error does not belong to a tool call: the process should then end, with
 * `worker.close({ crash: error })`.
 */
export function failStrayCall(error: unknown): boolean {
  const scope = scopeNow();
  if (scope?.crash !== undefined) {
    scope.crash(error);
    return true;
  }
  if (scope?.code.kind === 'job' && !isCrashing) crashedJob = scope.code;
  isCrashing = true;
  return false;
}

/** The job whose handler left the error that ends the process. It is returned once. */
export function takeCrashedJob(): RunningJob | undefined {
  const job = crashedJob;
  crashedJob = undefined;
  return job;
}

/**
 * The call or job of code that ends the process by `process.exit`. Undefined when other code ends the process, or after a crash.
 */
export const codeAtExit = (): RunningCode | undefined => (isCrashing ? undefined : scopeNow()?.code);
