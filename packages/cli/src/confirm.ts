import { createInterface } from 'node:readline/promises';
import { KernelError } from '@boxcar/kernel';
import type { Context } from './context.js';

/**
 * Asks before something that cannot be taken back. `--yes` answers in advance; where nobody can be asked it must.
 *
 * @returns False when the answer is no.
 * @throws KernelError `bad_request` without a terminal and without `--yes`.
 */
export async function confirm(
  context: Context,
  question: string,
  { yes = false }: { readonly yes?: boolean | undefined },
): Promise<boolean> {
  if (yes) return true;
  if (context.isJson || process.stdin.isTTY !== true)
    throw new KernelError('bad_request', {
      message: `${question} There is nobody to ask here: give --yes.`,
      details: { field: 'yes' },
    });
  const terminal = createInterface({ input: process.stdin, output: process.stderr });
  try {
    return /^y(es)?$/i.test((await terminal.question(`${question} [y/N] `, { signal: context.stop })).trim());
  } finally {
    terminal.close();
  }
}
