/** Sets up the process for the command line: signals, and uncaught failures. */
import { getEventListeners } from 'node:events';
import { constants } from 'node:os';
import { strayCalls } from '@boxcar/host/base';
import { KernelError } from '@boxcar/kernel/base';
import { CRASH_GRACE_MS, EXIT } from './exit.js';
import { outputFailed } from './output.js';
import { runCli } from './run-cli.js';

/** How long connections may take to close after the command has ended. */
const LEAVE_AFTER_MS = 100;
/** Any period works: an active timer keeps the process alive. */
const HOLD_MS = 60_000;

const stop = new AbortController();
let hasCrashed = false;

/** Loads its modules on demand, so that a program without errors starts without them. */
async function report(error: Error, withStack: boolean): Promise<void> {
  const { reportError } = await import('@boxcar/host/errors');
  reportError(error, { isJson: process.argv.includes('--json'), withStack });
}

/** Asks the command to finish; false when the command does not listen, or was already asked. */
function askToStop(reason?: KernelError): boolean {
  if (stop.signal.aborted || getEventListeners(stop.signal, 'abort').length === 0) return false;
  stop.abort(reason);
  return true;
}

let stoppedBy: NodeJS.Signals = 'SIGINT';
const exitCodeOf = (signal: NodeJS.Signals): number => 128 + constants.signals[signal];

for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
  process.on(name, () => {
    if (!askToStop()) process.exit(exitCodeOf(name));
    stoppedBy = name;
  });
}

// `boxcar dev` started this process: without this listener nothing would stop it.
process.once('disconnect', () => {
  if (!askToStop()) process.exit(1);
});
process.channel?.unref();

// Handles a bug in Boxcar or in a plugin. A bug that can be traced to a tool call fails the call. Any other bug is reported in one line,
// turns in progress are given back as lost, and the process exits with a failure.
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

// The reader of the output may stop reading: `boxcar show … | head`. A worker continues without a reader; `dev` and `mcp`, whose purpose
// is their output, stop as at Ctrl-C.
const command = process.argv.slice(2).find((word) => !word.startsWith('-'));
let isCutOff = false;
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (command === 'worker' || isCutOff) return;
  if (error.code === 'EPIPE') {
    if ((command === 'dev' || command === 'mcp') && (stop.signal.aborted || askToStop())) return;
    process.exit(0);
  }
  isCutOff = true;
  void report(outputFailed(error), false).finally(() => process.exit(1));
});

// A command may wait, for example in a plugin, without a timer or socket of its own. It must not end without a result.
const hold = setInterval(() => undefined, HOLD_MS);
const exitCode = await runCli(process.argv.slice(2), { stop: stop.signal });
clearInterval(hold);
process.exitCode =
  hasCrashed || isCutOff ? 1 : exitCode === EXIT.interrupted ? exitCodeOf(stoppedBy) : exitCode;

// A connection may still wait for an unavailable server, or a plugin may hold a timer, a socket or a pool. The command has ended, so the
// process exits anyway, after its answer is written.
const leave = (): void => {
  // The handler of the cut output ends the process.
  if (isCutOff) return;
  const isWritten = process.stdout.writableLength + process.stderr.writableLength === 0;
  if (isWritten) process.exit();
  setTimeout(leave, LEAVE_AFTER_MS).unref();
};
setTimeout(leave, LEAVE_AFTER_MS).unref();
