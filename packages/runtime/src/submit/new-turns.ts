/** Decides about the turns that a primitive makes, and makes their rows. Source: docs/reference/primitives.md, "Accepting". */
import { type BoxId, type BudgetInput, freshAgentName, KernelError, type RunId } from '@boxcar/kernel';
import { type AgentRow, findContextBoxes, hasProfile, type NewTurn, type ProfileRow } from '@boxcar/store';
import type { CallerContext, NewAgentRequest, SubmitTurnRequest, TurnRef } from '../handler/index.js';
import { newId } from '../lib/index.js';
import type { MadeTurns } from './draft.js';
import { lockReused, lockRights } from './given-rights.js';
import { reserveSpawn, type SpawnShare } from './spawn-budget.js';
import type { TryContext } from './try-context.js';
import { decideViews, type ViewColumns } from './turn-views.js';
import { checkCycle } from './waiting-chain.js';

const DEFAULT_MAX_DEPTH = 20;
/** The migration from which builds support handoffs. */
const HANDOFF_FORMAT = 35;

/** How a primitive waits for its turns, and the budget of their run. */
export interface TurnWait {
  readonly isAwaited: boolean;
  readonly deadlineMs: number | null;
  /** The budget of a run that begins with these turns. */
  readonly runBudget: BudgetInput | undefined;
}

/** A request with the ids of its turn, its agent and its profile. */
interface Drafted extends Omit<SubmitTurnRequest, 'contextBoxId' | 'access' | 'wait'> {
  readonly turn: TurnRef;
  readonly agent: AgentRow;
  readonly profile: ProfileRow;
  readonly isReuse: boolean;
}

type Decided =
  | { readonly outcome: 'made'; readonly made: MadeTurns; readonly refs: readonly TurnRef[] }
  /** The turns' shares of the accounts above them are already in the transaction, so nothing of the primitive may be committed. */
  | { readonly outcome: 'refused'; readonly refusal: KernelError };

/**
 * Makes the rows of turns. Turns of existing agents are decided under the agents' locks. The number of statements does not depend
 * on the number of turns.
 *
 * @param options.boxTokens - The tokens of context boxes that this primitive has made and that are not written yet.
 * @throws KernelError for a refusal that leaves nothing written.
 */
export async function makeTurns(
  of: TryContext,
  requests: readonly SubmitTurnRequest[],
  options: {
    readonly wait: TurnWait;
    readonly boxTokens: ReadonlyMap<BoxId, number>;
    /** The ids of profiles that are known to exist. Profiles that are found here are added. */
    readonly profileIds: Set<string>;
  },
): Promise<Decided> {
  const { ctx } = of;
  const { wait, boxTokens, profileIds } = options;
  const depth = decideDepth(of);
  const drafted = requests.map((request) => draftTurn(request, ctx.source));
  await checkContexts(of, requests, boxTokens);
  const reused = drafted.filter(({ isReuse }) => isReuse);
  const views = await decideViews(of, drafted);
  const rights = await lockRights(of, requests);
  if (wait.isAwaited) for (const { turn } of reused) checkCycle(ctx, turn.agentId);
  for (const profile of new Set(drafted.map((turn) => turn.profile)))
    await checkProfile(of, profile, profileIds);
  const runId = ctx.parent?.runId ?? newId<'run'>();
  const { shares, budgets } = await reserve(of, drafted, { runId, depth, wait, boxTokens });
  const refusal = await lockReused(
    of,
    reused.map(({ turn }) => turn),
    rights,
  );
  if (refusal !== undefined) return { outcome: 'refused', refusal };
  const [first] = drafted;
  const made: MadeTurns = {
    agents: drafted.flatMap(({ agent, target }) =>
      target.kind === 'new' ? [{ agent, derivedFrom: target.derivedFrom }] : [],
    ),
    budgets,
    run:
      ctx.parent !== undefined || first === undefined
        ? undefined
        : {
            id: runId,
            projectId: ctx.projectId,
            rootTurnId: first.turn.turnId,
            turnCount: drafted.length,
            traceparent: ctx.traceparent,
          },
    turns: drafted.map((draft, index) => ({
      row: rowOf(of, draft, { runId, depth, wait, view: views[index], share: shares[index] }),
      made: { agentId: draft.turn.agentId, isReuse: draft.isReuse, argument: draft.argument, runId },
    })),
  };
  return { outcome: 'made', made, refs: drafted.map(({ turn }) => turn) };
}

function decideDepth({ ctx: { parent }, caller }: TryContext): number {
  const maxDepth = caller.limits.max_depth ?? DEFAULT_MAX_DEPTH;
  const depth = parent === undefined ? 0 : parent.depth + 1;
  if (depth > maxDepth) {
    throw new KernelError('depth_exceeded', {
      message: `The turn would be at depth ${depth}; the limit is ${maxDepth}.`,
      details: { depth, max_depth: maxDepth, turn_id: parent?.turnId },
    });
  }
  return depth;
}

function draftTurn(
  { contextBoxId, ...request }: SubmitTurnRequest,
  source: CallerContext['source'],
): Drafted {
  const { target } = request;
  const agent = target.kind === 'new' ? makeAgent(target, source) : target.agent;
  const profile = target.kind === 'new' ? target.profile : target.agent.profile;
  const turn: TurnRef = {
    turnId: newId<'turn'>(),
    agentId: agent.agentId,
    contextBoxId,
    outputBoxId: agent.tapeBoxId,
  };
  return { ...request, turn, agent, profile, isReuse: target.kind === 'reuse' };
}

/** Takes the turns' places and allotments from the accounts above them. */
function reserve(
  { runtime, caller, ctx, unit }: TryContext,
  drafted: readonly Drafted[],
  of: {
    readonly runId: RunId;
    readonly depth: number;
    readonly wait: TurnWait;
    readonly boxTokens: ReadonlyMap<BoxId, number>;
  },
): ReturnType<typeof reserveSpawn> {
  return reserveSpawn(
    {
      projectId: ctx.projectId,
      parent: ctx.parent,
      runBudget: { own: of.wait.runBudget, defaults: caller.limits.run_budget },
      prices: runtime.prices,
      db: unit.db,
      tx: () => unit.tx,
    },
    drafted.map(({ turn, profile, budget, argument }) => ({
      turnId: turn.turnId,
      runId: of.runId,
      profileId: profile.profileId,
      depth: of.depth,
      contextTokens: of.boxTokens.get(turn.contextBoxId) ?? 0,
      budget,
      argument: `${argument?.replace(/[^.]+$/, '') ?? ''}budget`,
    })),
  );
}

function rowOf(
  { ctx, call, begins, isWoken }: TryContext,
  { turn, profile, isReuse, deadlineMs, priority, serves }: Drafted,
  of: {
    readonly runId: RunId;
    readonly depth: number;
    readonly wait: TurnWait;
    readonly view: ViewColumns | undefined;
    readonly share: SpawnShare | undefined;
  },
): NewTurn {
  const { parent, projectId } = ctx;
  const { wait, share = { columns: {}, deadlineMs: undefined } } = of;
  const ownDeadlineMs = wait.deadlineMs ?? deadlineMs ?? null;
  const toolCallId = call?.toolCallId ?? begins?.toolCallId ?? null;
  const isAwaited = wait.isAwaited && toolCallId !== null;
  return {
    id: turn.turnId,
    projectId,
    runId: of.runId,
    agentId: turn.agentId,
    profileId: profile.profileId,
    parentTurnId: parent?.turnId ?? null,
    parentToolCallId: toolCallId,
    isAwaited,
    depth: of.depth,
    primitive: ctx.primitive,
    channelId: ctx.channelId,
    maxSteps: profile.maxSteps,
    contextBoxId: turn.contextBoxId,
    outputBoxId: turn.outputBoxId,
    workerTarget: serves?.workerTarget ?? profile.workerTarget,
    deadlineMs:
      share.deadlineMs === undefined
        ? ownDeadlineMs
        : Math.min(share.deadlineMs, ownDeadlineMs ?? share.deadlineMs),
    ...share.columns,
    ...(isAwaited ? { isWaitedFor: true } : {}),
    ...(profile.isCapped || share.columns.budgetId !== undefined ? { isMetered: true } : {}),
    traceparent: ctx.traceparent,
    isReuse,
    ...(isWoken ? { isWoken: true } : {}),
    ...(serves === undefined ? {} : { isTold: true, format: HANDOFF_FORMAT }),
    ...of.view,
    priority: priority ?? parent?.priority ?? 0,
  };
}

/** No foreign key covers the profile. Without this check, a turn of a missing profile could be written, but never run. */
async function checkProfile(
  { ctx: { projectId }, unit }: TryContext,
  { profileId, name }: ProfileRow,
  profileIds: Set<string>,
): Promise<void> {
  if (profileIds.has(profileId)) return;
  if (!(await hasProfile(unit.db, profileId, projectId)))
    throw new KernelError('not_found', {
      message: `No profile '${name}' of id ${profileId} in this project.`,
      details: { profile_id: profileId, project_id: projectId },
    });
  profileIds.add(profileId);
}

/**
 * @throws KernelError `not_found` for contexts that were neither made here nor written before; `box_not_authorized` for contexts
 * that the caller may not read, unless the handler has checked access.
 */
async function checkContexts(
  { ctx, unit }: TryContext,
  requests: readonly SubmitTurnRequest[],
  here: ReadonlyMap<BoxId, number>,
): Promise<void> {
  const { projectId, source } = ctx;
  const written = requests.filter(({ contextBoxId }) => !here.has(contextBoxId));
  if (written.length === 0) return;
  const ids = written.map(({ contextBoxId }) => contextBoxId);
  const known = await findContextBoxes(unit.db, ids, { projectId, actorId: source.agentId });
  for (const { contextBoxId, access } of written) {
    const box = known.get(contextBoxId);
    if (box === undefined)
      throw new KernelError('not_found', {
        message: `submitTurn: no context box ${contextBoxId} in this project.`,
        details: { context_box_id: contextBoxId, project_id: projectId },
      });
    if (!box.isReadable && access !== 'trusted')
      throw new KernelError('box_not_authorized', {
        message: `submitTurn: agent ${source.agentId} may not read box ${contextBoxId}, so it cannot hand it on.`,
        details: { context_box_id: contextBoxId, source_agent_id: source.agentId },
      });
  }
}

export const makeAgent = (
  { profile, name, isShared = false, agentId = newId<'agent'>() }: NewAgentRequest,
  { agentId: ownerAgentId, isOperator }: CallerContext['source'],
): AgentRow => ({
  agentId,
  name: name ?? freshAgentName(profile.name, agentId),
  tapeBoxId: newId<'box'>(),
  profile,
  ownerAgentId,
  isOperatorMade: isOperator,
  isShared,
  mayAppend: false,
});
