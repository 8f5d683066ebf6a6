/**
 * Chains: `handoff_chain` begins a chain. `handoff_hop`, which only the turn of a chain may call, makes its next handoff.
 *
 * A chain is a turn like every other turn; `nextMove` makes the decisions that a model makes for an agent. So a hop is a call that waits,
 * with the same approval, recovery, budget, cancel and explanation.
 * Rule: docs/reference/handoff.md, "Chains".
 */
import {
  type ChainArguments,
  type ChainHop,
  chainArgumentsSchema,
  DEFAULT_HANDOFF_SECONDS,
  type HandoffArguments,
  type HandoffId,
  type JsonObject,
  type JsonValue,
  KernelError,
  type TurnId,
} from '@boxcar/kernel';
import {
  type ChainHopRow,
  type ChainMatter,
  type ChainRow,
  type ChainStep,
  findChainMatter,
  type Queryable,
} from '@boxcar/store';
import { z } from 'zod';
import type { RuntimeCore } from '../core/index.js';
import type { Handler, KernelTools } from '../handler/index.js';
import { failureOf, featureDisabled, makeHandoff } from './handoff-primitive.js';
import type { MadeAs } from './handoff-request.js';
import type { HandoffParts, HandoffRules } from './parts.js';
import { QUEUE_ROOM_MS } from './serving-turn.js';

const MAX_NAME = 500;
/** Thirty days, the longest deadline that exists. */
const MAX_SECONDS = 30 * 86_400;

/** Describes the whole chain as one request. */
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

/** The parts of the primitive that need no runtime. */
export const chainForm = {
  description:
    'Hand a task to several targets in sequence. Each target gets the result of the target before it.',
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

const damaged = (handoffId: HandoffId): KernelError =>
  new KernelError('card_damaged', {
    message: 'What this chain was to do was erased.',
    details: { handoff_id: handoffId },
  });

/** The hops of a chain. @throws KernelError `card_damaged` after an erasure. */
export function hopsOf({ handoff_id, hops }: ChainRow): readonly ChainHopRow[] {
  if (hops === null) throw damaged(handoff_id);
  return hops;
}

/** The handoff of a hop, or with mode `compensate` the latest handoff that tried to undo the hop. */
export const stepOf = (
  { steps }: ChainRow,
  hop: number,
  mode: ChainStep['mode'] = 'handoff',
): ChainStep | undefined => steps.findLast((step) => step.mode === mode && step.hop === hop);

const resultOf = ({ result }: ChainMatter): Exclude<JsonValue, null> | undefined => result ?? undefined;

/**
 * The result that goes into another request. @throws KernelError `card_damaged` after an erasure: the remaining content is not the original
 * result.
 */
function passedOn(matter: ChainMatter, hop: number): Exclude<JsonValue, null> | undefined {
  if (matter.is_erased === true)
    throw new KernelError('card_damaged', {
      message: `The result of hop ${hop} was erased.`,
      details: { handoff_id: matter.given_by, hop },
    });
  return resultOf(matter);
}

/** @throws KernelError `card_damaged`, `bad_request`. */
function askedOf({ handoff_id, is_whole, asked }: ChainMatter, hop: number): ChainHop {
  if (!is_whole) throw damaged(handoff_id);
  if (asked === null) throw new KernelError('bad_request', { message: `handoff_hop: no hop ${hop}.` });
  return asked as unknown as ChainHop;
}

const runOf = ({ run_id }: ChainMatter): { readonly run_id?: string } => (run_id === null ? {} : { run_id });

/**
 * The request of a hop. The result of the hop before it becomes the payload; if the hop has its own payload, the result goes into the
 * context.
 */
function hopRequest(matter: ChainMatter, hop: number): HandoffArguments {
  const { compensate: _later, context, payload, ...rest } = askedOf(matter, hop);
  const before = passedOn(matter, hop - 1);
  const also: JsonObject = payload === undefined || before === undefined ? {} : { previous_result: before };
  return {
    ...rest,
    context: { ...context, ...also },
    ...((payload ?? before) === undefined ? {} : { payload: payload ?? before }),
    ...runOf(matter),
  };
}

/** The request that undoes a hop. */
function undoRequest(matter: ChainMatter, hop: number): HandoffArguments {
  const { compensate } = askedOf(matter, hop);
  if (compensate === undefined)
    throw new KernelError('bad_request', { message: `handoff_hop: hop ${hop} has no compensation.` });
  const result = passedOn(matter, hop);
  return {
    ...compensate,
    context: { ...compensate.context, compensates: matter.given_by },
    ...(result === undefined ? {} : { payload: result }),
    ...runOf(matter),
  };
}

/**
 * The handoff of a move: its request, and its place in the chain. Of all results, only the result that it passes on is read.
 *
 * @param move.isUndo - The move undoes the hop.
 * @throws KernelError `bad_request`; `card_damaged` after an erasure.
 */
export async function readMove(
  db: Queryable,
  chain: { readonly turnId: TurnId } | { readonly handoffId: HandoffId },
  { hop, isUndo }: { readonly hop: number; readonly isUndo: boolean },
): Promise<{ readonly request: HandoffArguments; readonly place: MadeAs }> {
  const matter = await findChainMatter(db, { ...chain, hop, resultOf: isUndo ? hop : hop - 1 });
  if (matter === undefined) throw notOfChain();
  return {
    request: isUndo ? undoRequest(matter, hop) : hopRequest(matter, hop),
    place: {
      mode: isUndo ? 'compensate' : 'handoff',
      hop,
      compensates: isUndo ? matter.given_by : null,
      sourceAgent: matter.source_agent,
    },
  };
}

const notOfChain = (): KernelError =>
  new KernelError('bad_request', { message: 'handoff_hop: is a move of chains alone.' });

const moveSchema = z.strictObject({
  /** When omitted, the chain ends. */
  hop: z.int().min(1).optional(),
  undo: z.boolean().optional(),
});

export function hopPrimitive(
  runtime: RuntimeCore,
  parts: HandoffParts,
): Handler<z.output<typeof moveSchema>> {
  return {
    description: 'The next move of a chain of handoffs; no profile of a user can have it',
    isInternal: true,
    input: moveSchema,
    failureOf,
    handle: async ({ hop, undo = false }, tools) => {
      const { db, ctx } = tools;
      if (ctx.parent === undefined) throw notOfChain();
      const { turnId } = ctx.parent;
      if (hop === undefined) {
        const last = await findChainMatter(db, { turnId, hop: null, resultOf: null });
        if (last === undefined) throw notOfChain();
        tools.endTurn(resultOf(last) ?? null);
        return null;
      }
      const { request, place } = await readMove(db, { turnId }, { hop, isUndo: undo });
      const { gate } = parts.rules();
      const scope = { runtime, parts, gate, tools: tools as KernelTools };
      // The next move reads the result from its handoff.
      const { result: _result, ...answer } = (await makeHandoff(scope, request, place)) as JsonObject;
      const { served_by } = answer;
      if (typeof served_by === 'string') parts.serveSoon(served_by);
      return answer;
    },
  };
}
