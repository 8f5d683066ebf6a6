import {
  type AgentId,
  agentIdIn,
  buildHandoff,
  CARD_TYPES,
  type CardId,
  type ContextHandoff,
  contextHandoffSchema,
  givenNames,
  handoffHandover,
  type InheritedBox,
  type JsonValue,
  KernelError,
  readHandoffTarget,
} from '@boxcar/kernel';
import {
  findActor,
  handOverTape,
  loadBoxes,
  loadTapeSlice,
  lockGrants,
  lockTape,
  type NewGrant,
  type ProfileRow,
  type TapePlace,
} from '@boxcar/store';
import type { Handler, HandlerTools, SubmitTurnRequest } from '../handler/index.js';
import { assemble } from '../handler/index.js';
import { newId } from '../lib/index.js';
import { findNamedTarget, resolveSessions } from '../submit/index.js';
import { type FoundPlace, findTapeHead, findTapeRef } from '../tape/index.js';
import { inMs } from './in-ms.js';

const FIELD = 'arguments.tape_ref';

/** The target of the handoff: an agent that gets a turn, or the operator, which runs no turns. */
interface Target {
  readonly agentId: AgentId;
  readonly turn: SubmitTurnRequest['target'] | undefined;
}

const badRequest = (name: string, message: string): KernelError =>
  new KernelError('bad_request', {
    message: `arguments.${name}: ${message}.`,
    details: { field: `arguments.${name}` },
  });

function checkReach(tools: HandlerTools, { name, tags }: ProfileRow): void {
  tools.checkDelegation({ profileName: name, tags });
}

async function findOperator(tools: HandlerTools, name: string): Promise<AgentId | undefined> {
  const { projectId } = tools.ctx;
  const found = await findActor(tools.db, {
    project: projectId,
    projectId,
    agent: name,
    agentId: agentIdIn(name),
  });
  return found?.agentId === found?.operatorId ? found?.operatorId : undefined;
}

type NamedHandoff = Omit<ContextHandoff, 'target_ref'> & { readonly target_ref: string };

/** Replaces a session with the name of its agent. */
async function nameTarget(given: ContextHandoff, tools: HandlerTools): Promise<NamedHandoff> {
  const { target_ref: ref, ...rest } = given;
  if (typeof ref === 'string') return { ...rest, target_ref: ref };
  const [named] = await resolveSessions([{ target_ref: ref }], tools);
  return { ...rest, target_ref: `agent:${named?.target_ref ?? ''}` };
}

async function findTarget(input: NamedHandoff, tools: HandlerTools): Promise<Target> {
  const { kind, name } = readHandoffTarget(input.target_ref);
  const { agent, profile, offered } = await findNamedTarget(input.target_ref, tools);
  if (agent !== undefined) {
    checkReach(tools, agent.profile);
    if (agent.agentId !== tools.ctx.source.agentId) tools.checkReuse(agent);
    return { agentId: agent.agentId, turn: { kind: 'reuse', agent } };
  }
  if (profile !== undefined) {
    checkReach(tools, profile);
    const agentId = newId<'agent'>();
    return { agentId, turn: { kind: 'new', profile, agentId } };
  }
  const operatorId = kind === 'profile' ? undefined : await findOperator(tools, name);
  if (operatorId !== undefined) return { agentId: operatorId, turn: undefined };
  throw new KernelError('not_found', {
    message: `arguments.target_ref: no ${kind === 'any' ? 'agent or profile' : kind} '${name}' in this project${offered}`,
    details: { field: 'arguments.target_ref', target_ref: input.target_ref, project_id: tools.ctx.projectId },
  });
}

function checkTarget(input: NamedHandoff, target: Target, tools: HandlerTools): void {
  if (target.agentId === tools.ctx.source.agentId)
    throw badRequest('target_ref', 'is the caller itself; what one hands to oneself is an anchor');
  if (target.turn !== undefined) return;
  for (const name of ['wait', 'deadline_seconds', 'budget', 'priority'] as const)
    if (input[name] !== undefined && input[name] !== false)
      throw badRequest(name, 'is for turns, and the operator runs none');
}

/** The place to hand over: the named place, by default the head of the caller's own tape. */
async function findPlace(ref: string | undefined, tools: HandlerTools): Promise<FoundPlace> {
  const { parent, projectId, source } = tools.ctx;
  const seeking = { projectId, actorId: source.agentId, field: FIELD };
  if (ref !== undefined) return findTapeRef(tools.db, ref, seeking);
  if (parent === undefined || parent.agentId !== source.agentId)
    throw badRequest('tape_ref', 'is required where no turn of the source agent calls');
  return findTapeHead(tools.db, parent.outputBoxId, seeking);
}

function checkPlace({ resolved, place }: FoundPlace, isTransfer: boolean, tools: HandlerTools): void {
  const { boxId } = resolved;
  const about = { field: FIELD, box_id: boxId };
  if (resolved.isArchived)
    throw new KernelError('tape_conflict', {
      message: `${FIELD}: tape ${boxId} was reset and is archived, so no agent continues it.`,
      details: { ...about, head: resolved.head },
    });
  if (isTransfer && place.is_closed)
    throw new KernelError('fork_closed', {
      message: `${FIELD}: fork ${boxId} was merged or discarded, so no agent can append to it.`,
      details: about,
    });
  if (!isTransfer || place.is_own || place.append_grant !== null) return;
  throw new KernelError('box_not_authorized', {
    message: `${FIELD}: agent ${tools.ctx.source.agentId} may not append to tape ${boxId}, so it cannot hand over that right.`,
    details: { ...about, source_agent_id: tools.ctx.source.agentId },
  });
}

/** The entries that a view of the tape shows from this place up to the head, with the contexts that the caller may read. */
async function inheritPlace(
  { resolved, place }: FoundPlace,
  { db, ctx }: HandlerTools,
): Promise<readonly InheritedBox[]> {
  const { start, head } = resolved;
  const from = place.from_position ?? start;
  const entries = await loadTapeSlice(db, { anchor: start, from, to: head }, place);
  const named = entries.flatMap((entry) => [entry.context_box_id, entry.early_context_box_id]);
  const contexts = await loadBoxes(
    db,
    named.filter((id) => id !== null),
    { projectId: ctx.projectId, actorId: ctx.source.agentId },
  );
  const readable = new Map([...contexts].filter(([, box]) => box.isReadable));
  return assemble(entries, readable, { argument: 'tape_ref', isFull: false, rule: 'inherit' });
}

/**
 * Rights on the tape. An agent that shares the tape gets rights up to the frozen head; an agent that takes it over gets rights
 * without an end. A giver with a grant gives at most the rights of its grant.
 */
function grantsOf(
  { resolved, place }: FoundPlace,
  given: { readonly to: AgentId; readonly isTransfer: boolean; readonly cardId: CardId },
  tools: HandlerTools,
): readonly NewGrant[] {
  const isHolder = given.to === place.operator_agent_id || given.to === place.owner_agent_id;
  if (isHolder || (given.isTransfer && isMovable(place))) return [];
  const grant = (mode: 'read' | 'append', upto: number | null, until: string | null): NewGrant => ({
    projectId: tools.ctx.projectId,
    agentId: given.to,
    boxId: resolved.boxId,
    mode,
    uptoPosition: upto,
    // The source is not the giver's name: a grant by the owner would also narrow rights that the target already has.
    source: `card:${given.cardId}`,
    expiresAt: until,
  });
  const append = grant('append', null, place.is_own ? null : (place.append_grant?.until ?? null));
  const bounds = place.is_own ? { upto: null, until: null } : place.granted;
  // The giver may read entries that its ended turns wrote, but not pass that right on. The message contains the parts that it
  // hands over.
  if (bounds === null) return given.isTransfer ? [append] : [];
  const upto = Math.min(resolved.head, bounds.upto ?? resolved.head);
  if (!given.isTransfer) return resolved.position > upto ? [] : [grant('read', upto, bounds.until)];
  return [grant('read', bounds.upto, bounds.until), append];
}

/** A tape of an agent is not movable: the agent's turns continue to write to it, whichever agents also append. */
const isMovable = (place: TapePlace): boolean => place.is_own && !place.is_rolling;

/**
 * Locks the rights that the caller gives until they are given. When two callers move a tape at the same time, the second one
 * checks again and no longer has the tape. A right that was revoked from the caller in the meantime cannot be passed on.
 */
async function lockRight(
  { resolved, place }: FoundPlace,
  isTransfer: boolean,
  { tx, ctx }: HandlerTools,
): Promise<'locked' | 'own'> {
  if (!place.is_own) await lockGrants(tx, [resolved.boxId], ctx.source.agentId);
  else if (isTransfer && isMovable(place)) await lockTape(tx, resolved.boxId);
  else return 'own';
  return 'locked';
}

/**
 * Removes the given rights: the caller's right to append, or the ownership of the tape's holders. Caller and holders keep their
 * right to read.
 */
async function handOver(
  { resolved, place }: FoundPlace,
  { to, cardId }: { readonly to: AgentId; readonly cardId: CardId },
  tools: HandlerTools,
): Promise<void> {
  const { projectId, source } = tools.ctx;
  const { boxId } = resolved;
  const isMoved = isMovable(place);
  const holders = new Set(
    (isMoved ? [place.owner_agent_id, place.maker_agent_id] : []).filter((id) => id !== null),
  );
  await handOverTape(tools.tx, {
    projectId,
    boxId,
    fromAgentIds: [...new Set([...holders, source.agentId])],
    newOwnerId: isMoved ? to : undefined,
  });
  tools.packer.giveGrants(
    [...holders]
      .filter((id) => id !== to && id !== place.operator_agent_id)
      .map((agentId) => ({
        projectId,
        agentId,
        boxId,
        mode: 'read',
        uptoPosition: null,
        source: `card:${cardId}`,
        expiresAt: null,
      })),
  );
}

async function handoff(asked: ContextHandoff, tools: HandlerTools): Promise<JsonValue> {
  const input = await nameTarget(asked, tools);
  const { ctx } = tools;
  const isTransfer = input.ownership === 'transfer';
  const target = await findTarget(input, tools);
  checkTarget(input, target, tools);
  let found = await findPlace(input.tape_ref, tools);
  checkPlace(found, isTransfer, tools);
  if ((await lockRight(found, isTransfer, tools)) === 'locked') {
    found = await findPlace(input.tape_ref, tools);
    checkPlace(found, isTransfer, tools);
  }
  const message = buildHandoff(input, {
    from: ctx.source.agentId,
    to: target.agentId,
    names: givenNames([
      [ctx.source.agentId, ctx.source.name],
      ...(target.turn?.kind === 'reuse' ? [[target.agentId, target.turn.agent.name] as const] : []),
    ]),
    at: new Date(),
    tapeRef: found.resolved.ref,
  });
  const nextSteps = input.intention?.next_steps;
  const [packed] = await tools.packer.packResolved([
    {
      projectId: ctx.projectId,
      actorId: ctx.source.agentId,
      toolSuffix: ctx.primitive,
      arguments: { handoff: message, ...(nextSteps === undefined ? {} : { instruction: nextSteps }) },
      handover: handoffHandover(input),
      access: 'actor',
      extra: await inheritPlace(found, tools),
    },
  ]);
  const [cardId] = packed?.attachedCardIds ?? [];
  if (packed === undefined || cardId === undefined)
    throw new KernelError('internal_error', { message: `Packing a ${CARD_TYPES.handoff} gave no card.` });
  const given = { to: target.agentId, isTransfer, cardId };
  const turn = target.turn && (await submitTo(target.turn, packed.contextBoxId, { input, tools }));
  tools.packer.giveGrants(grantsOf(found, given, tools));
  if (isTransfer) await handOver(found, given, tools);
  return {
    card_id: cardId,
    context_box_id: packed.contextBoxId,
    ...(turn === undefined ? {} : { turn_id: turn.turnId }),
  };
}

const submitTo = (
  target: SubmitTurnRequest['target'],
  contextBoxId: SubmitTurnRequest['contextBoxId'],
  { input, tools }: { readonly input: NamedHandoff; readonly tools: HandlerTools },
): ReturnType<HandlerTools['submitTurn']> =>
  tools.submitTurn({
    target,
    contextBoxId,
    wait: input.wait ?? false,
    deadlineMs: inMs(input.deadline_seconds),
    budget: input.budget,
    priority: input.priority,
    view: input.view,
  });

/**
 * Hands a place on a tape to another agent: message, right and packed context in one commit. Rule: docs/reference/tape.md,
 * "Handoffs to other agents".
 */
export const contextHandoff: Handler<ContextHandoff> = {
  description:
    'Hand the work over to another agent. The agent gets this message and the tape up to the position that you name, and starts. With wait, the answer is its result.',
  input: contextHandoffSchema,
  namesProfiles: true,
  profileNames: ({ target_ref }) => {
    if (typeof target_ref !== 'string')
      return target_ref.profile_name === undefined ? [] : [target_ref.profile_name];
    const { kind, name } = readHandoffTarget(target_ref);
    return kind === 'agent' ? [] : [name];
  },
  handle: handoff,
};
