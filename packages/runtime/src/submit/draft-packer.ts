import type { BoxId } from '@boxcar/kernel';
import type { NewGrant } from '@boxcar/store';
import {
  type ContextSpec,
  type HandlerPacker,
  HandoverPacker,
  type Made,
  makeResolved,
  makeSnapshot,
  type PackedContext,
  type PackIo,
} from '../pack/index.js';
import type { SubmissionDraft } from './draft.js';
import type { PendingCalls } from './pending-calls.js';

/** Packs for a handler: the results become part of the draft. */
export class DraftPacker extends HandoverPacker implements HandlerPacker {
  readonly #draft: SubmissionDraft;
  readonly #calls: PendingCalls;
  readonly #io: PackIo;

  constructor(draft: SubmissionDraft, calls: PendingCalls, io: PackIo) {
    super(io);
    this.#draft = draft;
    this.#calls = calls;
    this.#io = io;
  }

  protected override write<T>(make: () => Promise<Made<T>>): Promise<T> {
    return this.#calls.run(async () => this.#draft.addPacked(await make()));
  }

  packResolved(specs: readonly ContextSpec[]): Promise<readonly Omit<PackedContext, 'targetProfileBoxId'>[]> {
    return this.write(() => makeResolved(this.#io, specs));
  }

  sealSnapshot(...[owner, inherited]: Parameters<HandlerPacker['sealSnapshot']>): BoxId {
    this.#calls.checkOpen();
    return this.#draft.addPacked(makeSnapshot(this.#io, owner, inherited));
  }

  giveGrants(grants: readonly NewGrant[]): void {
    this.#calls.checkOpen();
    this.#draft.addGrants(grants);
  }
}
