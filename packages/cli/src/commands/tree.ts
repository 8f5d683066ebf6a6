import { setTimeout as delay } from 'node:timers/promises';
import { isFinal, type TurnStatus } from '@boxcar/kernel';
import { findTreeRoots, loadBudgets, loadTree, type TurnTree } from '@boxcar/store';
import type { Command } from 'commander';
import { EXIT, helpOf, type Run } from '../command.js';
import type { Context } from '../context.js';
import { Screen } from '../screen.js';
import { openReader } from '../stack.js';
import { type BudgetedTree, formatTree } from '../tree-text.js';

const POLL_MS = 500;
/** Of the time at most one part in so many goes into looking. */
const LOOK_SHARE = 10;
const PIPE_WIDTH = 120;

interface TreeFlags {
  readonly project?: string;
  readonly watch?: boolean;
  readonly ids?: boolean;
}

async function loadBudgeted(...args: Parameters<typeof loadTree>): Promise<BudgetedTree> {
  const tree = await loadTree(...args);
  return { ...tree, budgets: await loadBudgets(args[0], tree.run_id) };
}

function exitOf(tree: TurnTree): number {
  const statuses = Object.keys(tree.roots.by_status) as TurnStatus[];
  return statuses.every(isFinal) && statuses.some((status) => status !== 'success')
    ? EXIT.negative
    : EXIT.success;
}

/** What of a tree changes while nothing happens: the clock. */
const stateOf = (tree: TurnTree): string =>
  JSON.stringify(tree, (key, value: unknown) => (key === 'at' || key === 'duration_ms' ? undefined : value));

/** Shows each look as it comes: redrawn on a terminal, else only what has changed. */
function createView(context: Context, flags: TreeFlags): Disposable & { show(tree: BudgetedTree): void } {
  const withIds = flags.ids === true;
  if (!context.isJson && process.stdout.isTTY) {
    const screen = new Screen();
    return {
      show: (tree) => {
        const height = screen.rows - 1;
        screen.draw(formatTree(tree, { width: screen.columns, height, withIds }));
      },
      [Symbol.dispose]: () => screen[Symbol.dispose](),
    };
  }
  let last = '';
  return {
    show: (tree) => {
      const state = stateOf(tree);
      if (state === last) return;
      const lead = last === '' ? '' : '\n';
      last = state;
      context.answer(tree, () => lead + formatTree(tree, { width: PIPE_WIDTH, withIds }).join('\n'));
    },
    [Symbol.dispose]: () => undefined,
  };
}

/** `boxcar tree`: the turns below a turn, once or until all have ended. */
async function showTree(context: Context, ref: string, flags: TreeFlags): Promise<number> {
  const isTerminal = process.stdout.isTTY && !context.isJson;
  await using reader = await openReader(context.config, context.log('warn'));
  const roots = await findTreeRoots(reader.pool, ref, { project: flags.project ?? context.config.project });
  if (!(flags.watch ?? isTerminal)) {
    const tree = await loadBudgeted(reader.pool, roots);
    const width = isTerminal ? process.stdout.columns : PIPE_WIDTH;
    context.answer(tree, () => formatTree(tree, { width, withIds: flags.ids === true }).join('\n'));
    return exitOf(tree);
  }
  using view = createView(context, flags);
  for (;;) {
    const startedAt = performance.now();
    // Of each parent so many children that two of them leave room for each other.
    const siblings = isTerminal ? Math.max(3, Math.floor((process.stdout.rows - 4) / 2)) : undefined;
    const tree = await loadBudgeted(reader.pool, roots, siblings === undefined ? {} : { siblings });
    view.show(tree);
    if (tree.totals.open === 0) return exitOf(tree);
    const pauseMs = Math.max(POLL_MS, (performance.now() - startedAt) * LOOK_SHARE);
    await delay(pauseMs, undefined, { signal: context.stop }).catch(() => undefined);
    if (context.stop.aborted) return EXIT.interrupted;
  }
}

export function addTree(program: Command, run: Run): void {
  program
    .command('tree')
    .argument('<run>', 'id of a run or of a turn, or at least the first 8 digits of it')
    .option('--watch', 'until all of it has ended (on a terminal without being asked)')
    .option('--no-watch', 'once')
    .option('--ids', 'the ids of the turns in place of their figures')
    .option('--project <name>', 'project, by id or name')
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'A run is shown with all its roots. What is under way comes first; of many children a few are listed and the others counted. With --json one object, with --watch one line of JSON per change.',
        examples: [
          'boxcar tree 0198c1f2-7d3e',
          'boxcar tree 0198c1f2-7d3e --ids --no-watch',
          "boxcar tree 0198c1f2-7d3e --watch --json | jq '.totals.by_status'",
        ],
        negative: 'the turn, or every root of the run, has ended, and not all in success',
      }),
    )
    .action((ref: string, flags: TreeFlags) => run((context) => showTree(context, ref, flags)));
}
