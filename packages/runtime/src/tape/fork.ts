/**
 * Forks for programs: a fork is a tape that is merged into the tape from which it was forked, or discarded.
 * Source: docs/reference/tape.md, "Forks".
 */
import { type BoxId, isPlainName, KernelError, PLAIN_NAME, parseId } from '@boxcar/kernel';
import {
  discardFork,
  type ForkReceipt,
  type ForkRow,
  type ForkStatus,
  findCurrentTape,
  findFork,
  findTape,
  listForks,
  type MergeResult,
  makeFork,
  mergeFork,
  type TapeActor,
} from '@boxcar/store';
import type pg from 'pg';
import { newId } from '../lib/index.js';
import type { Tape } from './tape.js';
import type { ForkPoint } from './tape-checks.js';
import { notAuthorized } from './tape-errors.js';

export interface ForkOptions {
  /** At the end of its block the fork is merged (default) or discarded. */
  readonly mergeBack?: boolean;
  /**
   * `discard`: the fork is merged only if its block completes. A block of `inFork` that throws discards the fork. A block of `await using`
   * must call `merge()` itself at its end; otherwise the dispose discards the fork. Default `merge`, as in the original.
   */
  readonly onError?: 'merge' | 'discard';
  /**
   * The turn for which the fork is made. The next attempt of the turn gets the same fork under the same key, and the end of the turn
   * discards it.
   */
  readonly turnId?: string;
  /** Distinguishes forks of one turn; default `fork`. A tool should pass its `toolCallId`. */
  readonly key?: string;
}

/** The context in which forks are made and ended. */
export interface ForkContext {
  readonly pool: pg.Pool;
  readonly actor: TapeActor;
  /** Opens the tape of a box in the name of the actor. */
  readonly open: (boxId: BoxId) => Tape;
}

/** The parent may be reset between the look and the lock. That is rare, and this many resets in a row are not expected. */
const MAX_ROUNDS = 10;
const MAX_KEY = 200;
const MAX_FORKS = 1_000;

const refuse = (field: string, message: string): KernelError =>
  new KernelError('bad_request', { message: `${field}: ${message}`, details: { field } });

/** A durable fork that must be ended. While it is open, any process may continue it (`tape.openFork`). */
export class TapeFork implements AsyncDisposable {
  readonly #context: ForkContext;
  readonly #tape: Tape;
  #row: ForkRow;

  /** @internal Use `tape.forkTape` and `tape.openFork`. */
  constructor(context: ForkContext, row: ForkRow) {
    this.#context = context;
    this.#row = row;
    this.#tape = context.open(row.boxId);
  }

  /** The tape of the fork: it contains the entries of the parent up to the fork, and takes new entries. */
  get tape(): Tape {
    return this.#tape;
  }

  /** The box with which the fork was made. It is the id of the fork, also after a reset. */
  get id(): BoxId {
    return this.#row.id;
  }

  get status(): ForkStatus {
    return this.#row.status;
  }

  /** The result of its end. Null while the fork is open. A fork that an earlier attempt ended has a receipt from the beginning. */
  get receipt(): ForkReceipt | null {
    return this.#row.receipt;
  }

  /**
   * Appends the entries of the fork to the parent's tape, once: later calls get the first receipt. A fork that was reset replaces the
   * parent.
   *
   * @throws KernelError `tape_busy` while a turn of the parent's agent is under way or queued: the fork stays open. `fork_closed`,
   *   `box_not_authorized`, `tape_conflict`.
   */
  async merge(): Promise<ForkReceipt> {
    const { pool, actor } = this.#context;
    for (let round = 0; round < MAX_ROUNDS; round += 1) {
      await this.#readRow();
      if (this.#row.receipt !== null) break;
      const parentBoxId = await findCurrentTape(pool, this.#row.parentBoxId);
      if (parentBoxId === undefined) break;
      const result = await mergeFork(pool, this.#row, { parentBoxId, authorId: actor.actorId });
      if (result.outcome === 'moved') continue;
      if (result.outcome === 'forbidden')
        throw notAuthorized(parentBoxId, actor.actorId, result.isReset ? 'reset' : 'append to');
      await this.#end(result);
      break;
    }
    const { receipt, id } = this.#row;
    if (receipt?.status === 'merged') return receipt;
    if (receipt !== null) throw closed(this.#row);
    throw new KernelError('tape_conflict', {
      message: `The tape that fork ${id} was made of is archived, and nothing has taken its place.`,
      details: { fork_id: id, box_id: this.#row.parentBoxId },
    });
  }

  /**
   * Ends the fork without changing the parent. Its entries stay, but can be read only by its box. @throws KernelError `fork_closed` when it
   * was merged.
   */
  async discard(): Promise<ForkReceipt> {
    await this.#readRow();
    if (this.#row.receipt === null) await this.#end(await discardFork(this.#context.pool, this.#row));
    const { receipt } = this.#row;
    if (receipt?.status === 'discarded') return receipt;
    throw closed(this.#row);
  }

  /**
   * Merges the fork, unless it must be discarded (`mergeBack`, `onError`) or this object already knows its end. When another process has
   * discarded the fork before the merge, the merge throws.
   *
   * @throws KernelError as `merge`.
   */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#row.receipt !== null) return;
    const { mergeBack, onError } = this.#row;
    if (mergeBack && onError === 'merge') {
      await this.merge();
      return;
    }
    await this.#readRow();
    if (this.#row.receipt === null) await this.discard();
  }

  /** @internal Ends the fork after its block has completed or thrown. */
  async leave(hasThrown: boolean): Promise<ForkReceipt> {
    const { mergeBack, onError } = this.#row;
    return mergeBack && !(hasThrown && onError === 'discard') ? this.merge() : this.discard();
  }

  async #end(result: Exclude<MergeResult, { readonly outcome: 'moved' | 'forbidden' }>): Promise<void> {
    const { id } = this.#row;
    switch (result.outcome) {
      case 'busy':
        throw new KernelError('tape_busy', {
          message: `Turn ${result.turnId} of the agent whose tape fork ${id} goes to is under way or queued; the fork stays open.`,
          details: { fork_id: id, turn_id: result.turnId },
        });
      case 'parent_closed':
        throw new KernelError('fork_closed', {
          message: `The fork that fork ${id} was made of has ended; this one stays open.`,
          details: { fork_id: id, box_id: this.#row.parentBoxId },
        });
      case 'not_found':
        throw forkNotFound(id);
      default:
        this.#row = { ...this.#row, status: result.receipt.status, receipt: result.receipt };
    }
  }

  async #readRow(): Promise<void> {
    const { pool, actor } = this.#context;
    const row = await findFork(pool, actor.projectId, this.#row.id);
    if (row === undefined) throw forkNotFound(this.#row.id);
    this.#row = row;
  }
}

const forkNotFound = (id: string): KernelError =>
  new KernelError('not_found', {
    message: `No fork ${id} of this tape.`,
    details: { fork_id: id },
  });

const closed = ({ id, status }: ForkRow): KernelError =>
  new KernelError('fork_closed', { message: `Fork ${id} was ${status}.`, details: { fork_id: id, status } });

function checkOptions({ onError = 'merge', key = 'fork' }: ForkOptions): void {
  if (!['merge', 'discard'].includes(onError)) throw refuse('onError', 'must be merge or discard.');
  if (key.trim() === '' || key.length > MAX_KEY || !isPlainName(key))
    throw refuse('key', `must have 1 to ${MAX_KEY} characters, and ${PLAIN_NAME}.`);
}

/** Makes a fork of a tape at its head, or finds the fork that the same turn has made under the key. */
export async function forkTape(
  context: ForkContext,
  { row, upto }: ForkPoint,
  options: ForkOptions,
): Promise<TapeFork> {
  checkOptions(options);
  const { pool, actor } = context;
  const { mergeBack = true, onError = 'merge', key = 'fork' } = options;
  const turnId = options.turnId === undefined ? null : parseId<'turn'>(options.turnId, 'turnId');
  const made = await makeFork(pool, {
    boxId: newId<'box'>(),
    projectId: actor.projectId,
    parentBoxId: row.boxId,
    openedBy: actor.actorId,
    turnId,
    key,
    mergeBack,
    onError,
    upto,
  });
  if (made.outcome === 'turn_ended')
    throw new KernelError('turn_ended', {
      message: `turnId: turn ${turnId} has ended, or belongs to another project.`,
      details: { field: 'turnId', turn_id: turnId },
    });
  const fork = made.outcome === 'made' ? await findFork(pool, actor.projectId, made.id) : undefined;
  if (fork === undefined) throw forkNotFound(row.boxId);
  return new TapeFork(context, fork);
}

/** A fork of a tape by its id, for an actor that may end it. @throws KernelError `not_found`, `box_not_authorized`. */
export async function openFork(context: ForkContext, boxId: BoxId, forkId: string): Promise<TapeFork> {
  const { pool, actor } = context;
  const id = parseId<'box'>(forkId, 'fork');
  const [row] = await listForks(pool, { projectId: actor.projectId, boxId, id, limit: 1 });
  if (row === undefined) throw forkNotFound(forkId);
  if ((await findTape(pool, { kind: 'box', boxId: row.id }, actor))?.isOwn !== true)
    throw notAuthorized(row.id, actor.actorId, 'end the fork');
  return new TapeFork(context, row);
}

/** A fork in a list. */
export interface ForkSummary {
  readonly fork_id: BoxId;
  readonly status: ForkStatus;
  readonly opened_by: string;
  /** The turn with which the fork ends. Null: a program ends the fork. */
  readonly turn_id: string | null;
  readonly created_at: string;
  readonly receipt: ForkReceipt | null;
}

export async function listForksOf(
  { pool, actor }: ForkContext,
  boxId: BoxId,
  status: ForkStatus | null,
): Promise<readonly ForkSummary[]> {
  if (status !== null && !['open', 'merged', 'discarded'].includes(status))
    throw refuse('status', 'must be open, merged or discarded.');
  const rows = await listForks(pool, { projectId: actor.projectId, boxId, status, limit: MAX_FORKS });
  return rows.map((row) => ({
    fork_id: row.id,
    status: row.status,
    opened_by: row.openedBy,
    turn_id: row.turnId,
    created_at: row.createdAt.toISOString(),
    receipt: row.receipt,
  }));
}

/**
 * Runs a block in a fork and ends the fork. When an earlier attempt of the turn has already ended the fork, the block does not run and the
 * existing receipt is returned.
 *
 * @throws The error of the block, after the end of the fork; an `AggregateError` when that end fails too.
 */
export async function inFork<T>(
  fork: TapeFork,
  block: (tape: Tape) => Promise<T>,
): Promise<{ readonly receipt: ForkReceipt; readonly value: T | undefined }> {
  if (fork.receipt !== null) return { receipt: fork.receipt, value: undefined };
  let value: T;
  try {
    value = await block(fork.tape);
  } catch (error) {
    await fork.leave(true).catch((failure: unknown) => {
      throw new AggregateError([error, failure], 'The block of a fork failed, and so did its end.');
    });
    throw error;
  }
  return { receipt: await fork.leave(false), value };
}
