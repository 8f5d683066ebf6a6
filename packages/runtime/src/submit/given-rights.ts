/** Turns for existing agents are given by rights that may be revoked in the meantime. */
import { type AgentId, checkReuse, KernelError } from '@boxcar/kernel';
import {
  type AgentRow,
  findAgents,
  findNotifyRefusal,
  findSessionMaker,
  findTape,
  isCanceled,
  lockAgents,
  lockGrants,
  type Tx,
} from '@boxcar/store';
import type { CallerContext, SubmitTurnRequest, TurnRef } from '../handler/index.js';
import type { TryContext } from './try-context.js';

/** Agents that get turns by a right that may be revoked, and the holder of the right: the maker of a session, or the caller. */
export interface GivenRights {
  readonly agents: readonly AgentRow[];
  readonly makerId: AgentId | undefined;
}

/**
 * Locks the grants that allow turns for existing agents: a right that was revoked in the meantime allows none. No lock is needed
 * for the caller itself, for agents that it has made, and for agents that the handler has decided about.
 */
export async function lockRights(
  { ctx, unit, isWoken }: TryContext,
  requests: readonly SubmitTurnRequest[],
): Promise<GivenRights> {
  const { parent, source } = ctx;
  const agents = requests.flatMap(({ target, access }) =>
    target.kind === 'reuse' && access !== 'trusted' ? [target.agent] : [],
  );
  const tapes = (of: readonly AgentRow[]) => [...new Set(of.map(({ tapeBoxId }) => tapeBoxId))];
  if (isWoken && parent !== undefined) {
    const told = agents.filter(({ agentId }) => agentId !== parent.agentId);
    const makerId = told.length === 0 ? undefined : await findSessionMaker(unit.tx, parent.turnId);
    if (makerId === undefined) return { agents: [], makerId };
    await lockGrants(unit.tx, tapes(told), makerId);
    return { agents: told, makerId };
  }
  const lent = agents.filter(
    ({ agentId, ownerAgentId }) =>
      !source.isOperator && agentId !== source.agentId && ownerAgentId !== source.agentId,
  );
  if (lent.some(({ isShared }) => !isShared)) await lockGrants(unit.tx, tapes(lent), source.agentId);
  return { agents: lent, makerId: undefined };
}

/**
 * Locks the existing agents that get these turns, and decides again what may have changed: their tapes, the rights to give them
 * turns, and whether a turn whose end starts the new turns is canceled.
 *
 * @returns Why the turns are refused; undefined when they are not.
 * @throws KernelError `canceled`.
 */
export async function lockReused(
  of: TryContext,
  turns: readonly TurnRef[],
  rights: GivenRights,
): Promise<KernelError | undefined> {
  // Whether an agent is free is decided under the agent's lock, so that an end and a submission cannot miss each other.
  if (turns.length === 0) return undefined;
  const { ctx, unit, isWoken } = of;
  const { parent } = ctx;
  const ids = [...new Set(turns.map((turn) => turn.agentId))];
  const tapes = await lockAgents(unit.tx, ids, parent?.runId);
  for (const turn of turns) if (tapes.get(turn.agentId) !== turn.outputBoxId) return explainTape(of, turn);
  const refusal = await findLostRight(of, rights);
  if (refusal !== undefined) return refusal;
  if (isWoken && parent !== undefined) await checkOpen(unit.tx, parent);
  return undefined;
}

/** Checks these rights again, under the locks of grants and agents. */
async function findLostRight(
  { ctx, unit }: TryContext,
  { agents, makerId }: GivenRights,
): Promise<KernelError | undefined> {
  if (agents.length === 0) return undefined;
  const { projectId, source } = ctx;
  if (makerId !== undefined) {
    for (const { tapeBoxId: boxId } of agents) {
      const refusal = await findNotifyRefusal(unit.tx, { projectId, boxId, makerId });
      if (refusal !== undefined) return refusal;
    }
    return undefined;
  }
  const ids = agents.map(({ agentId }) => agentId);
  const found = await findAgents(unit.tx, { projectId, actorId: source.agentId }, { ids, names: [] });
  try {
    for (const agent of found) checkReuse(source, agent);
  } catch (error) {
    if (error instanceof KernelError) return error;
    throw error;
  }
  return undefined;
}

/** Called under the lock of the run: a cancel either sees the new turns or is seen here. */
async function checkOpen(tx: Tx, { turnId, runId }: NonNullable<CallerContext['parent']>): Promise<void> {
  if (!(await isCanceled(tx, turnId))) return;
  throw new KernelError('canceled', {
    message: `Turn ${turnId}, a turn above it or its run ${runId} was canceled.`,
    details: { turn_id: turnId, run_id: runId },
  });
}

/** Why a turn's tape is not the tape of its agent: the tape was reset in the meantime, or never was the agent's. */
async function explainTape(
  { ctx, unit }: TryContext,
  { agentId, outputBoxId }: TurnRef,
): Promise<KernelError> {
  const actor = { projectId: ctx.projectId, actorId: ctx.source.agentId };
  const tape = await findTape(unit.tx, { kind: 'box', boxId: outputBoxId }, actor);
  const details = { agent_id: agentId, output_box_id: outputBoxId, project_id: actor.projectId };
  if (tape?.isArchived === true && tape.ownerAgentId === agentId)
    return new KernelError('tape_conflict', {
      message: `The tape of agent ${agentId} was reset meanwhile.`,
      details,
      // For the kernel's own primitives this is retried like a serialization failure: the handler then finds the agent's current
      // tape.
      cause: Object.assign(new Error('the tape was reset meanwhile'), { code: '40001' }),
    });
  return new KernelError('not_found', {
    message: `submitTurn: no agent ${agentId} with the tape ${outputBoxId}.`,
    details,
  });
}
