/**
 * Chains: `handoff_chain` begins one, and `handoff_hop`, which only the turn of a chain may call, makes its next handoff.
 *
 * A chain is a turn like every other one; what a model decides for an agent, `nextMove` decides for it. So a hop is a call that waits, with
 * the same approval, recovery, budget, cancel and explanation.
 * Rule: docs/handoff.md, "Chains".
 */
import {
  type ChainArguments,
  type ChainHop,
  chainArgumentsSchema,
  DEFAULT_HANDOFF_SECONDS,
  type HandoffArguments,
  type JsonObject,
  type JsonValue,
  KernelError,
} from '@boxcar/kernel';
import { type ChainRow, type ChainStep, findChainOfTurn } from '@boxcar/store';
import { z } from 'zod';
import type { RuntimeCore } from '../core/index.js';
import type { Handler, KernelTools } from '../handler/index.js';
import { failureOf, featureDisabled, makeHandoff } from './handoff-primitive.js';
import type { MadeAs } from './handoff-request.js';
import type { HandoffParts, HandoffRules } from './parts.js';
import { QUEUE_ROOM_MS } from './serving-turn.js';

const MAX_NAME = 500;
/** Thirty days, the longest of all deadlines. */
const MAX_SECONDS = 30 * 86_400;

/** The whole of a chain as one request. */
function requestOf({ hops, ...rest }: ChainArguments, approvalMs: number): HandoffArguments {
  const names = `chain: ${hops.map(({ target_agent }) => target_agent).join(' → ')}`;
  const seconds = hops
    .flatMap((hop) => [hop, ...(hop.compensate === undefined ? [] : [hop.compensate])])
    .reduce(
      (sum, { timeout = DEFAULT_HANDOFF_SECONDS }) => sum + timeout + (approvalMs + QUEUE_ROOM_MS) / 1000,
      0,
    );
  return {
    ...rest,
    target_agent: names.slice(0, MAX_NAME).toWellFormed(),
    task: `Hand on, one after the other: ${hops.map(({ task }) => task).join('\n')}`,
    payload: { hops: hops as unknown as JsonValue },
    timeout: Math.min(seconds, MAX_SECONDS - QUEUE_ROOM_MS / 1000),
  };
}

/** What can be said of the primitive without a runtime. */
export const chainForm = {
  description: 'Hands on, one after the other, each with the result of the one before',
  input: chainArgumentsSchema,
} as const;

export function chainPrimitive(
  runtime: RuntimeCore,
  parts: HandoffParts,
  rules: () => HandoffRules,
): Handler<ChainArguments> {
  return {
    ...chainForm,
    isOff: () => !rules().isEnabled,
    handle: async (input, tools) => {
      const { isEnabled, gate } = rules();
      if (!isEnabled) throw featureDisabled();
      if (tools.ctx.parent !== undefined)
        throw new KernelError('bad_request', {
          message: 'handoff_chain: is begun from outside.',
          next: 'An agent hands off step by step, with the tool handoff.',
        });
      const scope = { runtime, parts, gate, tools: tools as KernelTools };
      return makeHandoff(scope, requestOf(input, gate.approvalMs ?? 0), {
        mode: 'chain',
        hop: null,
        compensates: null,
        sourceAgent: input.source_agent,
      });
    },
  };
}

/** The hops of a chain. @throws KernelError `card_damaged` after an erasure. */
export function hopsOf({ handoff_id, definition }: ChainRow): readonly ChainHop[] {
  if (definition === null || !Array.isArray(definition.hops))
    throw new KernelError('card_damaged', {
      message: 'What this chain was to do was erased.',
      details: { handoff_id },
    });
  return definition.hops as unknown as readonly ChainHop[];
}

/** The handoff of a hop, or the last one that was to undo it. */
export const stepOf = (
  { steps }: ChainRow,
  hop: number,
  mode: ChainStep['mode'] = 'handoff',
): ChainStep | undefined => steps.findLast((step) => step.mode === mode && step.hop === hop);

const resultOf = (step: ChainStep | undefined): Exclude<JsonValue, null> | undefined =>
  step === undefined || step.phase !== 'completed' ? undefined : (step.result ?? undefined);

/** What goes along with another request. @throws KernelError `card_damaged` after an erasure: what is left is not what was done. */
function passedOn(step: ChainStep | undefined): Exclude<JsonValue, null> | undefined {
  if (step?.is_erased === true)
    throw new KernelError('card_damaged', {
      message: `The result of hop ${step.hop} was erased.`,
      details: { handoff_id: step.handoff_id, hop: step.hop },
    });
  return resultOf(step);
}

/** The request of a hop: the result of the one before is its payload, or beside it. */
function hopRequest(chain: ChainRow, hop: number): HandoffArguments {
  const asked = hopsOf(chain)[hop - 1];
  if (asked === undefined) throw new KernelError('bad_request', { message: `handoff_hop: no hop ${hop}.` });
  const { compensate: _later, context, payload, ...rest } = asked;
  const before = passedOn(stepOf(chain, hop - 1));
  const also: JsonObject = payload === undefined || before === undefined ? {} : { previous_result: before };
  return {
    ...rest,
    context: { ...context, ...also },
    ...((payload ?? before) === undefined ? {} : { payload: payload ?? before }),
    ...(chain.run_id === null ? {} : { run_id: chain.run_id }),
  };
}

const asHop = ({ source_agent }: ChainRow, hop: number): MadeAs => ({
  mode: 'handoff',
  hop,
  compensates: null,
  sourceAgent: source_agent,
});

export const asUndo = (chain: ChainRow, hop: number): MadeAs => ({
  mode: 'compensate',
  hop,
  compensates: stepOf(chain, hop)?.handoff_id ?? null,
  sourceAgent: chain.source_agent,
});

/** The request that undoes a hop. */
export function undoRequest(chain: ChainRow, hop: number): HandoffArguments {
  const compensate = hopsOf(chain)[hop - 1]?.compensate;
  if (compensate === undefined)
    throw new KernelError('bad_request', { message: `handoff_hop: hop ${hop} has no compensation.` });
  const result = passedOn(stepOf(chain, hop));
  return {
    ...compensate,
    context: { ...compensate.context, compensates: stepOf(chain, hop)?.handoff_id ?? null },
    ...(result === undefined ? {} : { payload: result }),
    ...(chain.run_id === null ? {} : { run_id: chain.run_id }),
  };
}

const moveSchema = z.strictObject({
  /** Left out: the chain ends. */
  hop: z.int().min(1).optional(),
  undo: z.boolean().optional(),
});

export function hopPrimitive(
  runtime: RuntimeCore,
  parts: HandoffParts,
): Handler<z.output<typeof moveSchema>> {
  return {
    description: 'The next move of a chain of handoffs; no profile of a user can have it',
    input: moveSchema,
    failureOf,
    handle: async ({ hop, undo = false }, tools) => {
      const { db, ctx } = tools;
      const chain = ctx.parent && (await findChainOfTurn(db, ctx.parent.turnId));
      if (chain === undefined)
        throw new KernelError('bad_request', { message: 'handoff_hop: is a move of chains alone.' });
      if (hop === undefined) {
        tools.endTurn(resultOf(stepOf(chain, hopsOf(chain).length)) ?? null);
        return null;
      }
      const { gate } = parts.rules();
      const scope = { runtime, parts, gate, tools: tools as KernelTools };
      const answer = undo
        ? await makeHandoff(scope, undoRequest(chain, hop), asUndo(chain, hop))
        : await makeHandoff(scope, hopRequest(chain, hop), asHop(chain, hop));
      const { served_by } = answer as { readonly served_by?: string };
      if (served_by !== undefined) parts.serveSoon(served_by);
      return answer;
    },
  };
}
