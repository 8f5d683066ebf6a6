/** Batches: the ends of several turns form one answer. Source: docs/reference/primitives.md. */
import { type BatchId, isFinal, KernelError, type RunId, type TurnId, type TurnStatus } from '@boxcar/kernel';
import { addBatch, findJoinable, findWaitCycle, lockMembers, type NewBatch } from '@boxcar/store';
import { DEFAULT_WAIT_SECONDS } from '../core/index.js';
import type { JoinRequest } from '../handler/index.js';
import { newId } from '../lib/index.js';
import type { MadeBatch, MadeTurn } from './draft.js';
import type { TryContext } from './try-context.js';
import { checkCycle, waitingChain } from './waiting-chain.js';

type Counters = Pick<NewBatch, 'remaining' | 'succeeded' | 'failed'>;

/** Makes a batch of turns that this primitive makes, or of earlier turns. */
export async function makeBatch(
  of: TryContext,
  {
    turnIds,
    madeOf,
    request,
  }: {
    readonly turnIds: readonly TurnId[];
    /** The turns that this primitive makes. */
    readonly madeOf: (id: TurnId) => MadeTurn | undefined;
    readonly request: JoinRequest & { readonly wait: boolean };
  },
): Promise<MadeBatch & { readonly deadlineMs: number | null }> {
  const { ctx, call } = of;
  const made = turnIds.flatMap((id) => madeOf(id) ?? []);
  const isOwn = made.length > 0;
  const isMixed = isOwn && made.length < turnIds.length;
  if (turnIds.length === 0 || isMixed || new Set(turnIds).size < turnIds.length)
    throw new KernelError('bad_request', {
      message:
        'joinTurns: one turn at least, each once, and either all made by this primitive or all earlier.',
    });
  const { parent, projectId, primitive } = ctx;
  const deadlineMs = request.deadlineMs ?? (request.wait ? DEFAULT_WAIT_SECONDS * 1000 : null);
  const isWaitingCall = request.wait && call !== undefined;
  const batchId = newId<'batch'>();
  if (isOwn && isWaitingCall)
    for (const { agentId, isReuse, argument } of made) if (isReuse) checkCycle(ctx, agentId, argument);
  const { runIds, ...counters } = isOwn
    ? { remaining: turnIds.length, succeeded: 0, failed: 0, runIds: made.map(({ runId }) => runId) }
    : await joinEarlier(of, turnIds, batchId, {
        isWaitingCall,
        argumentOf: request.argumentOf ?? ((index) => `turn_ids.${index}`),
      });
  const batch: NewBatch = {
    id: batchId,
    projectId,
    runId: made[0]?.runId ?? parent?.runId ?? null,
    turnId: call === undefined ? null : (parent?.turnId ?? null),
    toolCallId: isWaitingCall ? call.toolCallId : null,
    primitive,
    kind: isOwn ? 'fork_join' : 'collect',
    turnIds,
    ...counters,
    minSuccess: isOwn ? (request.minSuccess ?? null) : null,
    failFast: isOwn && (request.isFailFast ?? false),
    deadlineMs,
  };
  const warmTurnId = request.warmsCache === true ? chooseWarmer(turnIds, madeOf) : undefined;
  const members = isOwn ? { isWaitedFor: isWaitingCall, warmTurnId } : undefined;
  return { batch, members, deadlineMs, runIds: [...new Set(runIds)] };
}

/**
 * The member that fills the prompt cache: a fresh agent if there is one, because an existing agent may be busy. Undefined for a
 * batch of one, because no other member would use the cache.
 */
const chooseWarmer = (
  turnIds: readonly TurnId[],
  madeOf: (id: TurnId) => MadeTurn | undefined,
): TurnId | undefined =>
  turnIds.length < 2 ? undefined : (turnIds.find((id) => madeOf(id)?.isReuse === false) ?? turnIds[0]);

/**
 * Called under the turns' locks: members that have ended are counted here, and open members will count themselves at their ends.
 */
async function joinEarlier(
  of: TryContext,
  turnIds: readonly TurnId[],
  batchId: BatchId,
  options: { readonly isWaitingCall: boolean; readonly argumentOf: (index: number) => string },
): Promise<Counters & { readonly runIds: readonly RunId[] }> {
  const { ctx, unit, call } = of;
  const { parent, projectId, source } = ctx;
  const found = new Map(
    (await findJoinable(unit.db, turnIds, { projectId, actorId: source.agentId })).map((turn) => [
      turn.turn_id,
      turn,
    ]),
  );
  const notFound = (turnId: TurnId, index: number): KernelError => {
    const field = `arguments.${options.argumentOf(index)}`;
    return new KernelError('not_found', {
      message: `${field}: no turn ${turnId} in this project.`,
      details: { field, turn_id: turnId, project_id: projectId },
    });
  };
  turnIds.forEach((turnId, index) => {
    const field = `arguments.${options.argumentOf(index)}`;
    const turn = found.get(turnId);
    if (turn === undefined) throw notFound(turnId, index);
    if (!turn.is_readable)
      throw new KernelError('box_not_authorized', {
        message: `${field}: agent ${source.agentId} may not read what turn ${turnId} delivers.`,
        details: {
          field,
          turn_id: turnId,
          box_id: turn.output_box_id,
          source_agent_id: source.agentId,
        },
      });
  });
  const own = call !== undefined && parent !== undefined ? [parent.turnId] : [];
  const statuses = await lockMembers(unit.tx, [...turnIds, ...own]);
  // A turn that was purged since the look-up would never end.
  for (const [index, turnId] of turnIds.entries()) if (!statuses.has(turnId)) throw notFound(turnId, index);
  if (options.isWaitingCall) await checkWaitCycle(of, turnIds);
  const open = turnIds.filter((id) => !isFinal(statuses.get(id) ?? 'queued'));
  if (open.length > 0) await addBatch(unit.tx, open, batchId);
  const count = (isCounted: (status: TurnStatus | undefined) => boolean): number =>
    turnIds.filter((id) => isCounted(statuses.get(id))).length;
  return {
    runIds: turnIds.flatMap((id) => found.get(id)?.run_id ?? []),
    remaining: open.length,
    succeeded: count((status) => status === 'success'),
    failed: count((status) => status === 'failed' || status === 'timeout' || status === 'canceled'),
  };
}

/** The caller cannot wait for turns that wait for the caller, directly or through other turns. */
async function checkWaitCycle({ ctx, unit }: TryContext, turnIds: readonly TurnId[]): Promise<void> {
  const links = waitingChain(ctx);
  const cycle = await findWaitCycle(
    unit.tx,
    turnIds,
    links.map((link) => link.turn_id),
  );
  if (cycle === undefined) return;
  throw new KernelError('delegation_cycle', {
    message: `Turn ${cycle.turn_id} of agent ${cycle.agent_name} waits for this turn, and one of the turns named here is it or waits for it.`,
    details: {
      turn_id: cycle.turn_id,
      agent_id: cycle.agent_id,
      chain: links.map((link) => ({
        turn_id: link.turn_id,
        agent_id: link.agent_id,
        agent: link.agent_name,
      })),
    },
  });
}
