/** Lets a person retry the compensation of a failed chain that left hops undone. Rule: docs/reference/handoff.md, "Chains". */
import { type HandoffId, isFinalPhase, KernelError, type ProjectId } from '@boxcar/kernel';
import { type ChainRow, findChain, markRolledBack } from '@boxcar/store';
import { z } from 'zod';
import type { RuntimeCore } from '../core/index.js';
import type { Handler, KernelTools } from '../handler/index.js';
import { hopsOf, readMove, stepOf } from './chain-primitives.js';
import { handOff, waitForAnswer } from './hand-off.js';
import { failureOf, makeHandoff } from './handoff-primitive.js';
import type { HandoffParts, HandoffRules } from './parts.js';

interface RetryOptions {
  readonly projectId: ProjectId;
  readonly parts: HandoffParts;
  readonly rules: () => HandoffRules;
  readonly signal?: AbortSignal | undefined;
}

/** Completed hops that have not been undone, the last hop first. */
const leftHops = (chain: ChainRow): readonly number[] =>
  hopsOf(chain)
    .flatMap(({ has_compensation }, at) => (has_compensation ? [at + 1] : []))
    .filter((hop) => stepOf(chain, hop)?.phase === 'completed')
    .filter(
      (hop) =>
        !chain.steps.some(
          (step) => step.mode === 'compensate' && step.hop === hop && step.phase === 'completed',
        ),
    )
    .reverse();

/** @throws KernelError the error of a failed compensation; `conflict`, `not_found`. */
export async function retryCompensation(
  runtime: RuntimeCore,
  handoffId: HandoffId,
  options: RetryOptions,
): Promise<void> {
  const { projectId } = options;
  const chain = await findChain(runtime.pool, { handoffId, projectId });
  if (chain === undefined)
    throw new KernelError('not_found', {
      message: `No chain ${handoffId} in this project.`,
      details: { handoff_id: handoffId },
    });
  if (!isFinalPhase(chain.phase) || ['completed', 'rolled_back'].includes(chain.phase))
    throw new KernelError('conflict', {
      message: `Chain ${handoffId} is ${chain.phase}: there is nothing to make up for.`,
      details: { handoff_id: handoffId, phase: chain.phase },
    });
  for (const hop of leftHops(chain)) await undo(runtime, chain, { hop, ...options });
  await markRolledBack(runtime.pool, handoffId);
}

/**
 * Two people who retry at once make one handoff: both count the same attempts and so use the same key, and both wait for an attempt that is
 * under way.
 */
async function undo(
  runtime: RuntimeCore,
  chain: ChainRow,
  { hop, parts, rules, projectId, signal }: RetryOptions & { readonly hop: number },
): Promise<unknown> {
  const tries = chain.steps.filter((step) => step.mode === 'compensate' && step.hop === hop);
  const open = tries.find(({ phase }) => !isFinalPhase(phase));
  if (open !== undefined) return waitForAnswer(runtime, open.handoff_id, { projectId, signal });
  const { request: asked, place } = await readMove(
    runtime.pool,
    { handoffId: chain.handoff_id },
    { hop, isUndo: true },
  );
  const request = {
    ...asked,
    source_agent: chain.source_agent,
    parent_handoff_id: chain.handoff_id,
    idempotency_key: `compensate:${chain.handoff_id}:${hop}:${tries.length + 1}`,
  };
  const handler: Handler = {
    description: 'Carries out a compensation again.',
    input: z.unknown(),
    failureOf,
    handle: (_input, tools) => {
      const scope = { runtime, parts, gate: rules().gate, tools: tools as KernelTools };
      return makeHandoff(scope, request, place);
    },
  };
  return handOff(runtime, request as never, { projectId, handler, signal, parts });
}
