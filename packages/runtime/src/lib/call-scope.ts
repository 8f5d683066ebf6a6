/**
 * What the running code of a tool or handler works for: for errors that nothing caught, and for code that holds the event loop. The
 * trace follows timers, promises and callbacks that the code has started, also after its call has ended. Work of the kernel for the
 * whole process leaves it (`outsideHandlers`), as do new connections of the pool.
 */
import type { ToolCallId, TurnId, WorkerId } from '@boxcar/kernel';
import { runningCode } from '@boxcar/store';

/** A call of a turn, of a tool or of a handler. */
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
  /** Of `blocked_jobs`. */
  readonly noteId: string;
}

export type RunningCode = RunningCall | RunningJob;

interface CodeScope {
  readonly code: RunningCode;
  /** Fails the call. Absent for a handler: most of the code that runs within it is the kernel's. */
  readonly crash?: (error: unknown) => void;
}

const scopeNow = (): CodeScope | undefined => runningCode.getStore() as CodeScope | undefined;

const watchers = new Set<(code: RunningCode | undefined) => void>();
/** The code that was entered and has not given the event loop back yet. */
let entered: RunningCode | undefined;

// Asked by the thread of the watchdog, through the debugger, while the loop is held.
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
 * @param watcher - Is shown what the entered code works for, and undefined when the code first gives the event loop back.
 * @returns Ends it.
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
 * left the error, with `tool_crashed`. The worker goes on.
 *
 * @returns False when the error is not of a tool call: then the process should end, with `worker.close({ crash: error })`.
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

/** The job whose handler left the error that ends the process; once. */
export function takeCrashedJob(): RunningJob | undefined {
  const job = crashedJob;
  crashedJob = undefined;
  return job;
}

/** What the code works for that ends the process by `process.exit`; undefined when it does so on purpose, or after a crash. */
export const codeAtExit = (): RunningCode | undefined => (isCrashing ? undefined : scopeNow()?.code);
