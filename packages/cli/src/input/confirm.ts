import { createInterface } from 'node:readline';
import { toLine } from '@boxcar/host/base';
import type { Context } from '../context.js';
import { wrongUsage } from './usage.js';

/**
 * Asks for confirmation of an action that cannot be undone. `--yes` confirms in advance; it is required without a terminal.
 *
 * @returns False when the answer is no, or the input has ended without an answer.
 * @throws KernelError `bad_request` without a terminal and without `--yes`.
 */
export async function confirm(
  context: Context,
  question: string,
  { yes = false }: { readonly yes?: boolean | undefined },
): Promise<boolean> {
  if (yes) return true;
  if (context.isJson || process.stdin.isTTY !== true)
    throw wrongUsage(`${question} There is no terminal for the question: give --yes`, 'yes');
  const terminal = createInterface({ input: process.stdin, output: process.stderr });
  // At a terminal in raw mode Ctrl-C is a key; it is passed on to the process as a signal.
  terminal.on('SIGINT', () => process.kill(process.pid, 'SIGINT'));
  const answer = await new Promise<string>((resolve) => {
    terminal.once('close', () => resolve(''));
    terminal.question(`${toLine(question)} [y/N] `, resolve);
  });
  terminal.close();
  return /^y(es)?$/i.test(answer.trim());
}
