import { settingSchemas } from '@boxcar/host/config';
import { safeParse, toBadRequest } from '@boxcar/kernel';
import {
  findProjectByRef,
  type KeptByPurge,
  type KeptTape,
  type PurgeReport,
  purgeRuns,
  purgeTapes,
  readClock,
  type TapePurgeReport,
} from '@boxcar/store';
import type { Command } from 'commander';
import { EXIT, helpOf, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { confirm } from '../../input/confirm.js';
import { usage } from '../../input/usage.js';
import { LONG_STATEMENT_MS, openReader } from '../../reader.js';
import { countOf, formatCount } from '../../text/text.js';

interface PurgeFlags {
  readonly olderThan: string;
  readonly tapes?: boolean;
  readonly project?: string;
  readonly dryRun?: boolean;
  readonly yes?: boolean;
}

const SHOWN_KEPT = 20;

const WORDS: Readonly<Record<KeptByPurge['cause'], string>> = {
  unfinished: 'has turns that have not ended',
  in_use: 'an agent of it was used meanwhile, see',
  purging: 'another purge has taken it over',
  segment: 'cards of it were packed into box',
  fork: 'a tape of it was forked as box',
  grant: 'a box of it may be read by agent',
  agent: 'an agent of it is at work in run',
  many_runs: 'an agent of it has more runs than one purge looks at, among them run',
  owner: 'an agent of it owns or became agent',
  maker: 'an agent of it made box',
  card: 'a card of its tapes is listed in box',
  batch: 'a turn of it was joined by the batch',
  context: 'a box of it is used by turn',
  entry: 'younger entries are on its tape',
  reset: 'a younger reset was made of its tape',
  open_fork: 'a younger fork is open of its tape',
  turn: 'it is the tape of turn',
  session: 'it is the first tape of the session that now belongs to',
  incarnation: 'an earlier incarnation of it stays:',
};

/** The wording for a tape that is kept by itself, where it differs. */
const TAPE_WORDS: Readonly<Partial<Record<KeptByPurge['cause'], string>>> = {
  in_use: 'it was used meanwhile, see',
  segment: 'cards of it were packed into box',
  fork: 'it was forked as box',
  grant: 'it may be read by agent',
  card: 'a card of it is listed in box',
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
  return withKept(
    head,
    kept.map(({ run_id, cause, holder }) => ({ id: run_id, why: WORDS[cause], holder })),
  );
}

function describeTapes({ removed, kept }: TapePurgeReport, isDryRun: boolean): string {
  const tapes = countOf(removed.tapes, 'tape');
  const head = isDryRun ? `would remove ${tapes}` : `removed ${tapes}: ${countOf(removed.cards, 'card')}`;
  const why = (cause: KeptTape['cause']): string => TAPE_WORDS[cause] ?? WORDS[cause];
  return withKept(
    head,
    kept.map(({ tape_id, cause, holder }) => ({ id: tape_id, why: why(cause), holder })),
  );
}

interface Kept {
  readonly id: string;
  readonly why: string;
  readonly holder: string | null;
}

function withKept(head: string, kept: readonly Kept[]): string {
  if (kept.length === 0) return head;
  const lines = kept
    .slice(0, SHOWN_KEPT)
    .flatMap(({ id, why, holder }) => [
      `kept   ${id}`,
      `       ${why}${holder === null ? '' : ` ${holder}`}`,
    ]);
  const more = kept.length - SHOWN_KEPT;
  return [head, '', ...lines, ...(more > 0 ? [`… ${formatCount(more)} more; --json shows all`] : [])].join(
    '\n',
  );
}

/** @throws KernelError `bad_request`. @returns Milliseconds. */
function parseAge(text: string): number {
  const parsed = safeParse(settingSchemas.age, text);
  if (!parsed.success) throw usage(toBadRequest(parsed.error, 'older-than'));
  return parsed.data;
}

/** `boxcar purge`: deletes finished runs as a whole, or tapes without runs. */
async function runPurge(context: Context, flags: PurgeFlags): Promise<number> {
  const ageMs = parseAge(flags.olderThan);
  await using reader = await openReader(context.config, context.log('warn'), {
    statementMs: LONG_STATEMENT_MS,
  });
  const { pool } = reader;
  const project = flags.project === undefined ? undefined : await findProjectByRef(pool, flags.project);
  const before = new Date((await readClock(pool)).getTime() - ageMs);
  const isDryRun = flags.dryRun === true;
  const isTapes = flags.tapes === true;
  const where = project === undefined ? 'of all projects' : `of project ${project.name}`;
  const what = isTapes
    ? `the archived, discarded and imported tapes ${where} that were left before ${before.toISOString()}`
    : `the runs ${where} that ended before ${before.toISOString()}`;
  if (!isDryRun && !(await confirm(context, `Remove ${what} for good?`, flags))) return EXIT.negative;
  // A command that listens for the abort is not ended by a signal: the current batch is completed.
  context.stop.addEventListener('abort', () => context.note('stopping after this batch'), { once: true });
  const options = { before, projectId: project?.id, isDryRun, signal: context.stop };
  const head = { dry_run: isDryRun, before };
  if (isTapes) {
    const report = await purgeTapes(pool, {
      ...options,
      onProgress: ({ boxes }) => {
        if (!isDryRun) context.note(`${countOf(boxes, 'tape')} removed`);
      },
    });
    const { removed, kept, isStopped } = report;
    context.answer({ ...head, removed, kept, stopped: isStopped }, () => describeTapes(report, isDryRun));
    return isStopped ? EXIT.interrupted : EXIT.success;
  }
  const report = await purgeRuns(pool, {
    ...options,
    onProgress: ({ runs }) => {
      if (!isDryRun) context.note(`${countOf(runs, 'run')} removed`);
    },
  });
  const { removed, kept, isStopped } = report;
  context.answer({ ...head, removed, kept, stopped: isStopped }, () => describe(report, isDryRun));
  return isStopped ? EXIT.interrupted : EXIT.success;
}

export function addPurge(program: Command, run: Run): void {
  program
    .command('purge')
    .requiredOption('--older-than <age>', 'minimum age of the ended runs: 12h, 30d, 8w')
    .option(
      '--tapes',
      'archived incarnations, discarded forks and imported tapes, unless a turn that exists has them as its tape',
    )
    .option('--project <name>', 'of this project only, by id or name (all projects)')
    .option('--dry-run', 'show what would be deleted; write nothing')
    .option('--yes', 'do not ask')
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'A run is deleted as a whole or kept as a whole. It is kept while something else that is kept refers to it; the output names this. You can interrupt the command at any time, and workers can run meanwhile.\n\nThe command needs the role that migrates, or a role with boxcar.purge_boxes.',
        examples: [
          'boxcar purge --older-than 30d --dry-run',
          'boxcar purge --older-than 30d --project default --yes --json',
          'boxcar purge --tapes --older-than 90d --dry-run',
        ],
        negative: 'you declined',
      }),
    )
    .action((flags: PurgeFlags) => run((context) => runPurge(context, flags)));
}
