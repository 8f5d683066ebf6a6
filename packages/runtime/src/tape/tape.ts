/** A tape in the hands of a program: appended to, read by slices, begun anew. Source: docs/tape.md. */
import {
  type AgentId,
  anchorNameOf,
  anchorNotFound,
  anchorState,
  type BoxId,
  buildTapeQuery,
  type ChatMessage,
  ENTRY_KINDS,
  type EntryKind,
  formatTapeRef,
  type JsonObject,
  KernelError,
  LAST_ANCHOR,
  matchesText,
  type ProjectId,
  parseTapeQuery,
  type TapeQuery,
  type TapeQueryBuilder,
  type TapeRecord,
  type TapeSlice,
  tapeMessages,
  toRecord,
  toRecords,
  toSlice,
} from '@boxcar/kernel';
import {
  type AppendResult,
  countAnchors,
  type ForkReceipt,
  type ForkStatus,
  findAnchor,
  findTape,
  loadEntries,
  loadTapeFacts,
  type NewTapeEntry,
  type TapeActor,
  type TapeAddress,
  type TapeEntryRow,
  type TapeRow,
} from '@boxcar/store';
import { newId } from '../packer.js';
import type { TapeConnection } from './connection.js';
import { type EntryInput, toNewBootstrap, toNewEntry, toNewHandoff } from './entry-input.js';
import { exportLines, loadFolder, type TapeFolder } from './export-tape.js';
import {
  type ForkContext,
  type ForkOptions,
  type ForkPoint,
  type ForkSummary,
  forkTape,
  inFork,
  listForksOf,
  openFork,
  type TapeFork,
} from './fork.js';
import { type ForkedSession, type ForkSessionOptions, forkSession } from './fork-session.js';
import { searchTape, type TapeMatch } from './search-tape.js';
import { notAuthorized, tapeNotFound, toAppendError } from './tape-errors.js';
import {
  type AnchorSummary,
  type Appended,
  type AppendOptions,
  DEFAULT_ANCHORS,
  DEFAULT_MATCHES,
  type Handoff,
  type HandoffOptions,
  type KindsOption,
  MAX_ANCHORS,
  MAX_MATCHES,
  type MessagesOptions,
  type SearchOptions,
  type TapeInfo,
} from './tape-types.js';

/** Entries that a look for a text reads at once. */
const PAGE = 2_000;
const MAX_KEY = 500;

/** What the tape's row says, and how far the actor may read. */
interface Opened {
  readonly row: TapeRow;
  readonly last: number;
}

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
    const { first, isRepeated } = await this.#append(toNewHandoff(name, options, this.#actor), options);
    return { anchor: first, event: first + 1, isRepeated };
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
      entries.map((entry, index) => toNewEntry(entry, { ...this.#actor, field: `entries.${index}` })),
      options,
    );
  }

  async #append(entries: readonly NewTapeEntry[], options: AppendOptions): Promise<Appended> {
    const dedupKey = options.dedupKey === undefined ? newId() : `append:${checkKey(options.dedupKey)}`;
    const write = (): Promise<AppendResult> =>
      this.#connection.append({
        ...this.#actor,
        boxId: this.#boxId,
        entries,
        dedupKey,
        expectedHead: options.expectedHead,
      });
    let result = await write();
    // Reset since it was looked up: the name, or the agent, has another one now.
    if (result.outcome === 'archived' && this.#address.kind !== 'box') {
      await this.#open();
      result = await write();
    }
    if (result.outcome !== 'appended') throw toAppendError(result, this.#boxId, this.#actor.actorId);
    return { first: result.first, last: result.first + entries.length - 1, isRepeated: result.isRepeated };
  }

  /** The last anchors in the order of the tape, 20 unless told, 500 at most. */
  async anchors(options: { readonly limit?: number } = {}): Promise<readonly AnchorSummary[]> {
    const limit = checkLimit(options.limit ?? DEFAULT_ANCHORS);
    const { row, last } = await this.#open();
    const entries = await loadEntries(this.#connection.db, row.boxId, {
      from: 1,
      to: last,
      kinds: ['anchor'],
      limit,
      edge: 'newest',
    });
    return entries.toReversed().map((entry) => {
      const record = toRecord(entry);
      return {
        position: entry.position,
        name: anchorNameOf(record) ?? '',
        state: anchorState(record),
        date: record.date,
      };
    });
  }

  /** What follows the latest anchor of a name. @throws KernelError `not_found`. */
  afterAnchor(name: string, options: KindsOption = {}): Promise<readonly TapeRecord[]> {
    return this.query()
      .afterAnchor(name)
      .kinds(...(options.kinds ?? []))
      .all();
  }

  /** What lies between the latest anchor `start` and the first `end` behind it; up to the head without one. @throws KernelError `not_found`. */
  betweenAnchors(start: string, end?: string, options: KindsOption = {}): Promise<readonly TapeRecord[]> {
    return this.query()
      .betweenAnchors(start, end)
      .kinds(...(options.kinds ?? []))
      .all();
  }

  /** What follows the last anchor; all of a tape without one. */
  fromLastAnchor(options: KindsOption = {}): Promise<readonly TapeRecord[]> {
    return this.query()
      .lastAnchor()
      .kinds(...(options.kinds ?? []))
      .all();
  }

  /** A query in the making: slice, then dates, text, kinds, limit. */
  query(): TapeQueryBuilder<Promise<readonly TapeRecord[]>> {
    return buildTapeQuery((query) => this.select(query));
  }

  /** The entries that a checked query asks for. @throws KernelError `not_found` for a named anchor. */
  async select(query: TapeQuery): Promise<readonly TapeRecord[]> {
    return (await this.entries(query)).map(toRecord);
  }

  /** The same as entries with their cards. */
  async entries(query: TapeQuery): Promise<readonly TapeEntryRow[]> {
    const opened = await this.#open();
    const { from, to } = await this.#resolve(opened, query.slice);
    const { kinds, from: since, until, limit, text } = query;
    const range = { from, to, kinds, since, until };
    if (text === null || text === '')
      return loadEntries(this.#connection.db, opened.row.boxId, { ...range, limit });
    return this.#withText(opened.row.boxId, range, { text, limit: limit ?? Number.POSITIVE_INFINITY });
  }

  /** Reads the slice page by page, until as many are found. */
  async #withText(
    boxId: BoxId,
    range: {
      readonly from: number;
      readonly to: number;
      readonly kinds: readonly EntryKind[];
      readonly since: string | null;
      readonly until: string | null;
    },
    wanted: { readonly text: string; readonly limit: number },
  ): Promise<readonly TapeEntryRow[]> {
    const found: TapeEntryRow[] = [];
    for (let from = range.from; from <= range.to && found.length < wanted.limit; from += PAGE) {
      const page = await loadEntries(this.#connection.db, boxId, {
        ...range,
        from,
        to: Math.min(range.to, from + PAGE - 1),
      });
      found.push(...page.filter((entry) => matchesText(toRecord(entry), wanted.text)));
    }
    return found.slice(0, wanted.limit);
  }

  /**
   * Entries with these words, newest first: those with all of them as one piece, then those that come near. Of entries that say
   * the same the newest is shown. The first search of a tape writes down its words, for itself and later ones.
   *
   * @throws KernelError `bad_request`.
   */
  async search(query: string, options: SearchOptions = {}): Promise<readonly TapeMatch[]> {
    const { kinds = ['message', 'tool_result'], limit = DEFAULT_MATCHES, start, end } = options;
    const checked = parseTapeQuery({
      kinds,
      limit,
      ...(start === undefined && end === undefined
        ? {}
        : {
            between_dates: {
              ...(start === undefined ? {} : { start }),
              ...(end === undefined ? {} : { end }),
            },
          }),
    });
    const { row, last } = await this.#open();
    return searchTape(this.#connection.db, { boxId: row.boxId, upto: last }, query, {
      kinds: checked.kinds.length > 0 ? checked.kinds : ENTRY_KINDS,
      since: checked.from,
      until: checked.until,
      limit: Math.min(checked.limit ?? DEFAULT_MATCHES, MAX_MATCHES),
    });
  }

  /** What is on it, without reading it. */
  async info(): Promise<TapeInfo> {
    const { row, last } = await this.#open();
    const anchors = await this.#anchorsUpto({ row, last });
    const facts = await loadTapeFacts(this.#connection.db, row.boxId, { anchor: anchors.last, head: last });
    const total = facts.usage?.total_tokens ?? sumTokens(facts.usage);
    return {
      name: row.name,
      box_id: row.boxId,
      incarnation: row.incarnation,
      entries: last,
      anchors: anchors.count,
      last_anchor: facts.lastAnchor,
      last_anchor_position: anchors.last,
      entries_since_last_anchor: last - anchors.last,
      last_token_usage: typeof total === 'number' ? total : null,
    };
  }

  /**
   * What a model would be shown of it, by the seed's mapping: chat messages, the state of the anchor first. A turn's own
   * prompt is made by stricter rules (docs/views.md).
   *
   * @throws KernelError `not_found` for a named anchor.
   */
  async messages(options: MessagesOptions = {}): Promise<readonly ChatMessage[]> {
    const { anchor = LAST_ANCHOR, select = (records) => records, strictBub = false } = options;
    const opened = await this.#open();
    const { from, to } = await this.#resolve(opened, toSlice(anchor));
    const entries = await loadEntries(this.#connection.db, opened.row.boxId, {
      from: Math.max(1, from - 1),
      to,
    });
    const [first] = entries;
    const shown = first !== undefined && first.position < from ? first : undefined;
    const records = await select(toRecords(shown === undefined ? entries : entries.slice(1)));
    return tapeMessages(records, {
      strictBub,
      anchor: shown === undefined ? null : toRecord(shown),
    });
  }

  /**
   * Its lines as the seed's files have them, each without its end, up to the head of this moment: those that were imported
   * as they were. Read as they are taken.
   */
  async *export(): AsyncGenerator<string, void, void> {
    const { row, last } = await this.#open();
    yield* exportLines(this.#connection.db, row.boxId, last);
  }

  /** What stands beside its lines in the seed's folder. Earlier incarnations that the actor may not read are left out. */
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
    if (!row.isOwn) throw notAuthorized(row.boxId, this.#actor.actorId, 'reset');
    const archived = options.archive === true ? archivedRef(row, this.#actor.projectId) : null;
    const newBoxId = newId<'box'>();
    const result = await this.#connection.reset({
      projectId: this.#actor.projectId,
      boxId: row.boxId,
      newBoxId,
      authorId: this.#actor.actorId,
      anchor: archived === null ? null : toNewBootstrap({ archived }, this.#actor),
    });
    if (result.outcome === 'busy') {
      throw new KernelError('tape_busy', {
        message: `Turn ${result.turnId} of the agent of tape ${row.boxId} is under way or queued.`,
        details: { box_id: row.boxId, turn_id: result.turnId },
      });
    }
    if (result.outcome !== 'reset') throw toAppendError(result, row.boxId, this.#actor.actorId);
    this.#boxId = newBoxId;
    return { archived };
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
  async forks(options: { readonly status?: ForkStatus } = {}): Promise<readonly ForkSummary[]> {
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
    const { fromAnchor } = options;
    const point = await this.#forkPoint();
    const to = point.upto?.position ?? point.row.headPosition;
    const position =
      fromAnchor === undefined
        ? undefined
        : await findAnchor(this.#connection.db, point.row.boxId, fromAnchor, { from: 1, to, edge: 'latest' });
    if (fromAnchor !== undefined && position === undefined) throw anchorNotFound(fromAnchor);
    const from = fromAnchor === undefined || position === undefined ? null : { anchor: fromAnchor, position };
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

  /** What may be forked: all, or as far as the actor may read. */
  async #forkPoint(): Promise<ForkPoint> {
    const opened = await this.#open();
    const { row, last } = opened;
    if (last === row.headPosition && (row.isOwn || row.readGrant?.upto == null)) return { row, upto: null };
    const anchors = await this.#anchorsUpto(opened);
    return { row, upto: { position: last, lastAnchor: anchors.last, anchors: anchors.count } };
  }

  /** The tape as it is now, to be read by the actor. @throws KernelError `not_found`, `box_not_authorized`. */
  async #open(): Promise<Opened> {
    // After its own reset, what a box names is the incarnation that follows.
    const address =
      this.#address.kind === 'box' ? ({ kind: 'box', boxId: this.#boxId } as const) : this.#address;
    const row = await findTape(this.#connection.db, address, this.#actor);
    if (row === undefined) throw tapeNotFound(address);
    if (!row.isOwn && row.readGrant === null) throw notAuthorized(row.boxId, this.#actor.actorId, 'read');
    this.#boxId = row.boxId;
    const upto = row.isOwn ? Infinity : (row.readGrant?.upto ?? Infinity);
    return { row, last: Math.min(row.headPosition, upto) };
  }

  /** The last anchor that the actor may see, and how many there are. */
  async #anchorsUpto({ row, last }: Opened): Promise<{ readonly last: number; readonly count: number }> {
    if (last === row.headPosition) return { last: row.lastAnchorPosition, count: row.anchorCount };
    return countAnchors(this.#connection.db, row.boxId, last);
  }

  /** The positions of a slice, its boundary anchors left out. */
  async #resolve(opened: Opened, slice: TapeSlice): Promise<{ readonly from: number; readonly to: number }> {
    const { row, last } = opened;
    const latest = async (name: string): Promise<number> => {
      const position = await findAnchor(this.#connection.db, row.boxId, name, {
        from: 1,
        to: last,
        edge: 'latest',
      });
      if (position === undefined) throw anchorNotFound(name);
      return position;
    };
    switch (slice.kind) {
      case 'all':
        return { from: 1, to: last };
      case 'after_last':
        return { from: (await this.#anchorsUpto(opened)).last + 1, to: last };
      case 'after':
        return { from: (await latest(slice.anchor)) + 1, to: last };
      case 'between': {
        const from = (await latest(slice.start)) + 1;
        if (slice.end === null) return { from, to: last };
        const end = await findAnchor(this.#connection.db, row.boxId, slice.end, {
          from,
          to: last,
          edge: 'first',
        });
        if (end === undefined) throw anchorNotFound(slice.end);
        return { from, to: end - 1 };
      }
      default:
        return slice satisfies never;
    }
  }
}

const sumTokens = (usage: JsonObject | null): number | null => {
  const { input_tokens: input, output_tokens: output } = usage ?? {};
  return typeof input === 'number' && typeof output === 'number' ? input + output : null;
};

function checkKey(key: string): string {
  if (key.trim() !== '' && key.length <= MAX_KEY && !key.includes('\0')) return key;
  throw new KernelError('bad_request', {
    message: `dedupKey: must have 1 to ${MAX_KEY} characters, none of them NUL.`,
    details: { field: 'dedupKey' },
  });
}

function checkLimit(limit: number): number {
  if (Number.isInteger(limit) && limit >= 0 && limit <= MAX_ANCHORS) return limit;
  throw new KernelError('bad_request', {
    message: `limit: must be a whole number from 0 to ${MAX_ANCHORS}.`,
    details: { field: 'limit' },
  });
}

/** Where an archived incarnation is to be found: by its box, since its name goes on to the next one. */
const archivedRef = ({ boxId, headPosition }: TapeRow, workspace: string): string =>
  formatTapeRef({
    workspace,
    tape: boxId,
    target: { kind: 'entry', position: headPosition },
    head: headPosition,
  });
