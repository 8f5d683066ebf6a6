/** A tape for programs: appending, reading by slices, forking, and resetting. Source: docs/reference/tape.md. */
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

  /** @internal Use `runtime.tape`. */
  constructor(
    connection: TapeConnection,
    options: { readonly address: TapeAddress; readonly actor: TapeActor; readonly boxId: BoxId },
  ) {
    this.#connection = connection;
    this.#address = options.address;
    this.#actor = options.actor;
    this.#boxId = options.boxId;
  }

  /** The box of the incarnation at the last use of this tape. */
  get boxId(): BoxId {
    return this.#boxId;
  }

  get projectId(): ProjectId {
    return this.#actor.projectId;
  }

  /** The agent in whose name the tape is used. */
  get actorId(): AgentId {
    return this.#actor.actorId;
  }

  /**
   * Writes an anchor and its event, both or neither. Later views begin with the anchor. While calls of the agent's turn are open, views
   * show the anchor after the results of these calls.
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
   * Appends entries in the given order, all or none.
   *
   * @throws KernelError `box_not_authorized`, `tape_conflict` with the current head, `fork_closed`, `bad_request`.
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
   * The last anchors in the order of the tape. Default 20, at most 500, and up to 1 MiB or one anchor. For the next page, pass `next` of
   * this page as `before`. @throws KernelError `bad_request`.
   */
  async anchorsPage(options: AnchorsOptions = {}): Promise<AnchorsPage> {
    const { limit = DEFAULT_ANCHORS, before } = options;
    const asked = { limit: checkLimit(limit), before: checkPosition(before ?? MAX_POSITION, 'before') };
    return selectAnchors(this.#connection.db, await this.#open(), asked);
  }

  /** The entries after the latest anchor of a name. @throws KernelError `not_found`. */
  async afterAnchor(name: string, options: KindsOption = {}): Promise<readonly TapeRecord[]> {
    return this.query()
      .afterAnchor(name)
      .kinds(...(options.kinds ?? []))
      .all();
  }

  /**
   * The entries between the latest anchor `start` and the first anchor `end` after it, or up to the head without `end`. @throws KernelError
   * `not_found`.
   */
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

  /** The entries after the last anchor, or all entries of a tape without an anchor. */
  async fromLastAnchor(options: KindsOption = {}): Promise<readonly TapeRecord[]> {
    return this.query()
      .lastAnchor()
      .kinds(...(options.kinds ?? []))
      .all();
  }

  /** A query builder. The steps have this order: slice, dates, text, kinds, limit. */
  query(): TapeQueryBuilder<Promise<readonly TapeRecord[]>> {
    return buildTapeQuery(async (query) => this.select(parseTapeQuery(query)));
  }

  /** All entries of a checked query. @throws KernelError `not_found` for a named anchor. */
  async select(query: TapeQuery): Promise<readonly TapeRecord[]> {
    return selectEntries(this.#connection.db, await this.#open(), query);
  }

  /**
   * The first entries of a checked query, up to 1 MiB or one entry. For the next page, pass `next` of this page as `after`.
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
   * Entries that contain the query: first those that contain it as one piece, then near matches, each newest first. Of several entries with
   * the same words, only the newest is returned. The first search of a tape stores the words of its entries for all later searches.
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
   * Like {@link search}, but the contents of matches are read as their pages are taken.
   *
   * @param options.answersOf - The name of a tool whose answers never match.
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

  /** Counts and facts about the tape, without loading its entries. */
  async info(): Promise<TapeInfo> {
    return describeTape(this.#connection.db, await this.#open());
  }

  /**
   * Chat messages of the tape by the mapping of the original, the state of the anchor first. The prompt of a turn follows stricter rules,
   * and also contains the profile and the contexts (docs/reference/views.md).
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
   * Yields the lines of the tape in the file format of the original, without line ends, up to the current head. Imported lines are returned
   * unchanged. Lines are read as they are taken.
   */
  async *export(): AsyncGenerator<string, void, void> {
    const { row, ...reader } = await this.#open();
    yield* exportLines(this.#connection.db, row.boxId, reader);
  }

  /** The data beside the lines in a folder of the original. Earlier incarnations that the actor may not read are left out. */
  async folder(): Promise<TapeFolder> {
    const { row } = await this.#open();
    return loadFolder(this.#connection.db, row, this.#actor);
  }

  /**
   * Resets the tape: the next incarnation takes over its name or its agent. The current incarnation is archived, and its readers keep their
   * rights.
   *
   * @param options.archive - The new bootstrap contains the place of the old incarnation: `archived: "tape://…"`.
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
   * Forks the tape at its head, at the same cost for any number of entries. The end of an `await using` block merges the fork, unless the
   * options say otherwise. If the merge is not possible (`tape_busy`), the fork stays open and the program must end it.
   *
   * @throws KernelError `box_not_authorized`, `turn_ended`, `bad_request`.
   */
  async forkTape(options: ForkOptions = {}): Promise<TapeFork> {
    return forkTape(this.#forkContext(), await this.#forkPoint(), options);
  }

  /**
   * Runs a block in a fork, and merges the fork at the end of the block. A block that throws is merged too, unless `onError` is `discard`.
   *
   * @throws The error of the block; KernelError as `forkTape` and `TapeFork.merge`.
   */
  async inFork<T>(
    block: (tape: Tape) => Promise<T>,
    options: ForkOptions = {},
  ): Promise<{ readonly receipt: ForkReceipt; readonly value: T | undefined }> {
    return inFork(await this.forkTape(options), block);
  }

  /** Forks of the tape, the oldest first: all, or those with a status. */
  async forks(options: { readonly status?: ForkStatus | undefined } = {}): Promise<readonly ForkSummary[]> {
    const { row } = await this.#open();
    return listForksOf(this.#forkContext(), row.boxId, options.status ?? null);
  }

  /** Opens a fork of the tape, to continue or to end it. @throws KernelError `not_found`, `box_not_authorized`. */
  async openFork(forkId: string): Promise<TapeFork> {
    const { row } = await this.#open();
    return openFork(this.#forkContext(), row.boxId, forkId);
  }

  /**
   * Forks the tape for a new session: an agent of this name, with a tape of this name, whose views begin at an anchor. The session
   * continues independently of this tape.
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

  /** The current row of the tape. @throws KernelError `not_found`. */
  async #find(): Promise<TapeRow> {
    // A tape that was opened by its box follows its own resets to the next incarnation.
    const address =
      this.#address.kind === 'box' ? ({ kind: 'box', boxId: this.#boxId } as const) : this.#address;
    const row = await findTape(this.#connection.db, address, this.#actor);
    if (row === undefined) throw tapeNotFound(address);
    this.#boxId = row.boxId;
    return row;
  }

  /**
   * True when the tape was reset after it was looked up: its name or its agent now has another box. A head that a caller has read does not
   * belong to that box.
   */
  async #hasMovedFrom(before: BoxId): Promise<boolean> {
    return this.#address.kind !== 'box' && (await this.#find()).boxId !== before;
  }

  /** The current tape, opened for the actor. @throws KernelError `not_found`, `box_not_authorized`. */
  async #open(): Promise<OpenedTape> {
    return openFor(await this.#find(), this.#actor);
  }
}
