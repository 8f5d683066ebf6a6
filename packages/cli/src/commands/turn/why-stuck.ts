import { toLine } from '@boxcar/host/base';
import { KernelError } from '@boxcar/kernel';
import { type DescribedLink, type DescribedWait, describeWait } from '@boxcar/kernel/words';
import { findTurnId } from '@boxcar/store';
import { loadWaitFacts } from '@boxcar/store/report';
import type { Command } from 'commander';
import { EXIT, helpOf, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { readId } from '../../input/id-argument.js';
import { openReader } from '../../reader.js';
import { countOf, formatCount, formatDuration, wrap } from '../../text/text.js';

const WIDTH = 80;
/** The chains of a wide tree resemble each other, so a few are enough. */
const SHOWN_LINKS = 40;

/** The format of every time here: in full, with its distance from now. */
function describeTime(time: string, at: string): string {
  const ms = Date.parse(time) - Date.parse(at);
  return `${time}, ${ms > 0 ? `in ${formatDuration(ms)}` : `${formatDuration(-ms)} ago`}`;
}

const namesOf = ({ agent, profile }: DescribedLink): string =>
  agent === null ? '' : ` ${toLine(agent)} (${profile})`;

function describeLink(link: DescribedLink, at: string): string[] {
  const indent = '  '.repeat(Math.min(link.level, 10));
  const lead = `${link.is_live ? ' ' : '!'} ${indent}`;
  const under = `    ${indent}`;
  const times = [
    ...(link.since === null ? [] : [`since ${describeTime(link.since, at)}`]),
    ...(link.until === null ? [] : [`until ${describeTime(link.until, at)}`]),
    ...(link.tool_call_id === undefined ? [] : [`call ${link.tool_call_id} of ${toLine(link.tool ?? '?')}`]),
  ];
  const text = [toLine(link.what), ...times, ...(link.next === null ? [] : [`→ ${link.next}`])];
  return [
    ...wrap(`${link.turn_id}${namesOf(link)}`, WIDTH - under.length).map(
      (part, index) => (index === 0 ? lead : under) + part,
    ),
    ...text.flatMap((line) => wrap(line, WIDTH - under.length).map((part) => under + part)),
  ];
}

const VERDICTS: Readonly<Record<'ended' | 'live' | 'stuck', string>> = {
  ended: 'It has ended.',
  live: 'Every chain ends in something that will move it.',
  stuck: 'Nothing that exists will move what is marked with !.',
};

function describe(report: DescribedWait): string {
  // For a stuck turn, only the stuck links and the paths to them are of interest.
  const order = report.is_live ? report.links : pathsToStuck(report.links);
  const shown = order.slice(0, SHOWN_LINKS);
  const rest = report.links.length - shown.length;
  const verdict = report.links.every(({ kind }) => kind === 'ended')
    ? VERDICTS.ended
    : report.is_live
      ? VERDICTS.live
      : VERDICTS.stuck;
  return [
    `turn ${report.turn_id} is ${report.status}`,
    '',
    ...shown.flatMap((link) => describeLink(link, report.at)),
    ...(rest > 0
      ? [`  … ${formatCount(rest)} more of ${countOf(report.links.length, 'link')}; --json shows all`]
      : []),
    '',
    verdict,
  ].join('\n');
}

/** The links that are not live, and the links that lead to them. */
function pathsToStuck(links: readonly DescribedLink[]): readonly DescribedLink[] {
  const kept = new Set<DescribedLink>();
  const above: DescribedLink[] = [];
  for (const link of links) {
    above.length = Math.min(above.length, link.level);
    above[link.level] = link;
    if (link.is_live) continue;
    for (const one of above) if (one !== undefined) kept.add(one);
  }
  return links.filter((link) => kept.has(link));
}

/** `boxcar why-stuck`: the chain of waits of a turn, down to the event that will resume it. */
async function askWhyStuck(context: Context, ref: string, project: string | undefined): Promise<number> {
  await using reader = await openReader(context.config, context.log('warn'));
  const { turnId } = await findTurnId(reader.pool, ref, project ?? context.config.project);
  const report = describeWait(await loadWaitFacts(reader.pool, turnId));
  // The turn existed a moment ago.
  if (report === undefined)
    throw new KernelError('not_found', { message: `No turn '${ref}'.`, details: { turn_id: turnId } });
  context.answer(report, () => describe(report));
  return report.is_live ? EXIT.success : EXIT.negative;
}

export function addWhyStuck(program: Command, run: Run): void {
  program
    .command('why-stuck')
    .argument('<turn>', 'its id, or at least the first 8 digits', readId)
    .option('--project <name>', 'project, by id or name')
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'Each link says who waits, for what, since when, until when at the latest, and what to do. A link with ! is one that nothing will move but its deadline.',
        examples: [
          'boxcar why-stuck 0198c1f2-7d3e',
          "boxcar why-stuck 0198c1f2 --json | jq '.links[] | select(.is_live | not)'",
        ],
        negative: 'the turn waits for something that will not happen',
      }),
    )
    .action((turn: string, flags: { project?: string }) =>
      run((context) => askWhyStuck(context, turn, flags.project)),
    );
}
