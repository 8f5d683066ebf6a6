import { openStack } from '@boxcar/host/open';
import type { JsonObject } from '@boxcar/kernel';
import { findNamed, loadBudgets, loadTurnStates } from '@boxcar/store';
import type { Command } from 'commander';
import { z } from 'zod';
import { EXIT, flag, helpOf, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { readId } from '../../input/id-argument.js';
import { wrongUsage } from '../../input/usage.js';
import { openReader } from '../../reader.js';
import { formatBudgets } from '../../text/budget-text.js';
import { countOf } from '../../text/text.js';

interface BudgetFlags {
  readonly project?: string;
}

async function showBudget(context: Context, ref: string, flags: BudgetFlags): Promise<number> {
  await using reader = await openReader(context.config, context.log('warn'));
  const named = await findNamed(reader.pool, ref, { project: flags.project ?? context.config.project });
  const runId = named.runId ?? (await loadTurnStates(reader.pool, [named.turnId]))[0]?.run_id;
  const budgets = runId === undefined ? [] : await loadBudgets(reader.pool, runId);
  context.answer({ run_id: runId, budgets }, () =>
    budgets.length === 0 ? 'This run has no budget.' : formatBudgets(budgets),
  );
  return budgets.length === 0 ? EXIT.negative : EXIT.success;
}

interface RaiseFlags extends BudgetFlags {
  readonly tokens?: number;
  readonly costUsd?: number;
  readonly turns?: number;
  readonly steps?: number;
  readonly depth?: number;
  readonly fanOut?: number;
  readonly key?: string;
}

async function raiseBudget(context: Context, ref: string, flags: RaiseFlags): Promise<number> {
  const { project, key, costUsd, fanOut, ...rest } = flags;
  const budget: JsonObject = {
    ...(Object.fromEntries(Object.entries(rest).filter(([, value]) => value !== undefined)) as JsonObject),
    ...(costUsd === undefined ? {} : { cost_usd: costUsd }),
    ...(fanOut === undefined ? {} : { fan_out: fanOut }),
  };
  if (Object.keys(budget).length === 0)
    throw wrongUsage(
      'give a limit to raise: --tokens, --cost-usd, --turns, --steps, --depth or --fan-out',
      'budget',
    );
  await using stack = await openStack(context.config, { log: context.log('warn') });
  const answer = await stack.runtime.submit(
    'raise_budget',
    { target: ref, budget },
    { projectId: project ?? context.config.project, idempotencyKey: key },
  );
  const { budget_id, woken_turn_ids } = answer as { budget_id: string; woken_turn_ids: readonly string[] };
  context.answer(
    answer,
    () => `budget ${budget_id} is raised; ${countOf(woken_turn_ids.length, 'waiting turn')} woken`,
  );
  return EXIT.success;
}

const whole = z
  .string()
  .regex(/^[1-9]\d{0,14}$/, 'must be a whole number above 0')
  .transform(Number);
const dollars = z
  .string()
  .regex(/^\d+(\.\d+)?$/, 'must be a number of dollars')
  .transform(Number);

export function addBudget(program: Command, run: Run): void {
  const group = program.command('budget').addHelpText(
    'after',
    helpOf({
      examples: ['boxcar budget show 0198c1f2', 'boxcar budget raise 0198c1f2 --tokens 2000000'],
      negative: 'show: the run has no budget',
    }),
  );
  group
    .command('show')
    .description('Shows the budgets of a run: limits, use, reservations of running turns, rest.')
    .argument('<run>', 'id of a run or of one of its turns, or at least the first 8 digits', readId)
    .option('--project <name>', 'project, by id or name')
    .addHelpText(
      'after',
      helpOf({
        examples: [
          'boxcar budget show 0198c1f2-7d3e',
          "boxcar budget show 0198c1f2 --json | jq '.budgets[0].tokens'",
        ],
        negative: 'the run has no budget',
      }),
    )
    .action((ref: string, flags: BudgetFlags) => run((context) => showBudget(context, ref, flags)));
  group
    .command('raise')
    .description('Raises the budget of a run or turn; turns that wait for it continue.')
    .argument('<run>', 'id of a run, or of a turn below it, or at least the first 8 digits', readId)
    .option('--tokens <n>', 'tokens in all', flag(whole))
    .option('--cost-usd <n>', 'dollars in all', flag(dollars))
    .option('--turns <n>', 'turns in all', flag(whole))
    .option('--steps <n>', 'model calls in all', flag(whole))
    .option('--depth <n>', 'levels of turns', flag(whole))
    .option('--fan-out <n>', 'children of any one turn', flag(whole))
    .option('--key <text>', 'idempotency key: a second raise with it changes nothing')
    .option('--project <name>', 'project, by id or name')
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'Each number is the new limit, not an addition, and must be above the old limit. If the turn has a budget of its own, that budget is raised.',
        examples: [
          'boxcar budget raise 0198c1f2-7d3e --tokens 500000',
          'boxcar budget raise 0198c1f2 --cost-usd 12.50 --steps 400 --json',
        ],
      }),
    )
    .action((ref: string, flags: RaiseFlags) => run((context) => raiseBudget(context, ref, flags)));
}
