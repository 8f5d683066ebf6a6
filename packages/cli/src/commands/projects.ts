import { type ProjectLimits, projectLimitsSchema, safeParse, toBadRequest } from '@boxcar/kernel';
import { findProjectByRef, listProjects, type ProjectLine, setProjectLimits } from '@boxcar/store';
import type { Command } from 'commander';
import { EXIT, helpOf, type Run } from '../command.js';
import type { Context } from '../context.js';
import { describeLimits, readSetting } from '../project-settings.js';
import { openReader } from '../stack.js';
import { formatCount, formatFields, formatTable } from '../text.js';
import { usage, wrongUsage } from '../usage.js';

const describe = (projects: readonly ProjectLine[]): string =>
  formatTable(
    [
      { title: 'project', max: 24 },
      { title: 'active', align: 'right' },
      { title: 'suspended', align: 'right' },
      { title: 'limits' },
    ],
    projects.map(({ name, active, suspended, limits }) => [
      name,
      formatCount(active),
      formatCount(suspended),
      describeLimits(limits),
    ]),
  );

/** `boxcar projects ls`. */
async function runList(context: Context): Promise<number> {
  await using reader = await openReader(context.config, context.log('warn'));
  const projects = await listProjects(reader.pool);
  context.answer({ projects }, () => describe(projects));
  return EXIT.success;
}

interface SetFlags {
  readonly maxConcurrent?: string;
  readonly maxDepth?: string;
  readonly maxFanOut?: string;
  readonly runBudget?: string;
  readonly prices?: string;
}

type Wanted = { readonly [K in keyof ProjectLimits]: ProjectLimits[K] | null };

/** A number, or `none`, which removes the limit. */
const readLimit = (text: string): unknown =>
  text === 'none' ? undefined : /^\d+$/.test(text) ? Number(text) : text;

async function parseLimits(flags: SetFlags): Promise<Wanted> {
  const numbers = Object.entries({
    max_concurrent: flags.maxConcurrent,
    max_depth: flags.maxDepth,
    max_fan_out: flags.maxFanOut,
  }).flatMap(([name, text]) => (text === undefined ? [] : [[name, readLimit(text)] as const]));
  const given: (readonly [name: string, value: unknown])[] = [...numbers];
  for (const [name, text] of Object.entries({ run_budget: flags.runBudget, prices: flags.prices }))
    if (text !== undefined) given.push([name, await readSetting(text, `limits.${name}`)]);
  if (given.length === 0)
    throw wrongUsage(
      'give a limit to set: --max-concurrent, --max-depth, --max-fan-out, --run-budget or --prices',
      'limits',
    );
  const parsed = safeParse(projectLimitsSchema, Object.fromEntries(given));
  if (!parsed.success) throw usage(toBadRequest(parsed.error, 'limits'));
  return Object.fromEntries(Object.entries(parsed.data).map(([name, value]) => [name, value ?? null]));
}

/** `boxcar projects set`. */
async function runSet(context: Context, ref: string, flags: SetFlags): Promise<number> {
  const wanted = await parseLimits(flags);
  await using reader = await openReader(context.config, context.log('warn'));
  const { id, name } = await findProjectByRef(reader.pool, ref);
  const limits = await setProjectLimits(reader.pool, id, wanted);
  context.answer({ id, name, limits }, () =>
    formatFields([
      ['project', name],
      ['limits', describeLimits(limits) || 'none'],
      ...Object.entries(limits.prices ?? {}).map(([model, price]): [string, string] => [
        `price ${model}`,
        JSON.stringify(price),
      ]),
    ]),
  );
  return EXIT.success;
}

export function addProjects(program: Command, run: Run): void {
  const projects = program
    .command('projects')
    .addHelpText(
      'after',
      helpOf({ examples: ['boxcar projects ls', 'boxcar projects set default --max-concurrent 20'] }),
    );
  projects
    .command('ls')
    .description('Lists the projects with their turns under way and their limits.')
    .addHelpText('after', helpOf({ examples: ['boxcar projects ls', 'boxcar projects ls --json'] }))
    .action(() => run((context) => runList(context)));
  projects
    .command('set')
    .description('Sets limits of a project; what is not named stays.')
    .argument('<project>', 'project, by id or name')
    .option('--max-concurrent <n>', 'turns that may be dispatched or running at once; none = no limit')
    .option('--max-depth <n>', 'how deep a tree of turns may become; none = the default, 20')
    .option('--max-fan-out <n>', 'how many turns one fork_join may make; none = the default, 1000')
    .option(
      '--run-budget <yaml>',
      'limits of each run from outside that gives none; YAML, JSON or @file; none = no limits',
    )
    .option(
      '--prices <yaml>',
      'prices by model, before all others; YAML, JSON or @file; none = none of its own',
    )
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'A budget has tokens, cost_usd, turns, steps, depth, fan_out and seconds; a price has input and output, in millionths of a dollar for a million tokens. Each replaces what was set before; runs that have begun keep their budget, and workers their prices until they are restarted. New turns begin while fewer than --max-concurrent are under way. A turn that comes back from a wait is not held up: it has begun.',
        examples: [
          'boxcar projects set default --max-concurrent 20',
          'boxcar projects set default --max-concurrent none --max-depth 5',
          "boxcar projects set default --run-budget '{tokens: 200000, cost_usd: 2}'",
          'boxcar projects set default --prices @prices.yaml',
        ],
      }),
    )
    .action((ref: string, flags: SetFlags) => run((context) => runSet(context, ref, flags)));
}
