import {
  type BudgetLimits,
  type JsonValue,
  KernelError,
  type RaiseBudget,
  raiseBudgetSchema,
  toBudgetLimits,
} from '@boxcar/kernel';
import { findAccount, findNamed, lockRun, raiseAccount } from '@boxcar/store';
import type { Handler, HandlerTools } from '../handler/index.js';

const refuse = (message: string, details: Readonly<Record<string, unknown>>): never => {
  throw new KernelError('bad_request', { message, details });
};

/** Only allows higher limits: turns were already made under the old limits. */
function checkRaise(id: string, old: BudgetLimits, next: BudgetLimits): void {
  for (const key of Object.keys(next) as (keyof BudgetLimits)[]) {
    const field = `arguments.budget.${key === 'cost_micros' ? 'cost_usd' : key}`;
    const before = old[key];
    const after = next[key] ?? 0;
    if (key === 'seconds')
      refuse(`${field}: the time of a budget cannot be raised; its turns have their deadlines.`, { field });
    if (before === undefined) refuse(`${field}: budget ${id} does not limit this.`, { field, budget_id: id });
    else if (after <= before)
      refuse(`${field}: must be above the ${before} that it is now.`, { field, budget_id: id });
  }
}

async function raise({ target, budget }: RaiseBudget, tools: HandlerTools): Promise<JsonValue> {
  if (!tools.ctx.source.isOperator || tools.ctx.parent !== undefined)
    throw new KernelError('delegation_denied', {
      message: 'A budget is raised by the operator, not by the agents that work under it.',
      details: { source_agent_id: tools.ctx.source.agentId },
    });
  const named = await findNamed(tools.db, target, { project: tools.ctx.projectId });
  const { turnId } = named;
  const found = await findAccount(tools.db, named);
  if (found === undefined)
    throw new KernelError('not_found', {
      message: `Turn ${turnId} has no budget.`,
      details: { turn_id: turnId },
    });
  await lockRun(tools.tx, found.runId);
  // Read again, because the decision is made under the lock.
  const account = (await findAccount(tools.tx, named)) ?? found;
  const limits = toBudgetLimits(budget);
  checkRaise(account.id, account.limits, limits);
  const rings = await raiseAccount(tools.tx, { runId: account.runId, accountId: account.id, limits });
  tools.ring(rings);
  return {
    budget_id: account.id,
    run_id: account.runId,
    limits: { ...account.limits, ...limits },
    woken_turn_ids: rings.map((ring) => ring.turnId),
  };
}

export const raiseBudget: Handler<RaiseBudget> = {
  description: 'Raise the limits of a budget. Turns that wait for it continue. For operators.',
  input: raiseBudgetSchema,
  handle: raise,
};
