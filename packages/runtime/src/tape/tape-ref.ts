/** References to places on tapes: finds them, checks the rights of the actor, and freezes them. Rule: docs/reference/tape.md. */
import {
  type AgentId,
  agentIdIn,
  anchorNotFound,
  type BoxId,
  formatTapeRef,
  KernelError,
  type ProjectId,
  parseJsonValue,
  parseTapeRef,
  type TapeRef,
  toName,
  tryParseId,
} from '@boxcar/kernel';
import { findActor, findTapePlace, type Queryable, type TapePlace } from '@boxcar/store';

/** A frozen place on a tape: entries after `head` do not belong to it. */
export interface ResolvedTapeRef {
  /** A reference to the same place, with its head. */
  readonly ref: string;
  readonly boxId: BoxId;
  /** The position of the entry or of the anchor. */
  readonly position: number;
  /** The anchor with which a reader of this place begins: the last anchor up to `position`, or 1 without an anchor. */
  readonly start: number;
  readonly head: number;
  readonly isArchived: boolean;
}

/** A resolved reference and the place that was found. */
export interface FoundPlace {
  readonly resolved: ResolvedTapeRef;
  readonly place: TapePlace;
}

interface Seeking {
  readonly projectId: ProjectId;
  /** The agent whose rights count. */
  readonly actorId: AgentId;
  /** The name of the reference in errors. */
  readonly field: string;
}

const notFound = (field: string, message: string, details: Readonly<Record<string, unknown>>): KernelError =>
  new KernelError('not_found', { message: `${field}: ${message}.`, details: { field, ...details } });

function checkReadable(place: TapePlace, { field, actorId }: Seeking): void {
  if (place.readable !== '{}') return;
  throw new KernelError('box_not_authorized', {
    message: `${field}: agent ${actorId} may not read tape ${place.box_id}.`,
    details: { field, box_id: place.box_id, source_agent_id: actorId },
  });
}

/**
 * @throws KernelError `not_found` after the head; `box_not_authorized` after the last entry that the actor may read, so that the actor does
 *   not learn whether there are more entries.
 */
function checkReach(position: number, place: TapePlace, { field, actorId }: Seeking): void {
  const { box_id, head_position, last_readable } = place;
  if (position > head_position && last_readable === head_position)
    throw notFound(field, `tape ${box_id} has no entry ${position}, its last is ${head_position}`, {
      box_id,
      position,
      head_position,
    });
  if (position <= last_readable) return;
  throw new KernelError('box_not_authorized', {
    message: `${field}: agent ${actorId} may read tape ${box_id} up to entry ${last_readable} only.`,
    details: { field, box_id, position, upto_position: last_readable, source_agent_id: actorId },
  });
}

const wordsOf = ({ target, head }: TapeRef) => ({
  ...(target.kind === 'entry' ? { position: target.position } : { anchor: target.name }),
  ...(head === null ? {} : { head }),
});

/** An entry without a head is its own head. Every other reference gets this head, so that it stays the same place. */
function freeze(ref: TapeRef, head: number): string {
  const isFrozen = ref.target.kind === 'entry' && ref.head === null;
  return formatTapeRef(isFrozen ? ref : { ...ref, head });
}

/**
 * Finds the place that a reference names.
 *
 * @throws KernelError `bad_request` for a reference that is not valid, `not_found` for workspace, tape, entry or anchor,
 *   `box_not_authorized` for a place that the actor may not read.
 */
export async function findTapeRef(db: Queryable, text: string, seeking: Seeking): Promise<FoundPlace> {
  const { field, projectId } = seeking;
  const ref = parseTapeRef(text, field);
  const { target, head } = ref;
  const place = await findTapePlace(
    db,
    { tape: { id: tryParseId(ref.tape), name: ref.tape }, ...wordsOf(ref) },
    seeking,
  );
  if (place === undefined)
    throw notFound(field, `no tape '${ref.tape.slice(0, 200).toWellFormed()}' in this project`, {
      tape: ref.tape,
    });
  if (toName(ref.workspace) !== toName(place.workspace) && tryParseId(ref.workspace) !== projectId)
    throw notFound(field, `the workspace of this project is '${place.workspace}'`, {
      workspace: ref.workspace,
    });
  checkReadable(place, seeking);
  if (head !== null) checkReach(head, place, seeking);
  if (target.kind === 'entry') checkReach(target.position, place, seeking);
  if (place.is_readable === false)
    throw new KernelError('box_not_authorized', {
      message: `${field}: agent ${seeking.actorId} may not read entry ${place.position} of tape ${place.box_id}.`,
      details: {
        field,
        box_id: place.box_id,
        position: place.position,
        source_agent_id: seeking.actorId,
      },
    });
  if (place.position === null) throw anchorNotFound(target.kind === 'anchor' ? target.name : '');
  const frozenHead = head ?? (target.kind === 'entry' ? target.position : place.last_readable);
  return {
    place,
    resolved: toResolved(place, { ref: freeze(ref, frozenHead), position: place.position, head: frozenHead }),
  };
}

const toResolved = (
  place: TapePlace,
  { ref, position, head }: Pick<ResolvedTapeRef, 'ref' | 'position' | 'head'>,
): ResolvedTapeRef => ({
  ref,
  boxId: place.box_id,
  position,
  start: place.start_position ?? 1,
  head,
  isArchived: place.is_archived,
});

/** The last readable entry of a tape, by the id of the tape. */
export async function findTapeHead(db: Queryable, boxId: BoxId, seeking: Seeking): Promise<FoundPlace> {
  const place = await findTapePlace(db, { tape: { id: boxId, name: boxId } }, seeking);
  if (place === undefined)
    throw notFound(seeking.field, `no tape ${boxId} in this project`, { box_id: boxId });
  checkReadable(place, seeking);
  const position = place.last_readable;
  const ref = formatTapeRef({
    workspace: place.workspace,
    tape: boxId,
    target: { kind: 'entry', position },
    head: null,
  });
  return { place, resolved: toResolved(place, { ref, position, head: position }) };
}

/**
 * Finds the place that a reference names, with the rights of an agent; by default the operator.
 *
 * @throws KernelError as `findTapeRef`; `not_found` for the project or the agent.
 */
export async function resolveTapeRef(
  db: Queryable,
  text: string,
  { project, as }: { readonly project: string; readonly as: string | undefined },
): Promise<ResolvedTapeRef> {
  parseJsonValue(project, 'project_id');
  if (as !== undefined) parseJsonValue(as, 'as');
  const actor = await findActor(db, {
    project,
    projectId: tryParseId(project),
    agent: as ?? '',
    agentId: as === undefined ? undefined : agentIdIn(as),
  });
  if (actor === undefined) throw notFound('project_id', `no project '${project}'`, { project_id: project });
  const actorId = as === undefined ? actor.operatorId : actor.agentId;
  if (actorId === null) throw notFound('as', `no agent '${as}' in project '${project}'`, { agent: as });
  const { resolved } = await findTapeRef(db, text, {
    projectId: actor.projectId,
    actorId,
    field: 'tape_ref',
  });
  return resolved;
}
