import { toBadRequest } from '@boxcar/kernel';
import { findProjectByRef, type KeptByPurge, type PurgeReport, purgeRuns, readClock } from '@boxcar/store';
import type { Command } from 'commander';
import { EXIT, helpOf, type Run } from '../command.js';
import { settingSchemas } from '../config.js';
import { confirm } from '../confirm.js';
import type { Context } from '../context.js';
import { LONG_STATEMENT_MS, openReader } from '../stack.js';
import { countOf, formatCount } from '../text.js';

interface PurgeFlags {
  readonly olderThan: string;
  readonly project?: string;
  readonly dryRun?: boolean;
  readonly yes?: boolean;
}

const SHOWN_KEPT = 20;

const WORDS: Readonly<Record<KeptByPurge['cause'], string>> = {
  unfinished: 'has turns that have not ended',
  in_use: 'an agent of it got a turn meanwhile',
  segment: 'cards of it were packed into box',
  fork: 'a tape of it was forked as box',
  grant: 'a box of it may be read by agent',
  agent: 'an agent of it is at work in run',
  owner: 'an agent of it owns or became agent',
  card: 'a card of its tapes is listed in box',
  batch: 'a turn of it was joined by the batch',
  context: 'a box of it is used by turn',
  entry: 'younger entries are on its tape',
  reset: 'a younger reset was made of its tape',
  open_fork: 'a younger fork is open of its tape',
};

const boxesOf = (count: number): string => `${formatCount(count)} ${count === 1 ? 'box' : 'boxes'}`;

function describe(report: PurgeReport, isDryRun: boolean): string {
  const { removed, kept } = report;
  const parts = isDryRun
    ? [countOf(removed.agents, 'agent'), boxesOf(removed.boxes)]
    : [
        countOf(removed.turns, 'turn'),
        countOf(removed.agents, 'agent'),
        boxesOf(removed.boxes),
        countOf(removed.cards, 'card'),
      ];
  const head = `${isDryRun ? 'would remove' : 'removed'} ${countOf(removed.runs, 'run')}: ${parts.join(', ')}`;
  if (kept.length === 0) return head;
  const lines = kept
    .slice(0, SHOWN_KEPT)
    .flatMap(({ run_id, cause, holder }) => [
      `kept   ${run_id}`,
      `       ${WORDS[cause]}${holder === null ? '' : ` ${holder}`}`,
    ]);
  const more = kept.length - SHOWN_KEPT;
  return [head, '', ...lines, ...(more > 0 ? [`… ${formatCount(more)} more; --json shows all`] : [])].join(
    '\n',
  );
}

/** @throws KernelError `bad_request`. @returns Milliseconds. */
function parseAge(text: string): number {
  const parsed = settingSchemas.age.safeParse(text);
  if (!parsed.success) throw toBadRequest(parsed.error, 'older-than');
  return parsed.data;
}

/** `boxcar purge`: finished runs, whole. */
async function runPurge(context: Context, flags: PurgeFlags): Promise<number> {
  const ageMs = parseAge(flags.olderThan);
  await using reader = await openReader(context.config, context.log('warn'), {
    statementMs: LONG_STATEMENT_MS,
  });
  const { pool } = reader;
  const project = flags.project === undefined ? undefined : await findProjectByRef(pool, flags.project);
  const before = new Date((await readClock(pool)).getTime() - ageMs);
  const isDryRun = flags.dryRun === true;
  const what = `the runs ${project === undefined ? 'of all projects' : `of project ${project.name}`} that ended before ${before.toISOString()}`;
  if (!isDryRun && !(await confirm(context, `Remove ${what} for good?`, flags))) return EXIT.negative;
  // Whoever listens is not ended by a signal: what is under way is brought to its end.
  context.stop.addEventListener('abort', () => context.note('stopping after this batch'), { once: true });
  const report = await purgeRuns(pool, {
    before,
    projectId: project?.id,
    isDryRun,
    signal: context.stop,
    onProgress: ({ runs }) => {
      if (!isDryRun) context.note(`${countOf(runs, 'run')} removed`);
    },
  });
  context.answer(
    { dry_run: isDryRun, before, removed: report.removed, kept: report.kept, stopped: report.isStopped },
    () => describe(report, isDryRun),
  );
  return report.isStopped ? EXIT.interrupted : EXIT.success;
}

export function addPurge(program: Command, run: Run): void {
  program
    .command('purge')
    .description('Remove what finished runs have left behind: turns, agents, boxes and cards.')
    .requiredOption('--older-than <age>', 'runs that ended so long ago: 12h, 30d, 8w')
    .option('--project <name>', 'of this project only, by id or name (all projects)')
    .option('--dry-run', 'say what would go; nothing is written')
    .option('--yes', 'do not ask')
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'A run goes whole or stays whole. It stays while something that stays refers to it, and the answer says what. It may be interrupted at any moment, and workers may run beside it.\n\nIt needs the role that migrates, or one that was granted boxcar.purge_boxes.',
        examples: [
          'boxcar purge --older-than 30d --dry-run',
          'boxcar purge --older-than 30d --project default --yes --json',
        ],
      }),
    )
    .action((flags: PurgeFlags) => run((context) => runPurge(context, flags)));
}
