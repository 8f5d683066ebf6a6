import { KernelError, type ProjectLimits, projectLimitsSchema, toBadRequest } from '@boxcar/kernel';
import { findProjectByRef, listProjects, type ProjectLine, setProjectLimits } from '@boxcar/store';
import type { Command } from 'commander';
import { EXIT, helpOf, type Run } from '../command.js';
import type { Context } from '../context.js';
import { openReader } from '../stack.js';
import { formatCount, formatFields, formatTable } from '../text.js';

const limitsText = (limits: ProjectLimits): string =>
  Object.entries(limits)
    .map(([name, value]) => `${name}=${typeof value === 'object' ? JSON.stringify(value) : String(value)}`)
    .join(' ');

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
      limitsText(limits),
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
}

/** A number, or `none`, which removes the limit. */
const readLimit = (text: string): unknown =>
  text === 'none' ? undefined : /^\d+$/.test(text) ? Number(text) : text;

function parseLimits(flags: SetFlags): { readonly [K in keyof ProjectLimits]: ProjectLimits[K] | null } {
  const given = Object.entries({
    max_concurrent: flags.maxConcurrent,
    max_depth: flags.maxDepth,
    max_fan_out: flags.maxFanOut,
  }).flatMap(([name, text]) => (text === undefined ? [] : [[name, readLimit(text)] as const]));
  if (given.length === 0)
    throw new KernelError('bad_request', {
      message: 'give a limit to set: --max-concurrent, --max-depth or --max-fan-out.',
      details: { field: 'limits' },
    });
  const parsed = projectLimitsSchema.safeParse(Object.fromEntries(given));
  if (!parsed.success) throw toBadRequest(parsed.error, 'limits');
  return Object.fromEntries(Object.entries(parsed.data).map(([name, value]) => [name, value ?? null]));
}

/** `boxcar projects set`. */
async function runSet(context: Context, ref: string, flags: SetFlags): Promise<number> {
  const wanted = parseLimits(flags);
  await using reader = await openReader(context.config, context.log('warn'));
  const { id, name } = await findProjectByRef(reader.pool, ref);
  const limits = await setProjectLimits(reader.pool, id, wanted);
  context.answer({ id, name, limits }, () =>
    formatFields([
      ['project', name],
      ['limits', limitsText(limits) || 'none'],
    ]),
  );
  return EXIT.success;
}

export function addProjects(program: Command, run: Run): void {
  const projects = program.command('projects').description('Projects and their limits.');
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
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'New turns begin while fewer than --max-concurrent are under way. A turn that comes back from a wait is not held up: it has begun.',
        examples: [
          'boxcar projects set default --max-concurrent 20',
          'boxcar projects set default --max-concurrent none --max-depth 5',
        ],
      }),
    )
    .action((ref: string, flags: SetFlags) => run((context) => runSet(context, ref, flags)));
}
