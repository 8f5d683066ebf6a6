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
  type CardId,
  type InheritedBox,
  PackingStrategies,
  type PackingStrategy,
  type ProjectId,
} from '@boxcar/kernel';
import {
  type CallerTx,
  emptySubmission,
  type NewGrant,
  type Queryable,
  writeSubmission,
} from '@boxcar/store';
import {
  type BoxRequest,
  type CardsRequest,
  type GrantRequest,
  makeBox,
  makeCards,
  makeGrant,
} from './make-boxes.js';
import {
  type InstructionRequest,
  makeContext,
  makeContexts,
  type PackedContext,
  type PackRequest,
  previewContext,
  toPackRequest,
} from './make-contexts.js';
import { dbOf, type Made, type PackIo, type PackLimits } from './pack-io.js';
import type { ContextSpec } from './plan.js';
import type { PackPreview, PreviewOptions } from './preview-types.js';
import type { Selectors } from './selectors.js';

/** Packs and writes at once, in the caller's transaction if there is one. That of a handler writes with its primitive. */
export class HandoverPacker {
  readonly #io: PackIo;

  /**
   * @param options.db - A pool, or a client of the caller.
   * @param options.strategies - Beside the built-in ones, by name.
   * @param options.selectors - For previews of profiles that have one.
   */
  constructor({
    strategies = {},
    ...rest
  }: {
    readonly db: Queryable;
    readonly limits?: PackLimits | undefined;
    readonly strategies?: PackingStrategies | Readonly<Record<string, PackingStrategy>>;
    readonly selectors?: Selectors | undefined;
  }) {
    this.#io = {
      ...rest,
      strategies: strategies instanceof PackingStrategies ? strategies : new PackingStrategies(strategies),
    };
  }

  /** Writes what a packing makes. @internal */
  protected async write<T>(make: () => Promise<Made<T>>, tx: CallerTx | undefined): Promise<T> {
    const { answer, rows } = await make();
    await writeSubmission(dbOf(this.#io, tx), { ...emptySubmission(), ...rows });
    return answer;
  }

  /**
   * Packs one context box. Rules and order: docs/reference/packing.md.
   *
   * @throws KernelError `bad_request`, `not_found`, `box_not_authorized`, `payload_too_large`; then nothing was written.
   */
  packContext(request: PackRequest): Promise<PackedContext> {
    return this.write(() => makeContext(this.#io, request), request.tx);
  }

  /**
   * Packs without writing: what a child would see and what each card costs. It refuses what `packContext` refuses.
   *
   * @throws KernelError as `packContext`.
   */
  preview(request: PackRequest, options: PreviewOptions = {}): Promise<PackPreview> {
    return previewContext(this.#io, request, options);
  }

  /** Packs several context boxes of one project and actor at once; all or none. */
  async packMany(requests: readonly PackRequest[]): Promise<readonly PackedContext[]> {
    if (requests.length === 0) return [];
    return this.write(() => makeContexts(this.#io, requests), requests[0]?.tx);
  }

  /**
   * The fixed recipe of delegation: `instruction`, optional `result_fields`, the boxes of `input_box_ids`, the parent pointer.
   */
  packContextWithInstruction(request: InstructionRequest): Promise<PackedContext> {
    return this.packContext(toPackRequest(request));
  }

  /**
   * Writes cards. They belong to their author and can then be listed in a box.
   *
   * @returns Their ids, in order.
   */
  createCards(request: CardsRequest): Promise<readonly CardId[]> {
    return this.write(() => makeCards(this.#io, request), request.tx);
  }

  /**
   * Makes a sealed box of new cards and of existing ones, in this order: `cards`, then `cardIds`. Existing cards must stand
   * in a box that the maker may read, or be its own.
   */
  createBox(request: BoxRequest): Promise<BoxId> {
    return this.write(() => makeBox(this.#io, request), request.tx);
  }

  /**
   * Lets an agent read (or append to) a box. Who gives must be able to do it itself; a right that was given with bounds (a
   * last position, an end) is passed on within them.
   *
   * @throws KernelError `not_found` for the box or the grantee, `box_not_authorized` when the giver may not do it itself,
   * `bad_request` for appending to a sealed box.
   */
  async grantBox(request: GrantRequest): Promise<void> {
    await this.write(() => makeGrant(this.#io, request), request.tx);
  }
}

/** What handlers pack with: a `HandoverPacker` that leaves the write of what it makes to the primitive. */
export interface HandlerPacker extends HandoverPacker {
  /** Packs specs whose project and actor the caller has loaded. @internal */
  packResolved(specs: readonly ContextSpec[]): Promise<readonly Omit<PackedContext, 'targetProfileBoxId'>[]>;
  /** Gives rights that the caller has checked. @internal */
  giveGrants(grants: readonly NewGrant[]): void;
  /** Seals what an agent saw as a box of its own, whose id can be passed on like any other. @internal */
  sealSnapshot(
    owner: { readonly projectId: ProjectId; readonly source: { readonly agentId: AgentId } },
    inherited: readonly InheritedBox[],
  ): BoxId;
}
