import {
  type BatchId,
  checkWait,
  isFinal,
  KernelError,
  startTimer,
  type TurnId,
  tryParseId,
} from '@boxcar/kernel';
import {
  askServer,
  type BatchRow,
  causeIn,
  createDirectClient,
  ENDED_CHANNEL,
  endClient,
  loadBatches,
  loadTurnStates,
  outsideHandlers,
  PARTS_CHANNEL,
  refuseNested,
  type TurnState,
} from '@boxcar/store';
import type pg from 'pg';
import { type Log, RecentMap } from '../lib/index.js';
import { TurnFollower } from './turn-follower.js';

const POLL_MS = 500;
/** How long the server may take to answer the connection that listens: half of the default lease. */
const ANSWER_MS = 5_000;
/** How often the listening connection is checked. A silent connection is replaced. */
const ASK_EVERY_MS = 5_000;

/** The end of a turn in the form that its waiters receive. */
export type TurnEnd = Omit<TurnState, 'project_name' | 'lost_cause'>;

interface Waiter<S> {
  readonly project: string;
  /** True when the awaited turn or batch is known to belong to this project. */
  readonly isSure: boolean;
  readonly resolve: (state: S) => void;
  readonly reject: (error: unknown) => void;
}

interface WaitOptions {
  readonly project: string;
  /** `Infinity` means no limit, which is the default. */
  readonly timeoutMs?: number | undefined;
  readonly signal?: AbortSignal;
}

export interface TurnWatcherOptions {
  readonly pool: pg.Pool;
  readonly directUrl: string;
  readonly log: Log;
  /** How long the server may take to answer the connection that listens. Default 5,000. */
  readonly answerMs?: number;
  /** How often the listening connection is checked. Default 5,000. */
  readonly askEveryMs?: number;
}

const MAX_EXPECTED = 10_000;

type Waiters<K, S> = Map<K, Set<Waiter<S>>>;

/** A project is given by id or by name. */
export const isOfProject = (
  state: Pick<TurnState, 'project_id' | 'project_name'>,
  project: string,
): boolean => state.project_id === tryParseId(project) || state.project_name === project;

export const turnNotFound = (turnId: string, project: string): KernelError =>
  new KernelError('not_found', {
    message: `No turn '${turnId}' in project '${project}'.`,
    details: { turn_id: turnId, project_id: project },
  });

export const batchNotFound = (batchId: string, project: string): KernelError =>
  new KernelError('not_found', {
    message: `No batch '${batchId}' in project '${project}'.`,
    details: { batch_id: batchId, project_id: project },
  });

/** The error of every call of a closed runtime. */
export const runtimeClosed = (): KernelError =>
  new KernelError('internal_error', {
    message: 'The runtime is closed.',
    next: 'Open another one, and close workers before the runtime that they work with.',
  });

/** The error of a wait for a turn or batch whose end cannot be written. */
export const notEnded = (kind: 'turn' | 'batch', id: TurnId | BatchId, note: string): KernelError =>
  new KernelError('not_ended', {
    message: `The end of ${kind} ${id} cannot be written, and has been given up: ${causeIn(note)}`,
    details: { [`${kind}_id`]: id },
  });

type Watched = Pick<TurnState, 'project_id' | 'project_name' | 'lost_cause'>;

function settle<W, S extends W & Watched>(
  waiters: ReadonlySet<Waiter<W>> | undefined,
  state: S | undefined,
  rules: {
    readonly isOver: (state: S) => boolean;
    readonly notFound: (project: string) => KernelError;
    readonly notEnded: (note: string) => KernelError;
  },
): void {
  for (const waiter of [...(waiters ?? [])]) {
    if (state === undefined || !isOfProject(state, waiter.project))
      waiter.reject(rules.notFound(waiter.project));
    else if (rules.isOver(state)) waiter.resolve(state);
    else if (state.lost_cause !== null) waiter.reject(rules.notEnded(state.lost_cause));
  }
}

/**
 * Waits for ends of turns and batches. Only the rows are authoritative. One statement reads all watched turns and
 * another the batches: at once when a notice names one of them, and twice a second in any case. A lost notice therefore
 * costs half a second.
 *
 * A wait begins with a read, because the end may already have been announced. Turns and batches that this process
 * writes are expected: their notices are received from before the write, so a wait for them needs no first read. If the
 * turn also ends in this process, the end needs no read either: the code that commits the end announces it before the
 * commit (`foretell`) and confirms it after (`tell`).
 */
export class TurnWatcher {
  readonly #options: TurnWatcherOptions;
  readonly #waiters: Waiters<TurnId, TurnEnd> = new Map();
  readonly #batchWaiters: Waiters<BatchId, BatchRow> = new Map();
  /**
   * The id and the given names of the project of each expected turn or batch. All of them are forgotten when the
   * listening connection is lost.
   */
  readonly #expected = new RecentMap<string, readonly string[]>(MAX_EXPECTED);
  /** Ends that are being committed in this process. */
  readonly #foretold = new Map<TurnId, TurnEnd>();
  readonly #followers = new Map<TurnId, Set<TurnFollower>>();
  #listener: pg.Client | undefined;
  #connecting = false;
  /** Time of the last check of the listener, on the monotonic clock. */
  #askedAt = 0;
  #timer: NodeJS.Timeout | undefined;
  #again: ReturnType<typeof startTimer> | undefined;
  #isReading = false;
  #readAgain = new Set<string>();
  #isClosed = false;

  constructor(options: TurnWatcherOptions) {
    this.#options = options;
  }

  /**
   * @param options.project - Id or name; a turn of another project is not found.
   * @throws KernelError `not_found`, `wait_timeout`, `not_ended`, or the signal's reason.
   */
  wait(turnId: TurnId, options: WaitOptions): Promise<TurnEnd> {
    return this.#wait(this.#waiters, turnId, { ...options, ids: { turn_id: turnId } });
  }

  /** Like `wait`, for a batch whose answer is in its row. */
  waitForBatch(batchId: BatchId, options: WaitOptions): Promise<BatchRow> {
    return this.#wait(this.#batchWaiters, batchId, { ...options, ids: { batch_id: batchId } });
  }

  #wait<K extends string, S>(
    all: Waiters<K, S>,
    id: K,
    options: WaitOptions & { readonly ids: Readonly<Record<string, string>> },
  ): Promise<S> {
    if (this.#isClosed) return Promise.reject(runtimeClosed());
    refuseNested(this.#options.pool);
    if (options.timeoutMs !== undefined) checkWait(options.timeoutMs, 'timeoutMs');
    options.signal?.throwIfAborted();
    const { timeoutMs } = options;
    return new Promise<S>((resolve, reject) => {
      const done = (): void => {
        timeout.clear();
        options.signal?.removeEventListener('abort', onAbort);
        const waiters = all.get(id);
        waiters?.delete(waiter);
        if (waiters?.size === 0) all.delete(id);
        if (this.#waiters.size + this.#batchWaiters.size === 0) this.#stopTimer();
      };
      const isExpected = this.#expected.get(id)?.includes(options.project) === true;
      this.#expected.delete(id);
      const waiter: Waiter<S> = {
        project: options.project,
        isSure: isExpected,
        resolve: (state) => {
          done();
          resolve(state);
        },
        reject: (error) => {
          done();
          reject(error);
        },
      };
      const onAbort = (): void => waiter.reject(options.signal?.reason);
      const timeout = startTimer(timeoutMs ?? Infinity, () =>
        waiter.reject(
          new KernelError('wait_timeout', { details: { ...options.ids, timeout_ms: timeoutMs } }),
        ),
      );
      options.signal?.addEventListener('abort', onAbort, { once: true });
      const waiters = all.get(id) ?? new Set();
      all.set(id, waiters.add(waiter));
      // The timer reads for all waits, so it does not belong to the handler that started it.
      outsideHandlers(() => {
        this.#timer ??= setInterval(() => {
          void this.#checkListener();
          void this.#read(this.#watched());
        }, POLL_MS);
        void this.#listen();
        // A short wait would be over before the poll that makes up for a lost notice.
        if (!isExpected || (timeoutMs ?? Number.POSITIVE_INFINITY) <= POLL_MS) void this.#read([id]);
      });
    });
  }

  /**
   * Announces that this process is about to write turns or batches.
   *
   * @param projects - The ids and names of their project; a wait for one of these is answered without a read.
   */
  expect(ids: readonly (TurnId | BatchId)[], projects: readonly string[]): void {
    if (this.#listener === undefined) return;
    for (const id of ids) this.#expected.set(id, projects);
  }

  /** True when notices are received. */
  get isListening(): boolean {
    return this.#listener !== undefined;
  }

  /**
   * Announces the end that is now being committed. @returns Withdraws the announcement; must be called after the
   * commit, whether it succeeded or not.
   */
  foretell(end: TurnEnd): () => void {
    this.#foretold.set(end.turn_id, end);
    return () => void this.#foretold.delete(end.turn_id);
  }

  /**
   * Confirms that these ends, announced here by `foretell`, were committed. A wait that names another project is
   * answered from the row.
   */
  tell(turnIds: readonly TurnId[]): void {
    for (const id of turnIds) {
      const end = this.#foretold.get(id);
      if (end === undefined) continue;
      for (const waiter of [...(this.#waiters.get(id) ?? [])]) if (waiter.isSure) waiter.resolve(end);
    }
  }

  #dropListener(): void {
    this.#listener = undefined;
    this.#expected.clear();
  }

  #watched(): string[] {
    return [...this.#waiters.keys(), ...this.#batchWaiters.keys()];
  }

  /**
   * Follows an existing turn until the returned follower is disposed of. @throws KernelError when the runtime is
   * closed.
   */
  follow(turnId: TurnId): TurnFollower {
    if (this.#isClosed) throw runtimeClosed();
    const follower = new TurnFollower((one) => {
      const all = this.#followers.get(turnId);
      all?.delete(one);
      if (all?.size === 0) this.#followers.delete(turnId);
    });
    this.#followers.set(turnId, (this.#followers.get(turnId) ?? new Set()).add(follower));
    outsideHandlers(() => {
      void this.#checkListener();
      void this.#listen();
    });
    return follower;
  }

  #tellFollowers(ids: readonly string[]): void {
    for (const id of ids) for (const follower of this.#followers.get(id as TurnId) ?? []) follower.tell();
  }

  /** Reports that turns or batches have ended. Called by the code that ended them in this process. */
  hint(ids: readonly (TurnId | BatchId)[]): void {
    this.#tellFollowers(ids);
    for (const id of ids) this.#expected.delete(id);
    const watched = ids.filter(
      (id) => this.#waiters.has(id as TurnId) || this.#batchWaiters.has(id as BatchId),
    );
    if (watched.length > 0) outsideHandlers(() => void this.#read(watched));
  }

  async #listen(): Promise<void> {
    if (this.#listener !== undefined || this.#connecting || this.#isClosed) return;
    this.#connecting = true;
    const client = createDirectClient({
      connectionString: this.#options.directUrl,
      applicationName: 'boxcar-listen',
      queryMs: this.#options.answerMs ?? ANSWER_MS,
    });
    const drop = (): void => {
      if (this.#listener !== client) return;
      this.#dropListener();
      this.#listenSoon();
    };
    client.on('error', drop);
    client.on('end', drop);
    client.on('notification', ({ channel, payload = '' }) => {
      const ids = payload.split(',').flatMap((id) => tryParseId<'turn' | 'batch'>(id) ?? []);
      if (channel === PARTS_CHANNEL) this.#tellFollowers(ids);
      else this.hint(ids);
    });
    try {
      await client.connect();
      await client.query(`listen ${ENDED_CHANNEL}; listen ${PARTS_CHANNEL}`);
      if (this.#isClosed) await endClient(client);
      else {
        this.#listener = client;
        this.#askedAt = performance.now();
      }
      // Ends that came before the subscription are read now.
      this.#tellFollowers([...this.#followers.keys()]);
      void this.#read(this.#watched());
    } catch (error) {
      this.#options.log('debug', 'watcher.listen_failed', { error });
      void endClient(client);
      this.#listenSoon();
    } finally {
      this.#connecting = false;
    }
  }

  /** Followers learn of news only from notices, and no poll opens the listening connection again for them. */
  #listenSoon(): void {
    if (this.#again !== undefined || this.#isClosed || this.#followers.size === 0) return;
    outsideHandlers(() => {
      this.#again = startTimer(POLL_MS, () => {
        this.#again = undefined;
        void this.#listen();
      });
    });
  }

  /** A connection that only listens would not notice the loss of its server. */
  async #checkListener(): Promise<void> {
    const listener = this.#listener;
    if (
      listener === undefined ||
      performance.now() - this.#askedAt < (this.#options.askEveryMs ?? ASK_EVERY_MS)
    )
      return;
    this.#askedAt = performance.now();
    try {
      await askServer(listener);
    } catch (error) {
      this.#options.log('debug', 'watcher.listener_silent', { error });
      if (this.#listener === listener) this.#dropListener();
      await endClient(listener);
      void this.#listen();
    }
  }

  async #read(ids: readonly string[]): Promise<void> {
    for (const id of ids) this.#readAgain.add(id);
    if (this.#isReading) return;
    this.#isReading = true;
    try {
      while (this.#readAgain.size > 0) {
        const asked = this.#readAgain;
        this.#readAgain = new Set();
        await this.#readTurns([...this.#waiters.keys()].filter((id) => asked.has(id)));
        await this.#readBatches([...this.#batchWaiters.keys()].filter((id) => asked.has(id)));
      }
      void this.#listen();
    } catch (error) {
      // The next poll reads again; a waiter has its own deadline.
      this.#options.log('debug', 'watcher.read_failed', { error });
    } finally {
      this.#isReading = false;
    }
  }

  async #readTurns(ids: readonly TurnId[]): Promise<void> {
    if (ids.length === 0) return;
    const states = await loadTurnStates(this.#options.pool, ids);
    const byId = new Map(states.map((state) => [state.turn_id, state]));
    for (const id of ids)
      settle(this.#waiters.get(id), byId.get(id), {
        isOver: ({ status }) => isFinal(status),
        notFound: (project) => turnNotFound(id, project),
        notEnded: (note) => notEnded('turn', id, note),
      });
  }

  async #readBatches(ids: readonly BatchId[]): Promise<void> {
    if (ids.length === 0) return;
    const batches = await loadBatches(this.#options.pool, ids);
    const byId = new Map(batches.map((batch) => [batch.id, batch]));
    for (const id of ids)
      settle(this.#batchWaiters.get(id), byId.get(id), {
        isOver: ({ status }) => status !== 'running',
        notFound: (project) => batchNotFound(id, project),
        notEnded: (note) => notEnded('batch', id, note),
      });
  }

  #stopTimer(): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#stopTimer();
    this.#again?.clear();
    for (const waiters of [...this.#waiters.values(), ...this.#batchWaiters.values()]) {
      for (const waiter of [...waiters])
        waiter.reject(
          new KernelError('internal_error', { message: 'The runtime was closed while waiting.' }),
        );
    }
    for (const followers of this.#followers.values()) for (const one of followers) one.fail(runtimeClosed());
    const listener = this.#listener;
    this.#dropListener();
    if (listener !== undefined) await endClient(listener);
  }
}
