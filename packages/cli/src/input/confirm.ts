import { createInterface } from 'node:readline';
import { toLine } from '@boxcar/host/base';
import type { Context } from '../context.js';
import { wrongUsage } from './usage.js';

/**
 * Asks before something that cannot be taken back. `--yes` answers in advance; where nobody can be asked it must.
 *
 * @returns False when the answer is no, or none comes: the input has ended.
 * @throws KernelError `bad_request` without a terminal and without `--yes`.
 */
export async function confirm(
  context: Context,
  question: string,
  { yes = false }: { readonly yes?: boolean | undefined },
): Promise<boolean> {
  if (yes) return true;
  if (context.isJson || process.stdin.isTTY !== true)
    throw wrongUsage(`${question} There is nobody to ask here: give --yes`, 'yes');
  const terminal = createInterface({ input: process.stdin, output: process.stderr });
  // At a terminal in raw mode Ctrl-C is a key: to the process it is a signal all the same.
  terminal.on('SIGINT', () => process.kill(process.pid, 'SIGINT'));
  const answer = await new Promise<string>((resolve) => {
    terminal.once('close', () => resolve(''));
    terminal.question(`${toLine(question)} [y/N] `, resolve);
  });
  terminal.close();
  return /^y(es)?$/i.test(answer.trim());
}
