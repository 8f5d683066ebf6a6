/**
 * Makes context boxes from requests. The rules are the kernel's; `plan.ts` loads the rows that they need. Nothing is written
 * here.
 */
import {
  type AgentId,
  type BoxId,
  type CardId,
  decidePacking,
  decideTargetProfile,
  type HandoverInput,
  handoverNotices,
  type InheritedBox,
  instructionHandover,
  isJsonObject,
  isPlainName,
  type JsonObject,
  type JsonValue,
  KernelError,
  PLAIN_NAME,
  type ProjectId,
  parseHandover,
  parseJsonValue,
} from '@boxcar/kernel';
import { type CallerTx, findProfiles, type Queryable } from '@boxcar/store';
import { findActor, newId } from '../lib/index.js';
import { dbOf, type Made, noRows, type PackIo } from './pack-io.js';
import { type ContextSpec, type PlanOptions, planContexts, type ResolvedSpec } from './plan.js';
import { previewPlan } from './preview.js';
import type { PackPreview, PreviewOptions } from './preview-types.js';

export interface PackRequest {
  /** Id or name of the project. */
  readonly projectId: string;
  /** Author of the packed cards, for example the name of the tool or primitive. */
  readonly toolSuffix: string;
  /** Id or name of the agent in whose name the context is packed. */
  readonly sourceAgentId: string;
  readonly arguments: unknown;
  readonly handover: HandoverInput;
  /**
   * `actor` (default): the source agent must be allowed to read every inherited box. `trusted`: the caller has already checked
   * access.
   */
  readonly access?: 'actor' | 'trusted';
  /** Joins the caller's transaction, as a pg client or a drizzle node-postgres transaction: a rollback leaves no rows. */
  readonly tx?: CallerTx;
}

export interface PackedContext {
  readonly contextBoxId: BoxId;
  readonly targetProfileBoxId: BoxId;
  /** Every card id of the box, in stored order. */
  readonly attachedCardIds: readonly CardId[];
}

function parseArguments(input: unknown): JsonObject {
  const value = parseJsonValue(input, 'arguments');
  if (!isJsonObject(value))
    throw new KernelError('bad_request', {
      message: 'arguments: must be an object.',
      details: { field: 'arguments' },
    });
  return value;
}

const planOptions = ({ limits, strategies }: PackIo): PlanOptions => ({ newId, ...limits, strategies });

/** Checks each request by itself, then finds the project, agent and profiles that the requests name. */
async function resolveRequests(
  io: PackIo,
  requests: readonly PackRequest[],
): Promise<{ readonly specs: readonly ResolvedSpec[]; readonly db: Queryable }> {
  const first = requests[0];
  if (first === undefined) return { specs: [], db: io.db };
  const parsed = requests.map((request) => {
    if (
      request.projectId !== first.projectId ||
      request.sourceAgentId !== first.sourceAgentId ||
      request.tx !== first.tx
    ) {
      throw new KernelError('bad_request', {
        message: 'packMany: all requests must share projectId, sourceAgentId and tx.',
      });
    }
    if (!isPlainName(request.toolSuffix))
      throw new KernelError('bad_request', {
        message: `toolSuffix: ${PLAIN_NAME}.`,
        details: { field: 'toolSuffix' },
      });
    const args = parseArguments(request.arguments);
    const handover = parseHandover(request.handover);
    return { request, args, handover, profileName: decideTargetProfile(args, handover) };
  });
  const db = dbOf(io, first.tx);
  const actor = await findActor(db, first.projectId, first.sourceAgentId);
  const profiles = await findProfiles(db, actor.projectId, [
    ...new Set(parsed.map((item) => item.profileName)),
  ]);
  const specs = parsed.map(({ request, args, handover, profileName }): ResolvedSpec => {
    const profile = profiles.get(profileName);
    if (profile === undefined) {
      throw new KernelError('not_found', {
        message: `No profile '${profileName}' in project ${request.projectId}.`,
        details: { profile_name: profileName, project_id: actor.projectId },
      });
    }
    return {
      projectId: actor.projectId,
      actorId: actor.agentId,
      toolSuffix: request.toolSuffix,
      arguments: args,
      handover,
      profile,
      access: request.access ?? 'actor',
    };
  });
  return { specs, db };
}

/** Packs several context boxes of one project and actor at once. All are packed or none. */
export async function makeContexts(
  io: PackIo,
  requests: readonly PackRequest[],
): Promise<Made<readonly PackedContext[]>> {
  const { specs, db } = await resolveRequests(io, requests);
  const { answer: packed, rows } = await makeResolved(io, specs, db);
  const answer = specs.flatMap(({ profile }, index): PackedContext[] => {
    const context = packed[index];
    return context === undefined ? [] : [{ ...context, targetProfileBoxId: profile.boxId }];
  });
  return { answer, rows };
}

/** As `makeContexts` for one request. */
export async function makeContext(io: PackIo, request: PackRequest): Promise<Made<PackedContext>> {
  const { answer, rows } = await makeContexts(io, [request]);
  const [packed] = answer;
  if (packed === undefined)
    throw new KernelError('internal_error', { message: 'Packing one context gave none.' });
  return { answer: packed, rows };
}

/** Packs specs whose project and actor the caller has loaded. */
export async function makeResolved(
  io: PackIo,
  specs: readonly ContextSpec[],
  db: Queryable = io.db,
): Promise<Made<readonly Omit<PackedContext, 'targetProfileBoxId'>[]>> {
  const plans = await planContexts(db, specs, planOptions(io));
  const rows = noRows();
  const answer = plans.map(({ spec, packing }) => {
    const contextBoxId = newId<'box'>();
    for (const card of packing.cards) rows.cards.push(card);
    rows.contextBoxes.push({
      ...packing.box,
      id: contextBoxId,
      projectId: spec.projectId,
      ownerAgentId: null,
      makerAgentId: spec.actorId,
    });
    return { contextBoxId, attachedCardIds: packing.attachedCardIds };
  });
  return { answer, rows };
}

/**
 * Packs without writing: shows the context that a child would see, and the cost of each card. It throws the same errors as
 * `packContext`.
 *
 * @throws KernelError as `packContext`.
 */
export async function previewContext(
  io: PackIo,
  request: PackRequest,
  options: PreviewOptions = {},
): Promise<PackPreview> {
  const { specs, db } = await resolveRequests(io, [request]);
  const [plan] = await planContexts(db, specs, planOptions(io));
  if (plan === undefined)
    throw new KernelError('internal_error', { message: 'Planning one context gave none.' });
  return previewPlan(db, plan, {
    ...options,
    newId,
    notices: handoverNotices(request.handover),
    selectors: io.selectors,
  });
}

/** Seals an agent's view as a separate box. The box's id can be passed on like any other id. */
export function makeSnapshot(
  io: PackIo,
  owner: { readonly projectId: ProjectId; readonly source: { readonly agentId: AgentId } },
  inherited: readonly InheritedBox[],
): Made<BoxId> {
  const packing = decidePacking({
    projectId: owner.projectId,
    toolSuffix: 'snapshot',
    sourceAgentId: owner.source.agentId,
    arguments: {},
    handover: {},
    inherited,
    newId,
    maxCards: io.limits?.maxContextCards,
  });
  const boxId = newId<'box'>();
  const rows = noRows();
  rows.contextBoxes.push({
    ...packing.box,
    id: boxId,
    projectId: owner.projectId,
    ownerAgentId: owner.source.agentId,
    makerAgentId: owner.source.agentId,
  });
  return { answer: boxId, rows };
}

/** A packing whose handover is that of a delegation: an instruction and boxes to inherit. */
export type InstructionRequest = Omit<PackRequest, 'handover' | 'arguments'> & {
  readonly profileName: string;
  readonly instruction: JsonValue;
  readonly inputBoxIds?: readonly string[] | undefined;
  readonly resultFields?: JsonValue | undefined;
  /** The maximum tokens of the context, and the strategy when the context would be larger; default `error`. */
  readonly budgetTokens?: number | undefined;
  readonly budgetStrategy?: string | undefined;
};

/** The fixed recipe of delegation: `instruction`, optional `result_fields`, the boxes of `input_box_ids`, the parent pointer. */
export function toPackRequest(request: InstructionRequest): PackRequest {
  const { profileName, instruction, inputBoxIds, resultFields, budgetTokens, budgetStrategy, ...rest } =
    request;
  return {
    ...rest,
    arguments: {
      instruction,
      ...(resultFields === undefined ? {} : { result_fields: resultFields }),
      ...(inputBoxIds === undefined ? {} : { input_box_ids: inputBoxIds }),
    },
    handover: instructionHandover(profileName, {
      budget_tokens: budgetTokens,
      budget_strategy: budgetStrategy,
    }),
  };
}
