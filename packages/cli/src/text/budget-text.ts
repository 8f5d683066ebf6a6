/** Budgets in words: the limit, and the used, reserved and remaining amounts. */
import type { BudgetReport } from '@boxcar/store';
import { countOf, formatCount, formatTable } from './text.js';

/** Micro-dollars, with four decimal places. */
export const formatCost = (micros: number): string =>
  `$${(micros / 1e6).toLocaleString('en-US', { minimumFractionDigits: 2, maximumFractionDigits: 4 })}`;

/** A cost, and the number of steps that are not in it: steps of free models, and of models without a price. */
export const describeCost = (cost: {
  readonly cost_micros: number;
  readonly free_steps: number;
  readonly unpriced_steps: number;
}): string =>
  [
    formatCost(cost.cost_micros),
    ...(cost.free_steps > 0 ? [`${countOf(cost.free_steps, 'step')} free`] : []),
    ...(cost.unpriced_steps > 0 ? [`${countOf(cost.unpriced_steps, 'step')} without a known price`] : []),
  ].join(', ');

interface Line {
  readonly kind: string;
  readonly limit: number;
  readonly used: number;
  readonly held: number;
  readonly format: (value: number) => string;
}

function linesOf(budget: BudgetReport): Line[] {
  const { limits } = budget;
  const line = (
    kind: string,
    limit: number | undefined,
    used: number,
    held = 0,
    format: (value: number) => string = formatCount,
  ): Line[] => (limit === undefined ? [] : [{ kind, limit, used, held, format }]);
  return [
    ...line('tokens', limits.tokens, budget.tokens, budget.tokens_held),
    ...line('cost', limits.cost_micros, budget.cost_micros, budget.cost_held, formatCost),
    ...line('turns', limits.turns, budget.turns),
    ...line('steps', limits.steps, budget.steps, budget.steps_held),
  ];
}

const shapeOf = ({ limits, deadline_at }: BudgetReport): string[] => [
  ...(limits.depth === undefined ? [] : [`depth ${limits.depth}`]),
  ...(limits.fan_out === undefined ? [] : [`fan-out ${limits.fan_out}`]),
  ...(deadline_at === null ? [] : [`until ${deadline_at.toISOString()}`]),
];

/** One table per account. */
export function formatBudgets(budgets: readonly BudgetReport[]): string {
  return budgets
    .map((budget) => {
      const rows = linesOf(budget).map(({ kind, limit, used, held, format }) => [
        kind,
        format(limit),
        format(used),
        format(held),
        format(Math.max(0, limit - used - held)),
      ]);
      const right = 'right' as const;
      const columns = [
        { title: 'limit of' },
        { title: 'in all', align: right },
        { title: 'used', align: right },
        { title: 'set aside', align: right },
        { title: 'left', align: right },
      ];
      const whose = budget.parent_id === null ? 'budget' : 'budget inside';
      const paused =
        budget.paused_turns === 0 ? [] : [`${countOf(budget.paused_turns, 'turn')} waiting for more`];
      const head = [`${whose} ${budget.budget_id}`, ...shapeOf(budget), ...paused].join(', ');
      return rows.length === 0 ? head : `${head}\n${formatTable(columns, rows, { indent: 2 })}`;
    })
    .join('\n\n');
}

/** One line per account, for places with little room. */
export const budgetLines = (budgets: readonly BudgetReport[], idOf: (id: string) => string): string[] =>
  budgets.map((budget) => {
    const parts = linesOf(budget).map(
      ({ kind, limit, used, held, format }) =>
        `${kind} ${format(Math.max(0, limit - used - held))} of ${format(limit)} left`,
    );
    const paused = budget.paused_turns === 0 ? [] : [`${budget.paused_turns} waiting`];
    return `budget ${idOf(budget.budget_id)}: ${[...parts, ...shapeOf(budget), ...paused].join(' · ')}`;
  });
