import { type ProjectLimits, projectLimitsSchema, safeParse, toBadRequest } from '@boxcar/kernel';
import { archiveProject, createProject, getProject } from '@boxcar/runtime';
import { findProjectByRef, type ProjectReport, setProjectLimits } from '@boxcar/store';
import type { Command } from 'commander';
import { EXIT, helpOf, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { describeLimits, readSetting } from '../../input/project-settings.js';
import { usage, wrongUsage } from '../../input/usage.js';
import { openReader } from '../../reader.js';
import { formatCount, formatFields } from '../../text/text.js';
import { addListTo } from '../list/list.js';

/** A project as text for people. */
const describe = (project: ProjectReport): string =>
  formatFields([
    ['project', project.name],
    ['id', project.project_id],
    ['made', project.created_at.toISOString()],
    ...(project.archived_at === null
      ? []
      : [['archived', `${project.archived_at.toISOString()}: takes no new submissions`] as const]),
    [
      'turns',
      `${formatCount(project.active)} active, ${formatCount(project.queued)} queued, ${formatCount(project.suspended)} suspended`,
    ],
    ['profiles', formatCount(project.profiles)],
    ['limits', describeLimits(project.limits) || 'none'],
  ]);

/** `boxcar projects create`. */
async function runCreate(context: Context, name: string, flags: SetFlags): Promise<number> {
  const limits = isEmpty(flags) ? undefined : await parseLimits(flags);
  await using reader = await openReader(context.config, context.log('warn'));
  const given = limits && Object.fromEntries(Object.entries(limits).filter(([, value]) => value !== null));
  const { outcome, ...project } = await createProject(reader.pool, { name, limits: given });
  context.answer({ ...project, outcome }, () => describe(project));
  if (outcome === 'unchanged') context.note('a project of this name exists: nothing was changed');
  return EXIT.success;
}

/** `boxcar projects show`. */
async function runShow(context: Context, ref: string): Promise<number> {
  await using reader = await openReader(context.config, context.log('warn'));
  const project = await getProject(reader.pool, ref);
  context.answer(project, () => describe(project));
  return EXIT.success;
}

/** `boxcar projects archive`. */
async function runArchive(
  context: Context,
  ref: string,
  flags: { readonly undo?: boolean },
): Promise<number> {
  await using reader = await openReader(context.config, context.log('warn'));
  const project = await archiveProject(reader.pool, ref, { isArchived: flags.undo !== true });
  context.answer(project, () => describe(project));
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

const isEmpty = (flags: SetFlags): boolean => Object.values(flags).every((value) => value === undefined);

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

/** The limits, as flags of `create` and `set`. */
const withLimits = (command: Command): Command =>
  command
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
    );

export function addProjects(program: Command, run: Run): void {
  const projects = program.command('projects').addHelpText(
    'after',
    helpOf({
      examples: [
        'boxcar projects create team-a',
        'boxcar projects ls',
        'boxcar projects set default --max-concurrent 20',
      ],
    }),
  );
  withLimits(
    projects
      .command('create')
      .description('Makes a project; if the name exists, nothing changes.')
      .argument('<name>', 'its name, 1 to 200 characters'),
  )
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'Commands and programs name it by --project, BOXCAR_PROJECT or projectId. Agents, tapes, boxes and profiles belong to one project and are not visible from another.',
        examples: ['boxcar projects create team-a', 'boxcar projects create team-b --max-concurrent 20'],
      }),
    )
    .action((name: string, flags: SetFlags) => run((context) => runCreate(context, name, flags)));
  addListTo(projects, 'projects', run);
  projects
    .command('show')
    .description('Shows a project: its turns that have not ended, and its limits.')
    .argument('<project>', 'project, by id or name')
    .addHelpText('after', helpOf({ examples: ['boxcar projects show default'] }))
    .action((ref: string) => run((context) => runShow(context, ref)));
  withLimits(
    projects
      .command('set')
      .description('Sets limits of a project; limits that are not named are kept.')
      .argument('<project>', 'project, by id or name'),
  )
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'A budget has tokens, cost_usd, turns, steps, depth, fan_out and seconds; a price has input and output, in millionths of a dollar for a million tokens. Each replaces the earlier setting; runs that have begun keep their budget, and workers their prices until they are restarted. New turns begin while fewer than --max-concurrent are under way. A turn that returns from a wait is not delayed: it has begun.',
        examples: [
          'boxcar projects set default --max-concurrent 20',
          'boxcar projects set default --max-concurrent none --max-depth 5',
          "boxcar projects set default --run-budget '{tokens: 200000, cost_usd: 2}'",
          'boxcar projects set default --prices @prices.yaml',
        ],
      }),
    )
    .action((ref: string, flags: SetFlags) => run((context) => runSet(context, ref, flags)));
  projects
    .command('archive')
    .description('Makes a project refuse new submissions; running turns continue.')
    .argument('<project>', 'project, by id or name')
    .option('--undo', 'accept submissions again')
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'Submissions from outside are then refused with project_archived. Accepted turns continue, with everything that they delegate. cancel, collect and raise_budget are still accepted, because they start nothing. Nothing is deleted; boxcar purge does that.',
        examples: ['boxcar projects archive team-a', 'boxcar projects archive team-a --undo'],
      }),
    )
    .action((ref: string, flags: { readonly undo?: boolean }) =>
      run((context) => runArchive(context, ref, flags)),
    );
}
