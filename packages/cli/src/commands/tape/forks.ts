/** `boxcar tape fork|forks|merge`. */

import { toPlain } from '@boxcar/host/base';
import { NOTIFY_PARENT } from '@boxcar/kernel';
import type { ForkSummary } from '@boxcar/runtime';
import type { Command } from 'commander';
import { EXIT, helpOf, type Run, same } from '../../command.js';
import type { Context } from '../../context.js';
import { wrongUsage } from '../../input/usage.js';
import { onTape, PROJECT, TAPE, type TapeFlags } from './on-tape.js';

interface ForkFlags extends TapeFlags {
  readonly session?: string;
  readonly fromAnchor?: string;
  readonly nextSteps?: string;
  readonly contextSummary?: string;
  readonly notifyParent?: boolean;
  readonly profile?: string;
}

/** Flags that apply only to sessions. */
const OF_SESSIONS = ['fromAnchor', 'nextSteps', 'contextSummary', 'notifyParent', 'profile'] as const;

const toFlag = (name: string): string =>
  `--${name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;

/** `boxcar tape fork`. */
async function runFork(context: Context, ref: string, flags: ForkFlags): Promise<number> {
  const stray =
    flags.session === undefined ? OF_SESSIONS.find((name) => flags[name] !== undefined) : undefined;
  if (stray !== undefined) throw wrongUsage(`${toFlag(stray)}: goes with --session`, stray);
  return onTape(context, ref, flags, async ({ tape, title }) => {
    const { session, fromAnchor, nextSteps, contextSummary, notifyParent, profile } = flags;
    if (session === undefined) {
      const fork = await tape.forkTape();
      const { boxId } = fork.tape;
      context.answer({ fork_id: fork.id, box_id: boxId }, () => `Forked: ${fork.id}`);
      context.note(
        `append to it by its box; then: boxcar tape merge ${toPlain(title)} ${fork.id}, or with --discard`,
      );
      return EXIT.success;
    }
    const hasIntention = [nextSteps, contextSummary].some((text) => text !== undefined && text.trim() !== '');
    const made = await tape.forkSession(session, {
      fromAnchor,
      ...(hasIntention
        ? { intention: { next_steps: nextSteps ?? '', context_summary: contextSummary ?? '' } }
        : {}),
      ...(notifyParent === true ? { triggerOnComplete: NOTIFY_PARENT } : {}),
      profile,
    });
    const answer = { session: made.name, agent_id: made.agentId, box_id: made.tape.boxId };
    context.answer(answer, () => `Forked session: ${toPlain(made.name)} (agent ${made.agentId})`);
    return EXIT.success;
  });
}

export function addTapeFork(group: Command, run: Run): void {
  group
    .command('fork')
    .description('Forks a tape: for a later merge, or as a session with its own agent.')
    .argument(...TAPE)
    .option('--session <name>', 'name of the session, its tape and its agent')
    .option('--from-anchor <name>', 'anchor at which its first views begin')
    .option('--next-steps <text>', 'the next steps', same)
    .option('--context-summary <text>', 'context for the target', same)
    .option('--notify-parent', 'report the ends of its turns on this tape')
    .option('--profile <name>', "profile of its agent; default: the profile of this tape's agent")
    .option(...PROJECT)
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'The cost of a fork does not depend on the length of the tape, and the fork stays readable whatever happens to the tape.',
        examples: [
          'boxcar tape fork writer-1',
          'boxcar tape fork writer-1 --session security-123 --from-anchor phase-1 \\',
          '      --next-steps "Review auth.py" --notify-parent',
        ],
      }),
    )
    .action((ref: string, flags: ForkFlags) => run((context) => runFork(context, ref, flags)));
}

const STATUSES = ['open', 'merged', 'discarded'] as const;

interface ForksFlags extends TapeFlags {
  readonly status?: string;
}

const forkLine = ({ fork_id, status, created_at, turn_id }: ForkSummary): string =>
  `${fork_id}  ${status.padEnd(9)}  ${created_at}${turn_id === null ? '' : `  for turn ${turn_id}`}`;

/** `boxcar tape forks`. */
async function runForks(context: Context, ref: string, flags: ForksFlags): Promise<number> {
  const status = STATUSES.find((one) => one === flags.status);
  if (flags.status !== undefined && status === undefined)
    throw wrongUsage(`--status: must be ${STATUSES.join(', ')}`, 'status');
  return onTape(context, ref, flags, async ({ tape }) => {
    const forks = await tape.forks({ status });
    context.answer({ forks }, () => (forks.length === 0 ? 'no forks' : forks.map(forkLine).join('\n')));
    return EXIT.success;
  });
}

export function addTapeForks(group: Command, run: Run): void {
  group
    .command('forks')
    .description('Lists the forks of a tape, oldest first.')
    .argument(...TAPE)
    .option('--status <status>', STATUSES.join(', '))
    .option(...PROJECT)
    .addHelpText('after', helpOf({ examples: ['boxcar tape forks writer-1 --status open'] }))
    .action((ref: string, flags: ForksFlags) => run((context) => runForks(context, ref, flags)));
}

interface MergeFlags extends TapeFlags {
  readonly discard?: boolean;
}

/** `boxcar tape merge`. */
const runMerge = (context: Context, ref: string, forkId: string, flags: MergeFlags): Promise<number> =>
  onTape(context, ref, flags, async ({ tape }) => {
    const fork = await tape.openFork(forkId);
    const receipt = flags.discard === true ? await fork.discard() : await fork.merge();
    context.answer({ ...receipt }, () =>
      receipt.status === 'discarded'
        ? `Discarded: ${receipt.fork}`
        : `Merged: ${receipt.merged} ${receipt.merged === 1 ? 'entry' : 'entries'}${receipt.replaced ? ', in the place of the tape' : ''}`,
    );
    return EXIT.success;
  });

export function addTapeMerge(group: Command, run: Run): void {
  group
    .command('merge')
    .description('Merges a fork into its tape once; a second merge prints the first receipt.')
    .argument(...TAPE)
    .argument('<fork>', 'its id, as `tape fork` and `tape forks` print it')
    .option('--discard', 'end the fork without a merge')
    .option(...PROJECT)
    .addHelpText(
      'after',
      helpOf({
        remarks:
          "The merge is refused (tape_busy) while a turn of the tape's agent is queued or active; the fork stays open.",
        examples: ['boxcar tape merge writer-1 0199c6a0-0000-7000-8000-000000000000'],
      }),
    )
    .action((ref: string, forkId: string, flags: MergeFlags) =>
      run((context) => runMerge(context, ref, forkId, flags)),
    );
}
