/**
 * One try of a submission: it is admitted, handled, written and announced.
 *
 * The tools of the handler add to the draft of the try. The draft is written together with the handler's answer, and determines
 * the announcements. Each try begins with a new draft.
 */
import { type BatchId, canonicalJson, KernelError, sha256, type TurnId } from '@boxcar/kernel';
import { holdErasures } from '@boxcar/store';
import type { Accepted, RuntimeCore } from '../core/index.js';
import type { CallerContext } from '../handler/index.js';
import { hasArgument } from '../tool/index.js';
import { checkParent, checkProject, isRefusedByArchive, replay } from './admit.js';
import { announceFirst, announceWritten } from './announce.js';
import { SubmissionDraft } from './draft.js';
import { handle } from './handle.js';
import type { Attempt } from './try-context.js';
import { UnitOfWork } from './unit-of-work.js';
import { explainRefusal, write } from './write.js';

export async function attempt(runtime: RuntimeCore, of: Attempt): Promise<Accepted> {
  const { options, caller, signal } = of;
  const { primitive, handler, plain, request } = of.parsed;
  const earlier = [...of.written];
  const requestHash = sha256(canonicalJson({ primitive, arguments: plain, source: caller.source.agentId }));
  /** Returns the first answer under the key. In a transaction of the caller, nothing is announced before its end. */
  const answerFirst = async (known: Accepted): Promise<Accepted> =>
    options.within !== undefined
      ? known
      : announceFirst(runtime, known, { key: request.key, tries: earlier, ring: options.call?.ring });
  const known = replay(caller, request.key, requestHash);
  if (known !== undefined) return answerFirst(known);
  checkProject(caller, primitive, options);
  checkParent(caller, options);
  const isOutside = isRefusedByArchive(primitive, options);
  signal.throwIfAborted();
  const ctx = contextOf(of);
  const isOwn = options.handler !== undefined || runtime.ownHandlers.has(handler);
  const draft = new SubmissionDraft({ projectId: caller.projectId, agentId: caller.source.agentId });
  const unit = new UnitOfWork({
    pool: runtime.pool,
    primitive,
    draft,
    isOwn,
    write: runtime.write,
    outer: options.within?.db,
  });
  try {
    const erasures = of.holdsErasures ? await holdErasures(unit.tx, caller.projectId) : caller.erasures;
    const handled = await handle(runtime, of, { ctx, isOwn, draft, unit, requestHash });
    if (handled.outcome === 'known') return await answerFirst(handled.known);
    const { answer } = handled;
    const { outcome } = draft;
    const { awaited, ending } = outcome;
    const accepted: Accepted = {
      projectId: caller.projectId,
      key: caller.key,
      answer,
      awaitedTurnId: awaited?.kind === 'turn' ? awaited.id : null,
      awaitedBatchId: awaited?.kind === 'batch' ? awaited.id : null,
      isReplay: false,
      ending,
    };
    if (ending !== null) {
      if (!unit.isEmpty)
        throw new KernelError('internal_error', {
          message: `${primitive}: endTurn cannot be combined with other effects.`,
        });
      return accepted;
    }
    if (options.within !== undefined && awaited !== undefined)
      throw cannotWait(primitive, hasArgument(handler, 'wait'));
    if (awaited !== undefined) options.call?.pass();
    of.written.push({ ...outcome, answer, awaitedBatchId: accepted.awaitedBatchId });
    expectEnds(runtime, of, { turnIds: outcome.turnIds, batchId: accepted.awaitedBatchId });
    const result = await write(unit, { of, ctx, draft, accepted, requestHash, isOutside, erasures });
    if (result.outcome === 'refused') {
      const again = await explainRefusal(runtime, of, { because: result.because, requestHash });
      return await answerFirst(again);
    }
    announceWritten(runtime, options, { ...outcome, turns: result.turns });
    return accepted;
  } finally {
    await unit.abandon();
  }
}

/** Registers the end that a submitting program waits for: the end of its turn or of its batch. Turns wait by their calls. */
function expectEnds(
  { watcher }: RuntimeCore,
  { options, caller }: Attempt,
  { turnIds, batchId }: { readonly turnIds: readonly TurnId[]; readonly batchId: BatchId | null },
): void {
  // A transaction of the caller may be rolled back, so nothing is registered.
  if (options.call !== undefined || options.within !== undefined) return;
  const ids = batchId !== null ? [batchId] : turnIds.length === 1 ? turnIds : [];
  watcher.expect(ids, [caller.projectId, options.projectId ?? 'default']);
}

function contextOf({ parsed, options, caller }: Attempt): CallerContext {
  const { source, parent } = caller;
  return {
    projectId: caller.projectId,
    primitive: parsed.primitive,
    source,
    channelId: options.channelId ?? parent?.channelId ?? 'public',
    traceparent: options.traceparent ?? null,
    parent: parent === undefined ? undefined : { ...parent },
  };
}

/** @param canOmit - True when the primitive has the argument `wait`. */
const cannotWait = (primitive: string, canOmit: boolean): KernelError =>
  new KernelError('bad_request', {
    message: canOmit
      ? `${primitive}: with tx nothing can be waited for, because the turns begin after your commit; give wait: false, and wait for turn_id (or batch_id) after the commit.`
      : `${primitive}: it waits, which nothing can in a transaction of yours; submit it after the commit, without tx.`,
    details: { primitive, field: canOmit ? 'wait' : 'tx' },
  });
