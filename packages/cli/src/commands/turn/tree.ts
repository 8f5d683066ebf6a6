import { setTimeout as delay } from 'node:timers/promises';
import { isFinal, type TurnStatus } from '@boxcar/kernel';
import { findIdsNextTo, findTree, loadBudgets } from '@boxcar/store';
import { loadTree, type TurnTree } from '@boxcar/store/report';
import type { Command } from 'commander';
import { EXIT, helpOf, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { readId } from '../../input/id-argument.js';
import { openReader } from '../../reader.js';
import { Screen } from '../../text/screen.js';
import { shortIds } from '../../text/short-ids.js';
import { type BudgetedTree, formatTree } from '../../text/tree-text.js';

const POLL_MS = 500;
/** At most one part in this many of the time is spent on polling. */
const LOOK_SHARE = 10;
const PIPE_WIDTH = 120;

interface TreeFlags {
  readonly project?: string;
  readonly watch?: boolean;
  readonly ids?: boolean;
}

type Pool = Parameters<typeof loadTree>[0];

async function loadBudgeted(
  pool: Pool,
  { of, roots }: Awaited<ReturnType<typeof findTree>>,
  options: { readonly siblings?: number | undefined } = {},
): Promise<BudgetedTree> {
  const tree = await loadTree(pool, roots, {
    ...(of.kind === 'batch' ? { batchId: of.id } : {}),
    ...options,
  });
  return { of, ...tree, budgets: await loadBudgets(pool, tree.run_id) };
}

/** The shown ids, each shortened as far as it stays unique in the database. */
async function shorten(
  pool: Pool,
  tree: BudgetedTree,
  flags: TreeFlags,
): Promise<ReadonlyMap<string, string>> {
  const ids = [
    ...tree.budgets.map(({ budget_id: id }) => id),
    ...(flags.ids === true
      ? [...tree.nodes.map(({ turn_id: id }) => id), ...tree.batches.map(({ batch_id: id }) => id)]
      : []),
  ];
  return shortIds([...ids, ...(await findIdsNextTo(pool, ids))]);
}

function exitOf(tree: TurnTree): number {
  const statuses = Object.keys(tree.roots.by_status) as TurnStatus[];
  return statuses.every(isFinal) && statuses.some((status) => status !== 'success')
    ? EXIT.negative
    : EXIT.success;
}

/** The state of a tree without the clock values, which always change. */
const stateOf = (tree: TurnTree): string =>
  JSON.stringify(tree, (key, value: unknown) => (key === 'at' || key === 'duration_ms' ? undefined : value));

type Ids = ReadonlyMap<string, string>;

/** Shows each poll result: redrawn on a terminal, otherwise only when it has changed. */
function createView(
  context: Context,
  flags: TreeFlags,
): Disposable & { show(tree: BudgetedTree, ids: Ids): void } {
  const withIds = flags.ids === true;
  if (!context.isJson && process.stdout.isTTY) {
    const screen = new Screen();
    return {
      show: (tree, ids) => {
        const height = screen.rows - 1;
        screen.draw(formatTree(tree, { width: screen.columns, height, withIds, ids }));
      },
      [Symbol.dispose]: () => screen[Symbol.dispose](),
    };
  }
  let last = '';
  return {
    show: (tree, ids) => {
      const state = stateOf(tree);
      if (state === last) return;
      const lead = last === '' ? '' : '\n';
      last = state;
      context.answer(tree, () => lead + formatTree(tree, { width: PIPE_WIDTH, withIds, ids }).join('\n'));
    },
    [Symbol.dispose]: () => undefined,
  };
}

/** `boxcar tree`: the turns of a run or batch, or below a turn, shown once or until all have ended. */
async function showTree(context: Context, ref: string, flags: TreeFlags): Promise<number> {
  const isTerminal = process.stdout.isTTY && !context.isJson;
  await using reader = await openReader(context.config, context.log('warn'));
  const find = (pool: Pool) => findTree(pool, ref, { project: flags.project ?? context.config.project });
  const shortOf = (pool: Pool, tree: BudgetedTree): Promise<Ids> =>
    context.isJson ? Promise.resolve(new Map()) : shorten(pool, tree, flags);
  if (!(flags.watch ?? isTerminal)) {
    const { tree, ids } = await reader.report(async (pool) => {
      const once = await loadBudgeted(pool, await find(pool));
      return { tree: once, ids: await shortOf(pool, once) };
    });
    const width = isTerminal ? process.stdout.columns || 80 : PIPE_WIDTH;
    context.answer(tree, () => formatTree(tree, { width, withIds: flags.ids === true, ids }).join('\n'));
    return exitOf(tree);
  }
  const found = await find(reader.pool);
  using view = createView(context, flags);
  for (;;) {
    const startedAt = performance.now();
    // The number of children per parent that leaves room for two such groups.
    const siblings = isTerminal ? Math.max(3, Math.floor(((process.stdout.rows || 24) - 4) / 2)) : undefined;
    const tree = await loadBudgeted(reader.pool, found, { siblings });
    view.show(tree, await shortOf(reader.pool, tree));
    if (tree.totals.open === 0) return exitOf(tree);
    const pauseMs = Math.max(POLL_MS, (performance.now() - startedAt) * LOOK_SHARE);
    await delay(pauseMs, undefined, { signal: context.stop }).catch(() => undefined);
    if (context.stop.aborted) return EXIT.interrupted;
  }
}

export function addTree(program: Command, run: Run): void {
  program
    .command('tree')
    .argument('<run|turn|batch>', 'its id, or at least the first 8 digits', readId)
    .option('--watch', 'until everything has ended (default on a terminal)')
    .option('--no-watch', 'print once')
    .option('--ids', 'short unique ids instead of figures; --json has full ids')
    .option('--project <name>', 'project, by id or name')
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'A run is shown with all its roots, a turn with its descendants, a batch with its turns and their descendants; the first line names the run. Active turns come first; of many children, some are listed and the others counted. --json prints one object, or with --watch one line of JSON per change.',
        examples: [
          'boxcar tree 0198c1f2-7d3e',
          'boxcar tree 0198c1f2-7d3e --ids --no-watch',
          "boxcar tree 0198c1f2-7d3e --watch --json | jq '.totals.by_status'",
        ],
        negative: 'the turns at the top have ended, and not all of them were successful',
      }),
    )
    .action((ref: string, flags: TreeFlags) => run((context) => showTree(context, ref, flags)));
}
