/** A tape in the hands of a program: appended to, read by slices, begun anew. Source: docs/reference/tape.md. */
import {
  type AgentId,
  type BoxId,
  buildTapeQuery,
  type ChatMessage,
  KernelError,
  LAST_ANCHOR,
  type ProjectId,
  parseTapeQuery,
  type TapeQuery,
  type TapeQueryBuilder,
  type TapeRecord,
  tapeMessages,
  toRecord,
  toRecords,
  toSlice,
  warnOfSecrets,
} from '@boxcar/kernel';
import {
  type AppendResult,
  type ForkReceipt,
  type ForkStatus,
  findTape,
  loadEntries,
  type NewTapeEntry,
  type TapeActor,
  type TapeAddress,
  type TapeRow,
} from '@boxcar/store';
import type { TapeConnection } from './connection.js';
import { checkAppend, type EntryAuthor, type EntryInput, toNewEntry, toNewHandoff } from './entry-input.js';
import { exportLines, loadFolder, type TapeFolder } from './export-tape.js';
import {
  type ForkContext,
  type ForkOptions,
  type ForkSummary,
  forkTape,
  inFork,
  listForksOf,
  openFork,
  type TapeFork,
} from './fork.js';
import { type ForkedSession, type ForkSessionOptions, forkSession } from './fork-session.js';
import {
  describeTape,
  loadSlice,
  type OpenedTape,
  type RecordsPage,
  selectAnchors,
  selectEntries,
  selectPage,
} from './read-tape.js';
import { resetTape } from './reset-tape.js';
import { type FoundMatches, parseSearchOptions, searchTape, type TapeMatch } from './search-tape.js';
import {
  anchorOf,
  checkLimit,
  checkPosition,
  type ForkPoint,
  forkPointOf,
  MAX_POSITION,
  openFor,
} from './tape-checks.js';
import { tapeNotFound, toAppendError } from './tape-errors.js';
import {
  type AnchorSummary,
  type AnchorsOptions,
  type AnchorsPage,
  type Appended,
  type AppendOptions,
  DEFAULT_ANCHORS,
  type Handoff,
  type HandoffOptions,
  type KindsOption,
  type MessagesOptions,
  type SearchOptions,
  type TapeInfo,
} from './tape-types.js';

export class Tape {
  readonly #connection: TapeConnection;
  readonly #address: TapeAddress;
  readonly #actor: TapeActor;
  #boxId: BoxId;

  /** @internal By `runtime.tape`. */
  constructor(
    connection: TapeConnection,
    options: { readonly address: TapeAddress; readonly actor: TapeActor; readonly boxId: BoxId },
  ) {
    this.#connection = connection;
    this.#address = options.address;
    this.#actor = options.actor;
    this.#boxId = options.boxId;
  }

  /** The box of the incarnation that this tape was when it was last used. */
  get boxId(): BoxId {
    return this.#boxId;
  }

  get projectId(): ProjectId {
    return this.#actor.projectId;
  }

  /** In whose name it is used. */
  get actorId(): AgentId {
    return this.#actor.actorId;
  }

  /**
   * Writes an anchor and its event, both or neither. Views begin with the anchor from then on; while calls of the
   * agent's turn are open, behind them.
   *
   * @throws KernelError `box_not_authorized`, `tape_conflict`, `fork_closed`, `bad_request`.
   */
  async handoff(name: string, options: HandoffOptions = {}): Promise<Handoff> {
    const appended = await this.#append(toNewHandoff(name, options, this.#author), options);
    const { first, last: event, ...rest } = appended;
    const made = await loadEntries(this.#connection.db, this.#boxId, { from: first, to: event });
    return { anchor: first, event, entries: made.map(toRecord), ...rest };
  }

  /**
   * Appends entries behind each other, all or none.
   *
   * @throws KernelError `box_not_authorized`, `tape_conflict` with the real head, `fork_closed`, `bad_request`.
   */
  async append(entries: readonly EntryInput[], options: AppendOptions = {}): Promise<Appended> {
    if (entries.length === 0) {
      throw new KernelError('bad_request', { message: 'entries: is empty.', details: { field: 'entries' } });
    }
    return this.#append(
      entries.map((entry, index) => toNewEntry(entry, { ...this.#author, field: `entries.${index}` })),
      options,
    );
  }

  get #author(): EntryAuthor {
    return { ...this.#actor, maxCardBytes: this.#connection.maxCardBytes };
  }

  async #append(entries: readonly NewTapeEntry[], options: AppendOptions): Promise<Appended> {
    const checked = checkAppend(options, this.#actor);
    let boxId = this.#boxId;
    const write = (): Promise<AppendResult> =>
      this.#connection.append({ ...this.#actor, ...checked, boxId, entries });
    let result = await write();
    const isGone = result.outcome === 'archived' || result.outcome === 'forbidden';
    if (isGone && options.expectedHead === undefined && (await this.#hasMovedFrom(boxId))) {
      boxId = this.#boxId;
      result = await write();
    }
    if (result.outcome !== 'appended') throw toAppendError(result, boxId, this.#actor.actorId);
    const { first, isRepeated } = result;
    const warnings = warnOfSecrets(
      entries.map(({ card, payload }) => [
        card !== null && 'contentText' in card ? card.contentText : null,
        payload,
      ]),
    );
    return {
      first,
      last: first + entries.length - 1,
      isRepeated,
      ...(warnings === undefined ? {} : { warnings }),
    };
  }

  /** The last anchors in the order of the tape: the first page of {@link anchorsPage}. @throws KernelError `bad_request`. */
  async anchors(options: AnchorsOptions = {}): Promise<readonly AnchorSummary[]> {
    return (await this.anchorsPage(options)).anchors;
  }

  /**
   * The last anchors in the order of the tape, 20 unless told, 500 at most: up to 1 MiB of them, or one. The next page is that `before`
   * the position that this one says. @throws KernelError `bad_request`.
   */
  async anchorsPage(options: AnchorsOptions = {}): Promise<AnchorsPage> {
    const { limit = DEFAULT_ANCHORS, before } = options;
    const asked = { limit: checkLimit(limit), before: checkPosition(before ?? MAX_POSITION, 'before') };
    return selectAnchors(this.#connection.db, await this.#open(), asked);
  }

  /** What follows the latest anchor of a name. @throws KernelError `not_found`. */
  async afterAnchor(name: string, options: KindsOption = {}): Promise<readonly TapeRecord[]> {
    return this.query()
      .afterAnchor(name)
      .kinds(...(options.kinds ?? []))
      .all();
  }

  /** What lies between the latest anchor `start` and the first `end` behind it; up to the head without one. @throws KernelError `not_found`. */
  async betweenAnchors(
    start: string,
    end?: string,
    options: KindsOption = {},
  ): Promise<readonly TapeRecord[]> {
    return this.query()
      .betweenAnchors(start, end)
      .kinds(...(options.kinds ?? []))
      .all();
  }

  /** What follows the last anchor; all of a tape without one. */
  async fromLastAnchor(options: KindsOption = {}): Promise<readonly TapeRecord[]> {
    return this.query()
      .lastAnchor()
      .kinds(...(options.kinds ?? []))
      .all();
  }

  /** A query in the making: slice, then dates, text, kinds, limit. */
  query(): TapeQueryBuilder<Promise<readonly TapeRecord[]>> {
    return buildTapeQuery(async (query) => this.select(parseTapeQuery(query)));
  }

  /** The entries that a checked query asks for. @throws KernelError `not_found` for a named anchor. */
  async select(query: TapeQuery): Promise<readonly TapeRecord[]> {
    return selectEntries(this.#connection.db, await this.#open(), query);
  }

  /**
   * The first entries that a checked query asks for: up to 1 MiB of them, or one. The next page begins `after` the position that this one
   * says.
   *
   * @throws KernelError `not_found` for a named anchor.
   */
  async selectPage(
    query: TapeQuery,
    options: { readonly after?: number | undefined } = {},
  ): Promise<RecordsPage> {
    const after = checkPosition(options.after ?? 0, 'after');
    return selectPage(this.#connection.db, await this.#open(), { query, after });
  }

  /**
   * Entries with these words, newest first: those with all of them as one piece, then those that come near. Of entries that say
   * the same the newest is shown. The first search of a tape writes down its words, for itself and later ones.
   *
   * @throws KernelError `bad_request`.
   */
  async search(query: string, options: SearchOptions = {}): Promise<readonly TapeMatch[]> {
    const matches: TapeMatch[] = [];
    const { pages } = await this.searchPages(query, options);
    for await (const page of pages) matches.push(...page);
    return matches;
  }

  /**
   * Like {@link search}, but contents of matches are read as their pages are taken.
   *
   * @param options.answersOf - The name of a tool of which no answer is a match.
   * @throws KernelError `bad_request`.
   */
  async searchPages(
    query: string,
    options: SearchOptions & { readonly answersOf?: string } = {},
  ): Promise<FoundMatches> {
    const range = parseSearchOptions(options);
    const { row, last, within, actor } = await this.#open();
    return searchTape(this.#connection.db, { boxId: row.boxId, upto: last, within, actor }, query, range);
  }

  /** What is on it, without reading it. */
  async info(): Promise<TapeInfo> {
    return describeTape(this.#connection.db, await this.#open());
  }

  /**
   * Chat messages of it by the original's mapping, the state of the anchor first. The prompt of a turn is another one: it is made by
   * stricter rules, from the profile and the contexts too (docs/reference/views.md).
   *
   * @throws KernelError `not_found` for a named anchor.
   */
  async messages(options: MessagesOptions = {}): Promise<readonly ChatMessage[]> {
    const { anchor = LAST_ANCHOR, select = (records) => records, strictBub = false } = options;
    const slice = await loadSlice(this.#connection.db, await this.#open(), toSlice(anchor));
    const records = toRecords(slice.entries).filter(({ meta }) => meta.context !== false);
    return tapeMessages(await select(records), {
      strictBub,
      anchor: slice.anchor === null ? null : toRecord(slice.anchor),
    });
  }

  /**
   * Its lines as the original's files have them, each without its end, up to the head of this moment: those that were imported
   * as they were. Read as they are taken.
   */
  async *export(): AsyncGenerator<string, void, void> {
    const { row, ...reader } = await this.#open();
    yield* exportLines(this.#connection.db, row.boxId, reader);
  }

  /** What stands beside its lines in the original's folder. Earlier incarnations that the actor may not read are left out. */
  async folder(): Promise<TapeFolder> {
    const { row } = await this.#open();
    return loadFolder(this.#connection.db, row, this.#actor);
  }

  /**
   * Begins it anew: the next incarnation takes its name, or its agent; this one is archived and stays readable for those who may.
   *
   * @param options.archive - The new bootstrap says where the old one is: `archived: "tape://…"`.
   * @throws KernelError `tape_busy` while a turn of its agent is under way or queued, `box_not_authorized`, `tape_conflict`.
   */
  async reset(options: { readonly archive?: boolean } = {}): Promise<{ readonly archived: string | null }> {
    const { row } = await this.#open();
    const result = await resetTape(this.#connection, row, {
      actor: this.#actor,
      archive: options.archive === true,
    });
    if (result === 'moved') return this.reset(options);
    this.#boxId = result.boxId;
    return { archived: result.archived };
  }

  /**
   * Forks it at its head, at the same cost for any number of entries. At the end of an `await using` block it is merged, unless
   * the options say otherwise; if that cannot be, it stays open (`tape_busy`) and is ended by hand.
   *
   * @throws KernelError `box_not_authorized`, `turn_ended`, `bad_request`.
   */
  async forkTape(options: ForkOptions = {}): Promise<TapeFork> {
    return forkTape(this.#forkContext(), await this.#forkPoint(), options);
  }

  /**
   * Runs a block in a fork, and merges it at the end; one that throws too, unless `onError` is `discard`.
   *
   * @throws What the block throws; KernelError as `forkTape` and `TapeFork.merge`.
   */
  async inFork<T>(
    block: (tape: Tape) => Promise<T>,
    options: ForkOptions = {},
  ): Promise<{ readonly receipt: ForkReceipt; readonly value: T | undefined }> {
    return inFork(await this.forkTape(options), block);
  }

  /** Its forks, the oldest first: those of a status, or all. */
  async forks(options: { readonly status?: ForkStatus | undefined } = {}): Promise<readonly ForkSummary[]> {
    const { row } = await this.#open();
    return listForksOf(this.#forkContext(), row.boxId, options.status ?? null);
  }

  /** One of its forks, to go on with it or to end it. @throws KernelError `not_found`, `box_not_authorized`. */
  async openFork(forkId: string): Promise<TapeFork> {
    const { row } = await this.#open();
    return openFork(this.#forkContext(), row.boxId, forkId);
  }

  /**
   * Forks it with an agent of its own, both of this name, that reads on from an anchor and goes its own way.
   *
   * @throws KernelError `not_found` for the anchor or profile, `agent_exists` for the name, `box_not_authorized`, `bad_request`.
   */
  async forkSession(name: string, options: ForkSessionOptions = {}): Promise<ForkedSession> {
    const point = await this.#forkPoint();
    const from = await anchorOf(this.#connection.db, point, { actor: this.#actor, name: options.fromAnchor });
    return forkSession(this.#forkContext(), point, { ...options, name, from });
  }

  #forkContext(): ForkContext {
    const connection = this.#connection;
    const { pool } = connection;
    if (pool === undefined)
      throw new KernelError('internal_error', { message: 'A fork has transactions of its own.' });
    const actor = this.#actor;
    const open = (boxId: BoxId): Tape =>
      new Tape(connection, { address: { kind: 'box', boxId }, actor, boxId });
    return { pool, actor, open };
  }

  async #forkPoint(): Promise<ForkPoint> {
    return forkPointOf(this.#connection.db, (await this.#open()).row, this.#actor);
  }

  /** The tape as it is now. @throws KernelError `not_found`. */
  async #find(): Promise<TapeRow> {
    // After its own reset, what a box names is the incarnation that follows.
    const address =
      this.#address.kind === 'box' ? ({ kind: 'box', boxId: this.#boxId } as const) : this.#address;
    const row = await findTape(this.#connection.db, address, this.#actor);
    if (row === undefined) throw tapeNotFound(address);
    this.#boxId = row.boxId;
    return row;
  }

  /** True when it was reset since it was looked up: its name, or its agent, has another box now. A head that was read is none of that. */
  async #hasMovedFrom(before: BoxId): Promise<boolean> {
    return this.#address.kind !== 'box' && (await this.#find()).boxId !== before;
  }

  /** The tape as it is now, to be read by the actor. @throws KernelError `not_found`, `box_not_authorized`. */
  async #open(): Promise<OpenedTape> {
    return openFor(await this.#find(), this.#actor);
  }
}
