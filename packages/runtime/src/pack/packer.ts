/**
 * The HandoverPacker packs an explicit context box for the next agent's turn. The rules are the kernel's; `plan.ts` loads the
 * rows that they need, and this file writes the result.
 *
 * The number of statements does not depend on the number of boxes and cards: one for project and actor, one for profiles, one for
 * boxes, one more when a budget must choose, one for the write.
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

/**
 * Packs and writes at once, in the caller's transaction if there is one. The packer of a handler writes together with its
 * primitive.
 */
export class HandoverPacker {
  readonly #io: PackIo;

  /**
   * @param options.db - A pool, or a client of the caller.
   * @param options.strategies - Strategies by name, in addition to the built-in ones.
   * @param options.selectors - For previews of profiles that have a selector.
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

  /** Writes the result of a packing. @internal */
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
   * Packs without writing: shows the context that a child would see, and the cost of each card. It throws the same errors as
   * `packContext`.
   *
   * @throws KernelError as `packContext`.
   */
  preview(request: PackRequest, options: PreviewOptions = {}): Promise<PackPreview> {
    return previewContext(this.#io, request, options);
  }

  /** Packs several context boxes of one project and actor at once. All are packed or none. */
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
   * Makes a sealed box of new and existing cards, in this order: `cards`, then `cardIds`. Each existing card must belong to the
   * maker or be in a box that the maker may read.
   */
  createBox(request: BoxRequest): Promise<BoxId> {
    return this.write(() => makeBox(this.#io, request), request.tx);
  }

  /**
   * Lets an agent read a box, or append to it. The giver must have this right itself. A right with bounds (a last position, an
   * end) is passed on within its bounds.
   *
   * @throws KernelError `not_found` for the box or the grantee, `box_not_authorized` when the giver does not have the right
   * itself, `bad_request` for appending to a sealed box.
   */
  async grantBox(request: GrantRequest): Promise<void> {
    await this.write(() => makeGrant(this.#io, request), request.tx);
  }
}

/** The packer of handlers: a `HandoverPacker` whose results are written together with the primitive. */
export interface HandlerPacker extends HandoverPacker {
  /** Packs specs whose project and actor the caller has loaded. @internal */
  packResolved(specs: readonly ContextSpec[]): Promise<readonly Omit<PackedContext, 'targetProfileBoxId'>[]>;
  /** Gives rights that the caller has checked. @internal */
  giveGrants(grants: readonly NewGrant[]): void;
  /** Seals an agent's view as a separate box. The box's id can be passed on like any other id. @internal */
  sealSnapshot(
    owner: { readonly projectId: ProjectId; readonly source: { readonly agentId: AgentId } },
    inherited: readonly InheritedBox[],
  ): BoxId;
}
