import {
  type BoxId,
  type JsonValue,
  type Profile,
  type ProfileId,
  type Ring,
  startedContext,
  type TapeEntry,
  type TurnId,
  type WorkerId,
} from '@boxcar/kernel';
import type pg from 'pg';
import { type ExpandedCard, expandContexts, expandShown } from '../box/index.js';
import {
  type LimitedTry,
  limited,
  onConnection,
  type Queryable,
  queryLimited,
  retriesOf,
  retryBatch,
  run,
  statement,
  type Tx,
  transactOnce,
} from '../db/index.js';
import type { Build } from '../rows/index.js';
import { type CardRow, readCard, VIEWED_CARD_BYTES, VIEWED_CARD_READ } from '../rows/index.js';
import type { Row } from '../schema/index.js';
import {
  type KnownTapes,
  knownParameter,
  UNKNOWN_PART,
  viewAnchorOf,
  viewPositionOf,
} from '../visible/index.js';
import { type ClaimedTurn, type ClaimOutcome, claimOnce } from './claims.js';

const ENTRY_ROWS = `
  select /* views.entry_rows */
    t.id as turn_id, b.id as tape_id, ${viewPositionOf('t', 'b')} as view_position,
    ${viewAnchorOf('t', 'b')} as last_anchor_position,
    p.erasures, e.position, e.kind, e.payload, e.anchor_name, e.turn_id as entry_turn_id, e.step, ${VIEWED_CARD_READ},
    ${VIEWED_CARD_BYTES} as size_bytes
  from boxcar.turns t
  ${UNKNOWN_PART}
  left join boxcar.cards c on c.id = e.card_id`;

const ENTRIES = statement(`${ENTRY_ROWS} where t.id = any ($1::uuid[]) order by t.id, e.position`);

// A view that is too large is neither sent nor detoasted: the sum is taken over the sizes.
const THIN_ENTRIES = statement(`
  select /* views.thin_entries */ v.*
  from (
    select r.*, sum(r.size_bytes) over (partition by r.turn_id) as total_bytes
    from (
      ${ENTRY_ROWS}
      join boxcar.boxes x on x.id = t.context_box_id and x.token_estimate <= $3
      where t.id = any ($1::uuid[])
    ) r
  ) v
  where coalesce(v.total_bytes, 0) <= $4
  order by v.turn_id, v.position`);

type EntryRow = CardRow &
  Row<'tapeEntries', 'position' | 'kind' | 'anchor_name' | 'step', { entry_turn_id: 'turn_id' }> &
  Row<'projects', 'erasures'> & {
    readonly turn_id: TurnId;
    readonly tape_id: BoxId;
    readonly payload: JsonValue | null;
    readonly view_position: number;
    readonly last_anchor_position: number;
    readonly size_bytes: number | null;
  };

/**
 * The rows of a view: the tape entries from the beginning of the view, and the cards of every context box that the view shows. When the
 * reader already knows a part of the tape, only the rest: then the position of the first entry is greater than `from`.
 */
export interface LoadedView {
  /** The position on the tape at which the view begins. */
  readonly from: number;
  readonly entries: readonly TapeEntry[];
  /** The position of the anchor that the view begins with: the last anchor, or the anchor that the first views of a fork begin with. */
  readonly lastAnchorPosition: number;
  /** The project's count of erasures at the time of the read. */
  readonly erasures: number;
  readonly contexts: ReadonlyMap<BoxId, readonly ExpandedCard[]>;
  /** The size of the contents of all its cards, in bytes. */
  readonly sizeBytes: number;
}

interface TapePart {
  readonly tapeId: BoxId;
  readonly entries: TapeEntry[];
  readonly boxIds: Set<BoxId>;
  readonly from: number;
  readonly lastAnchorPosition: number;
  readonly erasures: number;
  sizeBytes: number;
}

function readTapes(rows: readonly EntryRow[]): Map<TurnId, TapePart> {
  const tapes = new Map<TurnId, TapePart>();
  for (const row of rows) {
    let tape = tapes.get(row.turn_id);
    if (tape === undefined) {
      tape = {
        tapeId: row.tape_id,
        entries: [],
        boxIds: new Set(),
        from: row.view_position,
        lastAnchorPosition: row.last_anchor_position,
        erasures: row.erasures,
        sizeBytes: 0,
      };
      tapes.set(row.turn_id, tape);
    }
    tape.sizeBytes += row.size_bytes ?? 0;
    const started = row.kind === 'event' ? startedContext(row.payload) : undefined;
    if (started !== undefined) tape.boxIds.add(started);
    tape.entries.push({
      position: row.position,
      kind: row.kind,
      card: readCard(row),
      payload: row.payload,
      anchorName: row.anchor_name,
      turnId: row.entry_turn_id,
      step: row.step,
    });
  }
  return tapes;
}

function joinView(
  tape: TapePart,
  boxIds: Iterable<BoxId>,
  contexts: ReadonlyMap<BoxId, readonly ExpandedCard[]>,
): LoadedView {
  const own = new Map([...boxIds].map((id) => [id, contexts.get(id) ?? []]));
  let { sizeBytes } = tape;
  for (const cards of own.values()) for (const card of cards) sizeBytes += card.sizeBytes;
  const { from, entries, lastAnchorPosition, erasures } = tape;
  return { from, entries, lastAnchorPosition, erasures, contexts: own, sizeBytes };
}

type ViewedTurn = Pick<ClaimedTurn, 'turnId' | 'contextBoxId'>;

/**
 * Loads the views of turns in two statements, however many turns, boxes and cards there are.
 *
 * @param known - The parts of the tapes that the caller has, by tape. A part that is still valid is not read again.
 * @returns The views by turn. A turn without a tape has no view.
 */
export async function loadViews(
  db: Queryable,
  turns: readonly ViewedTurn[],
  known: KnownTapes = new Map(),
): Promise<ReadonlyMap<TurnId, LoadedView>> {
  const turnIds = turns.map((turn) => turn.turnId);
  const tapes = readTapes(await run<EntryRow>(db, ENTRIES, [turnIds, knownParameter(known)]));
  const wanted = turns.flatMap(({ turnId, contextBoxId }) => {
    const tape = tapes.get(turnId);
    if (tape === undefined) return [];
    const isRest = (tape.entries[0]?.position ?? 0) > tape.from;
    const loaded = isRest ? known.get(tape.tapeId)?.contexts : undefined;
    const boxIds = [...new Set([contextBoxId, ...tape.boxIds])].filter((id) => loaded?.has(id) !== true);
    return { turnId, tape, boxIds };
  });
  const contexts = await expandContexts(db, [...new Set(wanted.flatMap(({ boxIds }) => boxIds))]);
  return new Map(wanted.map(({ turnId, tape, boxIds }) => [turnId, joinView(tape, boxIds, contexts)]));
}

export type ViewedClaim =
  | {
      readonly outcome: 'claimed';
      readonly turn: ClaimedTurn;
      /**
       * The rows of the turn's view, or the rest when the caller knows a part. Undefined when they are too many to be sent with the
       * claim.
       */
      readonly view: LoadedView | undefined;
    }
  | Exclude<ClaimOutcome, { readonly outcome: 'claimed' }>;

/**
 * Claims dispatched turns and reads their views in one round trip. The claim and the read of the tapes are sent together on one
 * connection, each in its own transaction, so that the read sees the claim's writes. Another connection reads the contexts at the same
 * time. A view is left out when more than `maxViewBytes` of tapes or of contexts would have to be read.
 *
 * @param options.known - As for {@link loadViews}.
 * @param options.try - With a limit for locks the claim works like a repetition, and leaves out the views.
 */
export async function claimWithViews(
  pool: pg.Pool,
  rings: readonly Pick<Ring, 'turnId' | 'epoch'>[],
  options: {
    readonly holderId: WorkerId;
    readonly maxViewBytes: number;
    readonly build?: Build;
    /** Turns of other targets are `stale`. Default: all targets. */
    readonly targets?: readonly string[] | undefined;
    readonly known?: KnownTapes;
    readonly try?: LimitedTry;
  },
): Promise<readonly ViewedClaim[]> {
  const { holderId, build, targets, maxViewBytes } = options;
  const { lockMs, ...attempt } = options.try ?? {};
  if (lockMs !== undefined) {
    const claimAgain = (tx: Tx) =>
      claimOnce(tx, rings, {
        holderId,
        build,
        targets,
        isRepeated: true,
        leavesLocked: attempt.leavesLocked,
      });
    const claims = await retryBatch(() => transactOnce(pool, limited({ lockMs }, claimAgain)), {
      ...retriesOf({ lockMs }),
      ...attempt,
    });
    return claims.map((claim) => (claim.outcome === 'claimed' ? { ...claim, view: undefined } : claim));
  }
  const turnIds = [...new Set(rings.map((ring) => ring.turnId))];
  const known = knownParameter(options.known ?? new Map());
  const maxTokens = Math.floor(maxViewBytes / 4);
  let reading: ReturnType<typeof expandShown> | undefined;
  const claimOn = async (db: Queryable, isRepeated: boolean) => {
    const claimed: Queryable = { query: (config) => queryLimited(pool, db, config) };
    const claiming = claimOnce(claimed, rings, {
      holderId,
      build,
      targets,
      isRepeated,
      leavesLocked: attempt.leavesLocked,
    });
    // The claims are final. A view that cannot be read fails only its own turn, when the turn loads it separately.
    const viewing = run<EntryRow>(db, THIN_ENTRIES, [turnIds, known, maxTokens, maxViewBytes]).catch(
      () => [],
    );
    // Sealed boxes do not change, so another connection can read them during the claim. This connection does not wait for the other
    // one: in a busy pool, two claims could wait for each other's connections.
    reading ??= expandShown(pool, turnIds, { known, maxTokens });
    reading.catch(() => undefined);
    return { outcomes: await claiming, entries: await viewing };
  };
  const { outcomes, entries } = await onConnection(pool, claimOn, attempt);
  return joinClaims(outcomes, entries, await reading?.catch(() => undefined));
}

function joinClaims(
  outcomes: readonly ClaimOutcome[],
  entries: readonly EntryRow[],
  contexts: ReadonlyMap<BoxId, readonly ExpandedCard[]> = new Map(),
): readonly ViewedClaim[] {
  const tapes = readTapes(entries);
  return outcomes.map((outcome): ViewedClaim => {
    if (outcome.outcome !== 'claimed') return outcome;
    const { turn } = outcome;
    const tape = tapes.get(turn.turnId);
    const boxIds = new Set([turn.contextBoxId, ...(tape?.boxIds ?? [])]);
    const isWhole = [...boxIds].every((id) => contexts.has(id));
    const view = tape !== undefined && isWhole ? joinView(tape, boxIds, contexts) : undefined;
    return { outcome: 'claimed', turn, view };
  });
}

/** Turns that the same transaction dispatches, and the worker that claims them. */
export interface ClaimAlong {
  readonly rings: readonly Pick<Ring, 'turnId' | 'epoch'>[];
  readonly holderId: WorkerId;
  readonly maxViewBytes: number;
  readonly build: Build;
  readonly targets: readonly string[];
  readonly known?: KnownTapes;
}

/**
 * A claim in the transaction that dispatches its turns. It never waits for a lock: a turn whose tape is locked by another transaction
 * is left out and rung.
 */
export class AlongClaim {
  readonly #of: ClaimAlong;
  #claiming: Promise<readonly ClaimOutcome[]> = Promise.resolve([]);
  #entries: readonly EntryRow[] = [];
  #contexts: ReadonlyMap<BoxId, readonly ExpandedCard[]> | undefined;

  constructor(of: ClaimAlong) {
    this.#of = of;
  }

  /** Sends the claim after the statements that dispatch its turns. */
  claim(tx: Tx): Promise<unknown> {
    this.#claiming = claimOnce(tx, this.#of.rings, {
      ...this.#of,
      isRepeated: false,
      leavesLocked: 'silently',
    });
    return this.#claiming;
  }

  /** Reads the views after the commit. The process that runs a turn reads a view that cannot be read here. */
  async read(db: Queryable): Promise<void> {
    const { rings, maxViewBytes } = this.#of;
    const turnIds = rings.map(({ turnId }) => turnId);
    const known = knownParameter(this.#of.known ?? new Map());
    const maxTokens = Math.floor(maxViewBytes / 4);
    const [entries, contexts] = await Promise.allSettled([
      run<EntryRow>(db, THIN_ENTRIES, [turnIds, known, maxTokens, maxViewBytes]),
      expandShown(db, turnIds, { known, maxTokens }),
    ]);
    if (entries.status === 'rejected') throw entries.reason;
    if (contexts.status === 'rejected') throw contexts.reason;
    this.#entries = entries.value;
    this.#contexts = contexts.value;
  }

  /** One outcome per ring, once the transaction has committed. */
  async outcomes(): Promise<readonly ViewedClaim[]> {
    return joinClaims(await this.#claiming, this.#entries, this.#contexts);
  }
}

const PROFILE_CARDS = statement(`
  select /* views.profile_cards */ f.id as profile_id, c.content->'data' as profile
  from boxcar.profiles f
  join boxcar.cards c on c.id = f.card_id
  where f.id = any ($1::uuid[])`);

const PRICED_PROFILE_CARDS = statement(`
  select /* views.priced_profile_cards */ f.id as profile_id, c.content->'data' as profile,
    p.limits->'prices' as prices
  from boxcar.profiles f
  join boxcar.cards c on c.id = f.card_id
  join boxcar.projects p on p.id = f.project_id
  where f.id = any ($1::uuid[])`);

/** Profile versions by id, each with the current prices of its project. */
export async function loadPricedProfiles(
  db: Queryable,
  profileIds: readonly ProfileId[],
): Promise<ReadonlyMap<ProfileId, { readonly profile: Profile; readonly prices: unknown }>> {
  const rows = await run<{ profile_id: ProfileId; profile: Profile; prices: unknown }>(
    db,
    PRICED_PROFILE_CARDS,
    [profileIds],
  );
  return new Map(rows.map((row) => [row.profile_id, row]));
}

/** Profile versions by id. Versions never change, so callers may cache them. */
export async function loadProfiles(
  db: Queryable,
  profileIds: readonly ProfileId[],
): Promise<ReadonlyMap<ProfileId, Profile>> {
  const rows = await run<{ profile_id: ProfileId; profile: Profile }>(db, PROFILE_CARDS, [profileIds]);
  return new Map(rows.map((row) => [row.profile_id, row.profile]));
}
