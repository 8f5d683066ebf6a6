/**
 * A repl on a tape. A line that begins with a comma is always a command. Any other line goes to the tape's agent as an instruction, or,
 * on a tape without an agent, is appended as a message. Source: docs/reference/tape.md, "The repl".
 */

import { toLine, toPlain } from '@boxcar/host/base';
import { reportError } from '@boxcar/host/errors';
import { isCommaCommand, type JsonValue, KernelError, readTapeCommand } from '@boxcar/kernel';
import { type Runtime, runTapeCommand, type TurnResult } from '@boxcar/runtime';
import { EXIT } from '../../command.js';
import type { Context } from '../../context.js';
import { warnWithoutWorker } from '../turn/submit.js';
import { isArgumentLine, joinCommands } from './command-lines.js';
import type { FoundTape } from './find-tape.js';
import { openLines, type ReplInput } from './repl-lines.js';

const isQuit = (text: string): boolean => {
  try {
    return readTapeCommand(text).kind === 'quit';
  } catch {
    return false;
  }
};

/** Handles a line that is not a command: an instruction for the agent, or a message for readers of the tape. */
async function say(
  context: Context,
  runtime: Runtime,
  { tape, agentId }: FoundTape,
  { text, signal }: { readonly text: string; readonly signal: AbortSignal },
): Promise<void> {
  if (agentId === undefined) {
    const { first } = await tape.append([{ kind: 'message', content: text }]);
    context.answer({ appended: first }, () => `appended at ${first}`);
    return;
  }
  const { projectId } = tape;
  const accepted = await runtime.accept(
    'delegate_async',
    { target_strategy: 'reuse', target_ref: agentId, instruction: text },
    { projectId },
  );
  const { turn_id: turnId } = accepted.answer as { readonly turn_id: string };
  context.note(`turn ${turnId}`);
  await warnWithoutWorker(context, runtime);
  let result: TurnResult;
  try {
    result = await runtime.waitForTurn(turnId, { projectId, signal });
  } catch (error) {
    if (!signal.aborted) throw error;
    context.note(`no longer waiting; the turn continues: boxcar show ${turnId}`);
    return;
  }
  context.answer(result, () =>
    toPlain(
      typeof result.result === 'string' && result.status === 'success'
        ? result.result
        : JSON.stringify({ status: result.status, result: result.result }, null, 2),
    ),
  );
}

async function command(context: Context, { tape }: FoundTape, text: string): Promise<void> {
  const answer = await runTapeCommand(tape, text);
  context.answer(answer as unknown as JsonValue, () => toPlain(answer.output));
}

/**
 * Reads lines until the end of the input, `,quit`, or a request to stop. A failure is reported, and the next line is read.
 *
 * @returns 1 when a line failed and the input was not a terminal.
 */
export async function runRepl(
  context: Context,
  runtime: Runtime,
  options: { readonly found: FoundTape; readonly input: ReplInput },
): Promise<number> {
  const { found, input } = options;
  if (input.isTTY === true)
    context.note(`tape ${toLine(found.title)}; ,help lists the commands, ,quit leaves`);
  let work: AbortController | undefined;
  const lines = openLines(input, () => {
    // Work that does not listen is ended with the process.
    if (work?.signal.aborted === true) process.kill(process.pid, 'SIGINT');
    work?.abort();
    return work !== undefined;
  });
  context.stop.addEventListener('abort', lines.close, { once: true });
  let hasFailed = false;
  let hasQuit = false;
  let wasCommand = false;
  const take = async (text: string): Promise<void> => {
    const isCommand = isCommaCommand(text);
    const isArgument = wasCommand && isArgumentLine(text);
    wasCommand = isCommand || isArgument;
    work = new AbortController();
    const signal = AbortSignal.any([context.stop, work.signal]);
    try {
      if (isArgument) throw lateArgument();
      if (isCommand) await command(context, found, text);
      else if (text.trim() !== '') await say(context, runtime, found, { text, signal });
    } catch (error) {
      if (context.stop.aborted) return;
      hasFailed = true;
      reportError(error, { isJson: context.isJson, withStack: context.config.logLevel === 'debug' });
    } finally {
      work = undefined;
    }
  };
  try {
    lines.ask('first');
    for await (const text of joinCommands(lines.arrivals, { onOpen: () => lines.ask('more') })) {
      hasQuit = isCommaCommand(text) && isQuit(text);
      if (hasQuit) break;
      await take(text);
      if (context.stop.aborted) break;
      lines.ask('first');
    }
  } catch (error) {
    // The stream was closed while it was read.
    if (!context.stop.aborted) throw error;
  } finally {
    context.stop.removeEventListener('abort', lines.close);
    lines.close();
  }
  if (context.stop.aborted) return EXIT.interrupted;
  // The shell's prompt must begin on a new line.
  if (input.isTTY === true && !hasQuit) process.stderr.write('\n');
  return hasFailed && input.isTTY !== true ? EXIT.error : EXIT.success;
}

const lateArgument = (): KernelError =>
  new KernelError('bad_request', {
    message:
      'This line is an argument of the command above, which has run; end a line with \\ to continue it.',
    details: { field: 'command' },
  });
