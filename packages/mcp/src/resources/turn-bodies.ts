/** Runs, contexts of turns and positions on tapes as resources, with the rights of the client. */
import { KernelError, parseTapeRef, type TapeQuery, tryParseId } from '@boxcar/kernel';
import { findActor, type ResolvedTapeRef } from '@boxcar/runtime';
import { findReadableContext, inspectBox, readRunTurns } from '@boxcar/store/report';
import type { McpClientScope } from '../client-scope.js';
import { type Body, cursorError, jsonBody, readPosition } from './body.js';

const PAGE = 500;

const readerOf = async ({ runtime, projectId, as }: McpClientScope) => {
  const actor = await findActor(runtime.pool, projectId, as);
  return { projectId: actor.projectId, actorId: actor.agentId };
};

/** Undefined: the client can see no turn of such a run. */
export async function runBody(
  scope: McpClientScope,
  { runId, cursor }: { readonly runId: string; readonly cursor: string | undefined },
): Promise<Body | undefined> {
  const id = tryParseId<'run'>(runId);
  if (id === undefined) return undefined;
  const after = cursor === undefined ? undefined : tryParseId<'turn'>(cursor);
  if (cursor !== undefined && after === undefined) throw cursorError();
  const reader = await readerOf(scope);
  const { turns, next } = await readRunTurns(scope.runtime.pool, id, { ...reader, after, limit: PAGE });
  if (turns.length === 0) return undefined;
  return jsonBody({ run_id: id, turns, has_more: next !== null, next_cursor: next });
}

/** Undefined: the client may read the context of no such turn. */
export async function turnContextBody(
  scope: McpClientScope,
  { turnId, cursor }: { readonly turnId: string; readonly cursor: string | undefined },
): Promise<Body | undefined> {
  const id = tryParseId<'turn'>(turnId);
  const after = readPosition(cursor);
  if (id === undefined) return undefined;
  const { pool } = scope.runtime;
  const reader = await readerOf(scope);
  const found = await findReadableContext(pool, id, reader);
  if (found === undefined) return undefined;
  const { context_box_id, ...turn } = found;
  const box = await inspectBox(pool, context_box_id, {
    project: reader.projectId,
    after,
    limit: PAGE,
    withContents: true,
  });
  return jsonBody({
    ...turn,
    context_box_id,
    count: box.count,
    tokens: box.tokens,
    entries: box.entries,
    has_more: box.next !== null,
    next_cursor: box.next,
  });
}

export const resolveTape = (
  { runtime, projectId, as }: McpClientScope,
  ref: string,
): Promise<ResolvedTapeRef> => runtime.resolveTapeRef(ref, { projectId, as });

const between = (limit: number): TapeQuery => ({
  slice: { kind: 'all' },
  kinds: [],
  from: null,
  until: null,
  limit,
  text: null,
});

/** A single entry; from an anchor, all entries up to the head, page by page. */
export async function tapeBody(
  scope: McpClientScope,
  { ref, cursor }: { readonly ref: string; readonly cursor: string | undefined },
): Promise<Body> {
  const { runtime, projectId, as } = scope;
  const asked = readPosition(cursor);
  const place = await resolveTape(scope, ref);
  const isEntry = parseTapeRef(ref).target.kind === 'entry';
  const last = isEntry ? place.position : place.head;
  const after = Math.max(asked, place.position - 1);
  if (after >= last && asked > 0) throw cursorError();
  const tape = await runtime.tape({ box: place.boxId }, { projectId, as });
  const page = await tape.selectPage(between(Math.min(PAGE, last - after)), { after });
  const entries = page.records.filter(({ position }) => position <= last);
  const end = entries.at(-1)?.position ?? last;
  const hasMore = entries.length > 0 && end < last;
  if (entries.length === 0 && asked === 0)
    throw new KernelError('not_found', { message: `${ref}: nothing is left of this place.` });
  return jsonBody({
    tape_ref: place.ref,
    box_id: place.boxId,
    position: place.position,
    head: place.head,
    entries,
    has_more: hasMore,
    next_cursor: hasMore ? end : null,
  });
}
