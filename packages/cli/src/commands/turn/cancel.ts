import { errorLine } from '@boxcar/host/errors';
import { openStack } from '@boxcar/host/open';
import { type ErrorBody, isJsonObject, type JsonValue } from '@boxcar/kernel';
import { findTurnOrRun } from '@boxcar/store';
import type { Command } from 'commander';
import { helpOf, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { readId } from '../../input/id-argument.js';
import { countOf } from '../../text/text.js';

interface CancelFlags {
  readonly reason?: string;
  readonly project?: string;
}

const countTurns = (answer: JsonValue): number =>
  isJsonObject(answer) && typeof answer.turn_count === 'number' ? answer.turn_count : 0;

interface Unended {
  readonly turn_id: string;
  readonly error: ErrorBody;
  readonly next: string;
}

/** The turns that could not be ended. */
const unendedOf = (answer: JsonValue): readonly Unended[] =>
  isJsonObject(answer) && Array.isArray(answer.not_ended) ? (answer.not_ended as unknown as Unended[]) : [];

/** `boxcar cancel`: ends a turn or a run with everything below it. */
async function runCancel(context: Context, ref: string, flags: CancelFlags): Promise<number> {
  const { config } = context;
  const project = flags.project ?? config.project;
  await using stack = await openStack(config, { log: context.log('warn') });
  const found = await findTurnOrRun(stack.runtime.pool, ref, { project });
  const answer = await stack.runtime.submit(
    'cancel',
    {
      ...(found.kind === 'turn' ? { turn_id: found.id } : { run_id: found.id }),
      ...(flags.reason === undefined ? {} : { reason: flags.reason }),
    },
    { projectId: project },
  );
  const unended = unendedOf(answer);
  context.answer(answer, () =>
    [
      `canceled ${found.kind} ${found.id}: ${countOf(countTurns(answer), 'turn')} ended`,
      ...unended.map(({ turn_id: id, error, next }) => `not ended: ${id}: ${errorLine(error)}\n  ${next}`),
    ].join('\n'),
  );
  return unended.length === 0 ? 0 : 1;
}

export function addCancel(program: Command, run: Run): void {
  program
    .command('cancel')
    .argument('<turn|run>', 'id of a turn or of a run, or at least the first 8 digits', readId)
    .option('--reason <text>', 'the reason; shown to callers that wait for the turn')
    .option('--project <name>', 'project, by id or name')
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'Ended turns keep their end. A turn that has ended is refused. To end the turns that it started, pass the id of its run.',
        examples: ['boxcar cancel 0198c1f2', "boxcar cancel 0198c1f2-7d3e --reason 'wrong branch' --json"],
      }),
    )
    .action((ref: string, flags: CancelFlags) => run((context) => runCancel(context, ref, flags)));
}
