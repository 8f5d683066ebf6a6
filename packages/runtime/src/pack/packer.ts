/**
 * The HandoverPacker: packs an explicit context box for the next agent's turn. The rules are the kernel's; `plan.ts`
 * loads what they need, and this file writes what they decide.
 *
 * However many boxes and cards: one statement for project and actor, one for profiles, one for boxes, one more when a
 * budget has to choose, one for the write.
 */
import {
  type AgentId,
  type BoxId,
  buildCard,
  type CardId,
  decideListedBox,
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
  MAX_CONTEXT_CARDS,
  PackingStrategies,
  type PackingStrategy,
  PLAIN_NAME,
  type ProjectId,
  parseCardInput,
  parseHandover,
  parseId,
  parseJsonValue,
  ROLES,
  type Role,
} from '@boxcar/kernel';
import {
  type CallerTx,
  emptySubmission,
  findCards,
  findProfiles,
  findReadableCards,
  loadBoxes,
  type NewGrant,
  type Queryable,
  type Submission,
  toQueryable,
  writeSubmission,
} from '@boxcar/store';
import { findActor, newId } from '../lib/index.js';
import { type ContextSpec, type PlanOptions, planContexts, type ResolvedSpec } from './plan.js';
import { type PackPreview, type PreviewOptions, previewPlan } from './preview.js';
import type { Selectors } from './selectors.js';

export interface PackLimits {
  readonly maxCardBytes?: number;
  readonly maxInstructionBytes?: number;
  readonly maxContextCards?: number;
  /** Contents of the cards that one call of `createBox` or `createCards` writes, together. Default 16 MiB. */
  readonly maxBoxBytes?: number;
}

const MAX_BOX_BYTES = 16 * 1024 * 1024;

/** Where a packer reads, and where its rows go: at once, or into a submission that is written later as a whole. */
export interface PackerIo {
  readonly db: Queryable;
  readonly limits?: PackLimits;
  readonly strategies: PackingStrategies;
  readonly selectors?: Selectors;
  write(submission: Submission, db: Queryable): Promise<void>;
}

export interface PackRequest {
  /** Id or name of the project. */
  readonly projectId: string;
  /** Author of the packed cards, for example the name of the tool or primitive. */
  readonly toolSuffix: string;
  /** Id or name of the agent in whose name the context is packed. */
  readonly sourceAgentId: string;
  readonly arguments: unknown;
  readonly handover: HandoverInput;
  /** `actor` (default): every inherited box must be readable by the source agent. `trusted`: the caller has checked. */
  readonly access?: 'actor' | 'trusted';
  /** Joins the caller's transaction, by a pg client or a drizzle node-postgres transaction: a rollback leaves nothing. */
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

/** The role a card's metadata names; null when it names none. */
function parseRole(value: JsonValue | undefined, field: string): Role | null {
  if (value === undefined) return null;
  const role = ROLES.find((known) => known === value);
  if (role !== undefined) return role;
  throw new KernelError('bad_request', {
    message: `${field}: must be one of ${ROLES.join(', ')}.`,
    details: { field },
  });
}

export class HandoverPacker {
  readonly #io: PackerIo;

  /**
   * @param options.db - A pool, or a client of the caller.
   * @param options.strategies - Beside the built-in ones, by name.
   * @param options.selectors - For previews of profiles that have one.
   */
  constructor(
    options:
      | {
          readonly db: Queryable;
          readonly limits?: PackLimits;
          readonly strategies?: PackingStrategies | Readonly<Record<string, PackingStrategy>>;
          readonly selectors?: Selectors;
        }
      | PackerIo,
  ) {
    if ('write' in options) {
      this.#io = options;
      return;
    }
    const { strategies = {}, ...rest } = options;
    this.#io = {
      ...rest,
      strategies: strategies instanceof PackingStrategies ? strategies : new PackingStrategies(strategies),
      write: async (submission, db) => void (await writeSubmission(db, submission)),
    };
  }

  #dbOf(tx: CallerTx | undefined): Queryable {
    return tx === undefined ? this.#io.db : toQueryable(tx);
  }

  get #planOptions(): PlanOptions {
    return { newId, ...this.#io.limits, strategies: this.#io.strategies };
  }

  /**
   * Packs one context box. Rules and order: docs/packing.md.
   *
   * @throws KernelError `bad_request`, `not_found`, `box_not_authorized`, `payload_too_large`; then nothing was written.
   */
  async packContext(request: PackRequest): Promise<PackedContext> {
    const [packed] = await this.packMany([request]);
    if (packed === undefined)
      throw new KernelError('internal_error', { message: 'Packing one context gave none.' });
    return packed;
  }

  /**
   * Packs without writing: what a child would see and what each card costs. It refuses what `packContext` refuses.
   *
   * @throws KernelError as `packContext`.
   */
  async preview(request: PackRequest, options: PreviewOptions = {}): Promise<PackPreview> {
    const { specs, db } = await this.#resolve([request]);
    const [plan] = await planContexts(db, specs, this.#planOptions);
    if (plan === undefined)
      throw new KernelError('internal_error', { message: 'Planning one context gave none.' });
    return previewPlan(db, plan, {
      ...options,
      newId,
      notices: handoverNotices(request.handover),
      selectors: this.#io.selectors,
    });
  }

  /** Packs several context boxes of one project and actor at once; all or none. */
  async packMany(requests: readonly PackRequest[]): Promise<readonly PackedContext[]> {
    if (requests.length === 0) return [];
    const { specs, db } = await this.#resolve(requests);
    const packed = await this.packResolved(specs, db);
    return specs.flatMap(({ profile }, index): PackedContext[] => {
      const context = packed[index];
      return context === undefined ? [] : [{ ...context, targetProfileBoxId: profile.boxId }];
    });
  }

  /** Checks what requests say by themselves, and finds the project, agent and profiles they name. */
  async #resolve(
    requests: readonly PackRequest[],
  ): Promise<{ readonly specs: readonly ResolvedSpec[]; readonly db: Queryable }> {
    const first = requests[0];
    if (first === undefined) return { specs: [], db: this.#io.db };
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
    const db = this.#dbOf(first.tx);
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

  /**
   * The fixed recipe of delegation: `instruction`, optional `result_fields`, the boxes of `input_box_ids`, the parent pointer.
   */
  packContextWithInstruction(
    request: Omit<PackRequest, 'handover' | 'arguments'> & {
      readonly profileName: string;
      readonly instruction: JsonValue;
      readonly inputBoxIds?: readonly string[];
      readonly resultFields?: JsonValue;
      /** The most tokens the context may have, and what to do when it would have more; default `error`. */
      readonly budgetTokens?: number;
      readonly budgetStrategy?: string;
    },
  ): Promise<PackedContext> {
    const { profileName, instruction, inputBoxIds, resultFields, budgetTokens, budgetStrategy, ...rest } =
      request;
    return this.packContext({
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
    });
  }

  /** Packs specs whose project and actor the caller has loaded. @internal */
  async packResolved(
    specs: readonly ContextSpec[],
    db: Queryable = this.#io.db,
  ): Promise<readonly Omit<PackedContext, 'targetProfileBoxId'>[]> {
    const plans = await planContexts(db, specs, this.#planOptions);
    if (plans.length === 0) return [];
    const submission = emptySubmission();
    const packed = plans.map(({ spec, packing }) => {
      const contextBoxId = newId<'box'>();
      for (const card of packing.cards) submission.cards.push(card);
      submission.contextBoxes.push({
        ...packing.box,
        id: contextBoxId,
        projectId: spec.projectId,
        ownerAgentId: null,
        makerAgentId: spec.actorId,
      });
      return { contextBoxId, attachedCardIds: packing.attachedCardIds };
    });
    await this.#io.write(submission, db);
    return packed;
  }

  /** Gives rights that the caller has checked. @internal */
  async giveGrants(grants: readonly NewGrant[]): Promise<void> {
    await this.#io.write({ ...emptySubmission(), grants: [...grants] }, this.#io.db);
  }

  /** Seals what an agent saw as a box of its own, whose id can be passed on like any other. @internal */
  async sealSnapshot(
    owner: { readonly projectId: ProjectId; readonly source: { readonly agentId: AgentId } },
    inherited: readonly InheritedBox[],
  ): Promise<BoxId> {
    const packing = decidePacking({
      projectId: owner.projectId,
      toolSuffix: 'snapshot',
      sourceAgentId: owner.source.agentId,
      arguments: {},
      handover: {},
      inherited,
      newId,
      ...(this.#io.limits?.maxContextCards === undefined
        ? {}
        : { maxCards: this.#io.limits.maxContextCards }),
    });
    const boxId = newId<'box'>();
    const submission = emptySubmission();
    submission.contextBoxes.push({
      ...packing.box,
      id: boxId,
      projectId: owner.projectId,
      ownerAgentId: owner.source.agentId,
      makerAgentId: owner.source.agentId,
    });
    await this.#io.write(submission, this.#io.db);
    return boxId;
  }

  /**
   * Writes cards. They belong to their author and can then be listed in a box.
   *
   * @returns Their ids, in order.
   */
  async createCards(request: {
    readonly projectId: string;
    readonly authorId: string;
    readonly cards: readonly unknown[];
    readonly tx?: CallerTx;
  }): Promise<readonly CardId[]> {
    const db = this.#dbOf(request.tx);
    const actor = await findActor(db, request.projectId, request.authorId);
    const submission = emptySubmission();
    this.#checkCount(request.cards.length);
    const ids = this.#addCards(submission, actor, request.cards);
    await this.#io.write(submission, db);
    return ids;
  }

  /**
   * Makes a sealed box of new cards and of existing ones, in this order: `cards`, then `cardIds`. Existing cards must stand
   * in a box that the maker may read, or be its own.
   */
  async createBox(request: {
    readonly projectId: string;
    readonly sourceAgentId: string;
    readonly cards?: readonly unknown[];
    readonly cardIds?: readonly string[];
    readonly tx?: CallerTx;
  }): Promise<BoxId> {
    const db = this.#dbOf(request.tx);
    const actor = await findActor(db, request.projectId, request.sourceAgentId);
    const submission = emptySubmission();
    this.#checkCount((request.cards?.length ?? 0) + (request.cardIds?.length ?? 0));
    this.#addCards(submission, actor, request.cards ?? []);
    const listed = submission.cards.map((card) => ({ id: card.id, tokens: card.tokenEstimate }));
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
            message: `card_ids.${index}: card ${id} stands in no box that agent ${actor.agentId} may read.`,
            details: { field: `card_ids.${index}`, card_id: id, source_agent_id: actor.agentId },
          });
        }
        listed.push({ id, tokens: card.tokens });
      });
    }
    const boxId = newId<'box'>();
    submission.contextBoxes.push({
      ...decideListedBox(listed),
      id: boxId,
      projectId: actor.projectId,
      ownerAgentId: actor.agentId,
      makerAgentId: actor.agentId,
    });
    await this.#io.write(submission, db);
    return boxId;
  }

  /**
   * Lets an agent read (or append to) a box. Who gives must be able to do it itself; a right that was given with bounds (a
   * last position, an end) is passed on within them.
   *
   * @throws KernelError `not_found` for the box or the grantee, `box_not_authorized` when the giver may not do it itself,
   * `bad_request` for appending to a sealed box.
   */
  async grantBox(request: {
    readonly projectId: string;
    readonly sourceAgentId: string;
    readonly boxId: string;
    readonly grantee: string;
    readonly mode?: 'read' | 'append';
    /** When the grant ends; none = never. */
    readonly until?: string | Date;
    readonly tx?: CallerTx;
  }): Promise<void> {
    const db = this.#dbOf(request.tx);
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
        message: `mode: box ${boxId} is sealed, nobody can append to it.`,
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
      throw new KernelError('bad_request', { message: 'until: is no date.', details: { field: 'until' } });
    // What was given with bounds is passed on within them.
    const bounds = box.isOwn ? null : held;
    const isBound =
      bounds?.until != null && (until === null || until.getTime() > new Date(bounds.until).getTime());
    const submission = emptySubmission();
    submission.grants.push({
      projectId: actor.projectId,
      agentId: grantee.agentId,
      boxId,
      mode,
      uptoPosition: bounds?.upto ?? null,
      source: actor.agentId,
      expiresAt: isBound ? (bounds?.until ?? null) : (until?.toISOString() ?? null),
    });
    await this.#io.write(submission, db);
  }

  /** Before the cards are looked at: what is too much is not worth it. */
  #checkCount(cards: number): void {
    const limit = this.#io.limits?.maxContextCards ?? MAX_CONTEXT_CARDS;
    if (cards <= limit) return;
    throw new KernelError('payload_too_large', {
      message: `The box would list ${cards} cards; the limit maxContextCards is ${limit}.`,
      details: { cards, limitCards: limit },
    });
  }

  #addCards(
    submission: Submission,
    actor: { projectId: ProjectId; agentId: AgentId },
    inputs: readonly unknown[],
  ): CardId[] {
    const limitBytes = this.#io.limits?.maxBoxBytes ?? MAX_BOX_BYTES;
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
        this.#io.limits?.maxCardBytes,
      );
      sizeBytes += card.sizeBytes;
      if (sizeBytes > limitBytes)
        throw new KernelError('payload_too_large', {
          message: `cards.${index}: with it the new cards have ${sizeBytes} bytes together; the limit maxBoxBytes is ${limitBytes}.`,
          details: { field: `cards.${index}`, sizeBytes, limitBytes },
        });
      submission.cards.push(card);
      return card.id;
    });
  }
}
