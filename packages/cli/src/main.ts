/** The process around the command line: signals, and failures that nobody caught. */
import { getEventListeners } from 'node:events';
import { constants } from 'node:os';
import { KernelError } from '@boxcar/kernel/base';
import { CRASH_GRACE_MS } from './exit.js';
import { outputFailed } from './output.js';
import { runCli } from './run-cli.js';
import { strayCalls } from './stray-calls.js';

/** How long connections may take to close after the command has ended. */
const LEAVE_AFTER_MS = 100;

const stop = new AbortController();
let hasCrashed = false;

/** Loads what it needs: a program that has nothing to report starts without it. */
async function report(error: Error, withStack: boolean): Promise<void> {
  const { reportError } = await import('./report-error.js');
  reportError(error, { isJson: process.argv.includes('--json'), withStack });
}

/** Asks the command to finish; false when it does not listen, or has been asked before. */
function askToStop(reason?: KernelError): boolean {
  if (stop.signal.aborted || getEventListeners(stop.signal, 'abort').length === 0) return false;
  stop.abort(reason);
  return true;
}

for (const name of ['SIGINT', 'SIGTERM'] as const) {
  process.on(name, () => {
    if (!askToStop()) process.exit(128 + constants.signals[name]);
  });
}

// Started by `boxcar dev`: without it nobody would stop this process.
process.once('disconnect', () => {
  if (!askToStop()) process.exit(1);
});
process.channel?.unref();

// A bug of ours or of a plugin. One that is traced to a tool call fails the call; any other is said in one line, turns in hand are
// given back as lost, and the process ends as failed.
for (const name of ['uncaughtException', 'unhandledRejection'] as const) {
  process.on(name, (reason: unknown) => {
    if (strayCalls.fail(reason)) return;
    const isFirst = !hasCrashed;
    hasCrashed = true;
    process.exitCode = 1;
    const error = reason instanceof Error ? reason : new Error(String(reason));
    const kind = name === 'unhandledRejection' ? 'unhandled rejection' : 'uncaught exception';
    const message = `${kind}: ${error.message}`;
    const reported = report(new Error(message, { cause: error }), true).catch(() => undefined);
    if (!isFirst) return;
    const crash = new KernelError('worker_crashed', { message: `${message}.`, cause: error });
    if (!askToStop(crash)) void reported.finally(() => process.exit(1));
    setTimeout(() => process.exit(1), CRASH_GRACE_MS).unref();
  });
}

// Whoever reads may stop reading: `boxcar show … | head`. A worker works on without a reader.
const worksOn = process.argv.slice(2).find((word) => !word.startsWith('-')) === 'worker';
let isCutOff = false;
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (worksOn || isCutOff) return;
  if (error.code === 'EPIPE') process.exit(0);
  isCutOff = true;
  void report(outputFailed(error), false).finally(() => process.exit(1));
});

const exitCode = await runCli(process.argv.slice(2), { stop: stop.signal });
process.exitCode = hasCrashed ? 1 : exitCode;

// A connection may still wait for a server that is away, or a plugin may hold a timer, a socket or a pool. The command has ended, so the
// process exits anyway, once its answer is written.
const leave = (): void => {
  const isWritten = process.stdout.writableLength + process.stderr.writableLength === 0;
  if (isWritten) process.exit();
  setTimeout(leave, LEAVE_AFTER_MS).unref();
};
setTimeout(leave, LEAVE_AFTER_MS).unref();
