/**
 * The shares that new turns take from budgets: their places, and the allotment of each turn for its first step. They are decided
 * under the lock of the run, before any row of the turns is written. Rules: kernel/budget/budget.ts.
 */
import {
  type Account,
  type Amounts,
  answerTokensOf,
  type BudgetHit,
  type BudgetInput,
  type BudgetLimits,
  budgetExceeded,
  budgetSchema,
  DEFAULT_RUN_TURNS,
  decideGrant,
  estimateTokens,
  findingsOf,
  findingWords,
  findPrice,
  findSpawnHit,
  KernelError,
  needOf,
  needsPrice,
  type PriceTable,
  type ProfileId,
  type ProjectId,
  priceTables,
  priceUnknown,
  type RunId,
  safeParse,
  type TurnId,
  toBudgetLimits,
} from '@boxcar/kernel';
import {
  type AccountRow,
  countChildren,
  loadAccounts,
  loadSpawnProfiles,
  lockRun,
  type NewBudget,
  type NewTurn,
  type Queryable,
  reserve,
  type SpawnProfile,
  settleEnded,
  type Tx,
} from '@boxcar/store';

export interface SpawnRequest {
  readonly turnId: TurnId;
  readonly runId: RunId;
  readonly profileId: ProfileId;
  readonly depth: number;
  readonly contextTokens: number;
  /** A separate limit for this turn and all turns below it. */
  readonly budget: BudgetInput | undefined;
  /** How errors name that limit. */
  readonly argument: string;
}

export interface SpawnScope {
  readonly projectId: ProjectId;
  readonly parent:
    | { readonly turnId: TurnId; readonly runId: RunId; readonly budgetId: string | null }
    | undefined;
  /** The budget of a run that begins without a parent: the submitted one, and `projects.limits.run_budget`, unchecked. */
  readonly runBudget: { readonly own: BudgetInput | undefined; readonly defaults: unknown };
  readonly prices: readonly PriceTable[];
  readonly db: Queryable;
  /** The primitive's transaction; used only when the turns are below an account. */
  readonly tx: () => Tx;
}

export interface SpawnShare {
  /** Columns of the turn's row; empty without an account. */
  readonly columns: Pick<
    NewTurn,
    'budgetId' | 'allottedTokens' | 'allottedCost' | 'allottedSteps' | 'budgetDeadlineAt'
  >;
  /** The turn must end within this time from now. */
  readonly deadlineMs: number | undefined;
}

/** The project's budget for each run that has no budget of its own. */
function readRunBudget(value: unknown, projectId: ProjectId): BudgetLimits {
  if (value === undefined || value === null) return {};
  const parsed = safeParse(budgetSchema, value);
  if (parsed.success) return toBudgetLimits(parsed.data);
  throw new KernelError('bad_config', {
    message: `limits.run_budget of project ${projectId}: ${findingWords(findingsOf(parsed.error), 'it')}`,
    details: { project_id: projectId },
  });
}

/** @throws KernelError `price_unknown` when an account limits the cost of a model that has no price. */
function amountsOf(
  profile: SpawnProfile,
  request: SpawnRequest,
  { tables, chain }: { readonly tables: readonly PriceTable[]; readonly chain: readonly Account[] },
): { need: Amounts; want: Amounts } {
  const cap = profile.max_tokens ?? Number.POSITIVE_INFINITY;
  const price = findPrice(profile.model, priceTables(profile.prices, tables));
  const limiting = chain.find(({ limits }) => limits.cost_micros !== undefined);
  if (price === undefined && limiting !== undefined && needsPrice(profile.model))
    throw priceUnknown({ model: profile.model, accountId: limiting.id });
  const step = needOf({
    promptTokens: request.contextTokens + estimateTokens(profile.instruction_bytes),
    answerTokens: answerTokensOf({
      model: profile.model,
      limits: { context_tokens: profile.context_tokens ?? undefined },
      model_settings: { max_output_tokens: profile.max_output_tokens ?? undefined },
    }),
    price,
  });
  const need = { ...step, tokens: Math.min(step.tokens, cap) };
  return { need, want: { ...need, tokens: profile.max_tokens ?? need.tokens } };
}

/** An account that begins with these turns. */
interface OwnAccount {
  readonly id: RunId | TurnId;
  account: Account;
  readonly parentId: string | null;
  readonly seconds: number | null;
  /** How errors name the account. */
  readonly argument: string;
}

const beginAccount = (
  id: RunId | TurnId,
  limits: BudgetLimits,
  of: Pick<OwnAccount, 'parentId' | 'argument'> & { readonly depth: number; readonly seconds: number | null },
): OwnAccount => ({
  id,
  account: { id, limits, topDepth: of.depth, tokens: 0, costMicros: 0, steps: 0, turns: 0, isOver: false },
  parentId: of.parentId,
  seconds: limits.seconds === undefined ? of.seconds : Math.min(limits.seconds, of.seconds ?? limits.seconds),
  argument: of.argument,
});

const taken = <A extends Account>(account: A, amounts: Amounts): A => ({
  ...account,
  tokens: account.tokens + amounts.tokens,
  costMicros: account.costMicros + amounts.costMicros,
  steps: account.steps + amounts.steps,
  turns: account.turns + 1,
});

/** A budget that begins with the refused submission is not stored, so it cannot be raised. */
const NEW_BUDGET_ADVICE = 'Nothing was written. Give a larger budget with the call, or ask for less.';

/**
 * Reserves shares for turns that are about to be submitted; all of them have the same parent, or none. The number of statements
 * does not depend on the number of turns; without an account and a budget no statement runs.
 *
 * @returns One share per request, in order, and the accounts that begin with these turns.
 * @throws KernelError `budget_exceeded`; the primitive's transaction must then be abandoned.
 */
export async function reserveSpawn(
  scope: SpawnScope,
  requests: readonly SpawnRequest[],
): Promise<{ readonly shares: readonly SpawnShare[]; readonly budgets: readonly NewBudget[] }> {
  const { parent } = scope;
  const { own, defaults } = scope.runBudget;
  const runLimits: BudgetLimits =
    parent === undefined
      ? { ...readRunBudget(defaults, scope.projectId), ...(own && toBudgetLimits(own)) }
      : {};
  const enclosing = parent?.budgetId ?? null;
  const hasRunLimits = Object.keys(runLimits).length > 0;
  if (parent === undefined && runLimits.turns === undefined && requests.length > DEFAULT_RUN_TURNS)
    throw budgetExceeded(
      {
        accountId: requests[0]?.runId ?? '',
        kind: 'turns',
        limit: DEFAULT_RUN_TURNS,
        used: 0,
        needed: requests.length,
      },
      { next: NEW_BUDGET_ADVICE },
    );
  if (enclosing === null && !hasRunLimits && requests.every(({ budget }) => budget === undefined))
    return { shares: requests.map(() => ({ columns: {}, deadlineMs: undefined })), budgets: [] };

  // The lock of the run comes before all other locks, and before the accounts are read.
  if (enclosing !== null && parent !== undefined) {
    await lockRun(scope.tx(), parent.runId);
    await settleEnded(scope.tx(), parent.runId, { leavesLocked: true });
  }
  const profiles = new Map(
    (await loadSpawnProfiles(scope.db, [...new Set(requests.map(({ profileId }) => profileId))])).map(
      (profile) => [profile.profile_id, profile],
    ),
  );
  const load = async (): Promise<readonly AccountRow[]> =>
    enclosing === null ? [] : loadAccounts(scope.tx(), enclosing);
  const before = await load();
  const counted = before.some(({ limits }) => limits.fan_out !== undefined);
  const siblings = counted && parent !== undefined ? await countChildren(scope.tx(), parent.turnId) : 0;
  const decide = (accounts: readonly AccountRow[]) =>
    share(requests, { accounts, runLimits, scope, profiles, siblings });
  let decided = decide(before);
  if ('hit' in decided && enclosing !== null && parent !== undefined) {
    await settleEnded(scope.tx(), parent.runId);
    decided = decide(await load());
  }
  if ('hit' in decided) {
    const { hit, argument } = decided;
    const isNew = parent === undefined || argument !== undefined;
    throw budgetExceeded(hit, {
      ...(isNew ? { next: NEW_BUDGET_ADVICE } : {}),
      details: {
        ...(parent === undefined ? {} : { turn_id: parent.turnId }),
        ...(argument === undefined ? {} : { field: `arguments.${argument}.${hit.kind}` }),
      },
    });
  }
  if (before.length > 0)
    await reserve(
      scope.tx(),
      before.map(({ id }) => id),
      { ...decided.total, turns: requests.length },
    );
  return decided;
}

interface Shared {
  readonly shares: readonly SpawnShare[];
  readonly budgets: readonly NewBudget[];
  readonly total: Amounts;
}

interface Refused {
  readonly hit: BudgetHit;
  readonly argument?: string | undefined;
}

/** The budgets that the previous requests have left. */
interface Left {
  /** The accounts above the parent, nearest first. */
  readonly accounts: readonly AccountRow[];
  readonly siblings: number;
}

interface ShareOptions extends Left {
  readonly runLimits: BudgetLimits;
  readonly scope: SpawnScope;
  readonly profiles: ReadonlyMap<ProfileId, SpawnProfile>;
}

function share(requests: readonly SpawnRequest[], of: ShareOptions): Shared | Refused {
  const { runLimits } = of;
  const total = { tokens: 0, costMicros: 0, steps: 0 };
  const [first] = requests;
  if (first === undefined) return { shares: [], budgets: [], total };
  const parentDeadlineAt = of.accounts[0]?.deadlineAt ?? null;
  const ofRun =
    Object.keys(runLimits).length === 0
      ? undefined
      : beginAccount(first.runId, runLimits, {
          parentId: null,
          depth: first.depth,
          seconds: null,
          argument: 'budget',
        });
  const begun: OwnAccount[] = ofRun === undefined ? [] : [ofRun];
  const shares: SpawnShare[] = [];
  let left: Left = { accounts: of.accounts, siblings: of.siblings };
  for (const request of requests) {
    const mine = beginOwn(request, { ofRun, left });
    if (mine !== undefined) begun.push(mine);
    const own = [mine, ofRun].filter((account) => account !== undefined);
    const decided = decideShare(request, { own, left, of });
    if ('hit' in decided) return decided;
    const { given, columns } = decided;
    total.tokens += given.tokens;
    total.costMicros += given.costMicros;
    total.steps += given.steps;
    left = {
      accounts: left.accounts.map((account) => taken(account, given)),
      siblings: left.siblings + (of.scope.parent === undefined ? 0 : 1),
    };
    for (const one of own) one.account = taken(one.account, given);
    const seconds = own[0]?.seconds ?? null;
    shares.push({
      columns: columns === undefined ? {} : { ...columns, budgetDeadlineAt: parentDeadlineAt },
      deadlineMs: seconds === null ? undefined : seconds * 1000,
    });
  }
  const budgets = begun.map((own) => toBudget(own, { of, runId: first.runId, parentDeadlineAt }));
  return { shares, budgets, total };
}

/** The account of a request that has its own limits. */
function beginOwn(
  request: SpawnRequest,
  { ofRun, left }: { readonly ofRun: OwnAccount | undefined; readonly left: Left },
): OwnAccount | undefined {
  const limits = request.budget === undefined ? {} : toBudgetLimits(request.budget);
  if (Object.keys(limits).length === 0) return undefined;
  return beginAccount(request.turnId, limits, {
    parentId: ofRun?.id ?? left.accounts[0]?.id ?? null,
    depth: request.depth,
    seconds: ofRun?.seconds ?? null,
    argument: request.argument,
  });
}

type Given = { readonly [K in 'tokens' | 'costMicros' | 'steps']: number };

/** The share of one turn, from its own accounts, nearest first, and from all accounts above. */
function decideShare(
  request: SpawnRequest,
  { own, left, of }: { readonly own: readonly OwnAccount[]; readonly left: Left; readonly of: ShareOptions },
):
  | Refused
  | {
      readonly given: Given;
      /** Undefined without an account. */
      readonly columns: Omit<SpawnShare['columns'], 'budgetDeadlineAt'> | undefined;
    } {
  const profile = of.profiles.get(request.profileId);
  if (profile === undefined)
    throw new KernelError('internal_error', { message: `Profile ${request.profileId} has no row.` });
  const refused = (hit: BudgetHit): Refused => ({
    hit,
    argument: own.find(({ id }) => id === hit.accountId)?.argument,
  });
  const chain = [...own.map(({ account }) => account), ...left.accounts];
  const hit = findSpawnHit(chain, { turns: 1, depth: request.depth, siblings: left.siblings });
  if (hit !== undefined) return refused(hit);
  const grant = decideGrant(chain, amountsOf(profile, request, { tables: of.scope.prices, chain }));
  if (grant.outcome === 'refused') return refused(grant.hit);
  const { amounts } = grant;
  const [nearest] = chain;
  return {
    given: {
      tokens: amounts.tokens ?? 0,
      costMicros: amounts.costMicros ?? 0,
      steps: amounts.steps ?? 0,
    },
    columns: nearest && {
      budgetId: nearest.id,
      allottedTokens: amounts.tokens,
      allottedCost: amounts.costMicros,
      allottedSteps: amounts.steps,
    },
  };
}

const toBudget = (
  { id, account, parentId, seconds }: OwnAccount,
  {
    of,
    runId,
    parentDeadlineAt,
  }: { readonly of: ShareOptions; readonly runId: RunId; readonly parentDeadlineAt: string | null },
): NewBudget => ({
  id,
  projectId: of.scope.projectId,
  runId,
  parentId,
  topDepth: account.topDepth,
  limits: account.limits,
  seconds,
  parentDeadlineAt,
  tokensReserved: account.tokens,
  costReserved: account.costMicros,
  stepsReserved: account.steps,
  turnsUsed: account.turns,
});
