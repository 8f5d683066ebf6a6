/** Makes cards, boxes of listed cards, and grants. Nothing is written here. */
import {
  type AgentId,
  type BoxId,
  buildCard,
  type CardId,
  decideListedBox,
  type JsonValue,
  KernelError,
  MAX_CONTEXT_CARDS,
  type ProjectId,
  parseCardInput,
  parseId,
  ROLES,
  type Role,
} from '@boxcar/kernel';
import { type CallerTx, findCards, findReadableCards, loadBoxes } from '@boxcar/store';
import { findActor, newId } from '../lib/index.js';
import { dbOf, type Made, noRows, type PackIo } from './pack-io.js';

const MAX_BOX_BYTES = 16 * 1024 * 1024;

/** The role in a card's metadata; null when the metadata has no role. */
function parseRole(value: JsonValue | undefined, field: string): Role | null {
  if (value === undefined) return null;
  const role = ROLES.find((known) => known === value);
  if (role !== undefined) return role;
  throw new KernelError('bad_request', {
    message: `${field}: must be one of ${ROLES.join(', ')}.`,
    details: { field },
  });
}

/** The cards to make, and their author. */
export interface CardsRequest {
  readonly projectId: string;
  readonly authorId: string;
  readonly cards: readonly unknown[];
  readonly tx?: CallerTx | undefined;
}

/**
 * Makes cards. They belong to their author and can then be listed in a box.
 *
 * @returns Their ids, in order.
 */
export async function makeCards(io: PackIo, request: CardsRequest): Promise<Made<readonly CardId[]>> {
  const db = dbOf(io, request.tx);
  const actor = await findActor(db, request.projectId, request.authorId);
  const rows = noRows();
  checkCount(io, request.cards.length);
  const ids = addCards(io, rows, actor, request.cards);
  return { answer: ids, rows };
}

/** The box to make: new cards, existing cards, or both. */
export interface BoxRequest {
  readonly projectId: string;
  readonly sourceAgentId: string;
  readonly cards?: readonly unknown[] | undefined;
  readonly cardIds?: readonly string[] | undefined;
  readonly tx?: CallerTx | undefined;
}

/**
 * Makes a sealed box of new and existing cards, in this order: `cards`, then `cardIds`. Each existing card must belong to the
 * maker or be in a box that the maker may read.
 */
export async function makeBox(io: PackIo, request: BoxRequest): Promise<Made<BoxId>> {
  const db = dbOf(io, request.tx);
  const actor = await findActor(db, request.projectId, request.sourceAgentId);
  const rows = noRows();
  checkCount(io, (request.cards?.length ?? 0) + (request.cardIds?.length ?? 0));
  addCards(io, rows, actor, request.cards ?? []);
  const listed = rows.cards.map((card) => ({ id: card.id, tokens: card.tokenEstimate }));
  const cardIds = (request.cardIds ?? []).map((id, index) => parseId<'card'>(id, `card_ids.${index}`));
  if (cardIds.length > 0) {
    const known = await findCards(db, cardIds, actor.projectId);
    const foreign = cardIds.filter((id) => known.get(id)?.authorId !== actor.agentId);
    const readable =
      actor.agentId === actor.operatorId
        ? undefined
        : await findReadableCards(db, foreign, { projectId: actor.projectId, actorId: actor.agentId });
    cardIds.forEach((id, index) => {
      const card = known.get(id);
      if (card === undefined) {
        throw new KernelError('not_found', {
          message: `card_ids.${index}: no card ${id} in this project.`,
          details: { field: `card_ids.${index}`, card_id: id },
        });
      }
      if (card.authorId !== actor.agentId && readable !== undefined && !readable.has(id)) {
        throw new KernelError('box_not_authorized', {
          message: `card_ids.${index}: card ${id} is in no box that agent ${actor.agentId} may read.`,
          details: { field: `card_ids.${index}`, card_id: id, source_agent_id: actor.agentId },
        });
      }
      listed.push({ id, tokens: card.tokens });
    });
  }
  const boxId = newId<'box'>();
  rows.contextBoxes.push({
    ...decideListedBox(listed),
    id: boxId,
    projectId: actor.projectId,
    ownerAgentId: actor.agentId,
    makerAgentId: actor.agentId,
  });
  return { answer: boxId, rows };
}

/** The right to give: to whom, and on which box. */
export interface GrantRequest {
  readonly projectId: string;
  readonly sourceAgentId: string;
  readonly boxId: string;
  readonly grantee: string;
  readonly mode?: 'read' | 'append' | undefined;
  /** When the grant ends. Default: never. */
  readonly until?: string | Date | undefined;
  readonly tx?: CallerTx | undefined;
}

/**
 * Lets an agent read a box, or append to it. The giver must have this right itself. A right with bounds (a last position, an end)
 * is passed on within its bounds.
 *
 * @throws KernelError `not_found` for the box or the grantee, `box_not_authorized` when the giver does not have the right itself,
 * `bad_request` for appending to a sealed box.
 */
export async function makeGrant(io: PackIo, request: GrantRequest): Promise<Made<undefined>> {
  const db = dbOf(io, request.tx);
  const actor = await findActor(db, request.projectId, request.sourceAgentId);
  const grantee = await findActor(db, request.projectId, request.grantee);
  const boxId = parseId<'box'>(request.boxId, 'box_id');
  const box = (await loadBoxes(db, [boxId], { projectId: actor.projectId, actorId: actor.agentId })).get(
    boxId,
  );
  if (box === undefined)
    throw new KernelError('not_found', {
      message: `No box ${boxId} in this project.`,
      details: { box_id: boxId },
    });
  const mode = request.mode ?? 'read';
  if (mode === 'append' && box.kind === 'context')
    throw new KernelError('bad_request', {
      message: `mode: box ${boxId} is sealed, so no agent can append to it.`,
      details: { field: 'mode', box_id: boxId },
    });
  const held = mode === 'read' ? box.readGrant : box.appendGrant;
  if (!box.isOwn && held === null) {
    throw new KernelError('box_not_authorized', {
      message: `Agent ${actor.agentId} may not ${mode === 'read' ? 'read' : 'append to'} box ${boxId}.`,
      details: { box_id: boxId, source_agent_id: actor.agentId },
    });
  }
  const until = request.until === undefined ? null : new Date(request.until);
  if (until !== null && Number.isNaN(until.getTime()))
    throw new KernelError('bad_request', { message: 'until: is not a date.', details: { field: 'until' } });
  // A right that was given with bounds is passed on within its bounds.
  const bounds = box.isOwn ? null : held;
  const isBound =
    bounds?.until != null && (until === null || until.getTime() > new Date(bounds.until).getTime());
  const rows = noRows();
  rows.grants.push({
    projectId: actor.projectId,
    agentId: grantee.agentId,
    boxId,
    mode,
    uptoPosition: bounds?.upto ?? null,
    source: actor.agentId,
    expiresAt: isBound ? (bounds?.until ?? null) : (until?.toISOString() ?? null),
  });
  return { answer: undefined, rows };
}

/** Refuses too many cards before any card is processed. */
function checkCount(io: PackIo, cards: number): void {
  const limit = io.limits?.maxContextCards ?? MAX_CONTEXT_CARDS;
  if (cards <= limit) return;
  throw new KernelError('payload_too_large', {
    message: `The box would list ${cards} cards; the limit maxContextCards is ${limit}.`,
    details: { cards, limitCards: limit },
  });
}

function addCards(
  io: PackIo,
  rows: Made<unknown>['rows'],
  actor: { projectId: ProjectId; agentId: AgentId },
  inputs: readonly unknown[],
): CardId[] {
  const limitBytes = io.limits?.maxBoxBytes ?? MAX_BOX_BYTES;
  let sizeBytes = 0;
  return inputs.map((input, index) => {
    const parsed = parseCardInput(input, `cards.${index}`);
    const role = parsed.role ?? parseRole(parsed.metadata?.role, `cards.${index}.metadata.role`);
    const card = buildCard(
      {
        type: parsed.type,
        role,
        content: parsed.content,
        metadata: { ...parsed.metadata, ...(role === null ? {} : { role }) },
        authorId: actor.agentId,
      },
      { id: newId<'card'>(), projectId: actor.projectId },
      io.limits?.maxCardBytes,
    );
    sizeBytes += card.sizeBytes;
    if (sizeBytes > limitBytes)
      throw new KernelError('payload_too_large', {
        message: `cards.${index}: with it the new cards have ${sizeBytes} bytes together; the limit maxBoxBytes is ${limitBytes}.`,
        details: { field: `cards.${index}`, sizeBytes, limitBytes },
      });
    rows.cards.push(card);
    return card.id;
  });
}
