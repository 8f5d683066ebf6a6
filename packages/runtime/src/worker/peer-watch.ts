/**
 * Watches one other worker, the next living worker in the circle of ids. It waits for that worker's session lock, so
 * that a death is noticed as soon as Postgres notices it. Rules: `store/work/liveness.ts`.
 *
 * The watch has a connection of its own. A session that waits for a lock does not notice the death of its client. A
 * worker that watched on the connection with its own lock would therefore keep its lock after its death. Such a session
 * also receives no notifications.
 */
import { errorText, startTimer, type WorkerId } from '@boxcar/kernel';
import {
  createDirectClient,
  endClient,
  endLease,
  interruptWatch,
  readLockSign,
  sqlStateOf,
  toDatabaseError,
  watchPeer,
} from '@boxcar/store';
import type pg from 'pg';
import type { Log } from '../lib/index.js';

/** SQLSTATE of a canceled statement. */
const INTERRUPTED = '57014';
/** How long a suspect has to show that it lives. */
const REFUTE_MS = 200;
/**
 * How often, and how many times, a worker is asked to confirm that it holds its lock. After that the next worker is
 * watched instead.
 */
const ASK_EVERY_MS = 25;
const ASK_TIMES = 20;
/** How long the server may take to answer, in addition to the wait for a lock. */
const ANSWER_MS = 5_000;

export interface PeerWatchOptions {
  readonly directUrl: string;
  readonly pool: pg.Pool;
  readonly log: Log;
  /** How long one wait for the lock lasts, and the pause without a peer. Then the peer is chosen again. */
  readonly everyMs: number;
  /** How long the server may take to answer, in addition to that wait. Default 5,000. */
  readonly answerMs?: number;
  /** The id of the worker that watches; a new incarnation has a new id. */
  readonly workerId: () => WorkerId;
  /** Called after the lease of a peer was ended: its turns may be taken. */
  readonly takeOver: () => Promise<void>;
}

/** True when the circle of ids, followed from `from`, reaches `one` before `other`. */
function isNearer(from: WorkerId, one: WorkerId, other: WorkerId): boolean {
  const isAhead = (id: WorkerId): boolean => id > from;
  return isAhead(one) === isAhead(other) ? one < other : isAhead(one);
}

export class PeerWatch {
  readonly #options: PeerWatchOptions;
  readonly #stopping = new AbortController();
  #hasPeers = true;
  #wake: () => void = () => undefined;
  /** Set when news arrived during a check that may have begun too early to see the news. */
  #isToLook = false;
  #client: pg.Client | undefined;
  /** The worker whose lock was waited for last. */
  #watched: WorkerId | undefined;
  #asked: { readonly id: WorkerId; readonly times: number } | undefined;
  /** Workers that did not answer when asked: the next wait skips them. */
  readonly #mute = new Set<WorkerId>();
  #running: Promise<void> | undefined;

  constructor(options: PeerWatchOptions) {
    this.#options = options;
  }

  start(): void {
    this.#running = this.#run();
  }

  /**
   * Records the result of a heartbeat. Without other workers there is nothing to search for; as soon as there is
   * another worker, it is watched.
   */
  setHasPeers(hasPeers: boolean): void {
    const isNews = hasPeers && !this.#hasPeers;
    this.#hasPeers = hasPeers;
    if (isNews) this.#lookAgain();
  }

  /** Ends the current pause, or skips the next, because another worker may have to be watched now. */
  #lookAgain(): void {
    this.#isToLook = true;
    this.#wake();
  }

  /** A worker has joined, or has its lock again. It is watched at once if it is now the next worker in the circle. */
  joined(id: WorkerId): void {
    const me = this.#options.workerId();
    if (id === me) return;
    this.setHasPeers(true);
    this.#mute.delete(id);
    if (this.#watched === undefined || this.#watched === id || isNearer(me, id, this.#watched))
      this.#interrupt();
  }

  #interrupt(): void {
    this.#lookAgain();
    const processId: unknown =
      this.#client === undefined ? undefined : Reflect.get(this.#client, 'processID');
    if (typeof processId !== 'number') return;
    interruptWatch(this.#options.pool, processId).catch((error: unknown) =>
      this.#options.log('debug', 'peer.not_interrupted', { error }),
    );
  }

  async stop(): Promise<void> {
    this.#stopping.abort();
    // Also in the middle of a wait: the failure of its statement is ignored.
    await this.#drop();
    await this.#running;
  }

  get #isStopped(): boolean {
    return this.#stopping.signal.aborted;
  }

  async #run(): Promise<void> {
    while (!this.#isStopped) {
      let pauseMs = this.#options.everyMs;
      this.#isToLook = false;
      try {
        this.#client ??= await this.#connect();
        if (!this.#isStopped && this.#hasPeers) pauseMs = await this.#checkPeers(this.#client);
      } catch (error) {
        // A late interruption, which canceled another statement.
        if (sqlStateOf(error) === INTERRUPTED) continue;
        await this.#drop();
        if (!this.#isStopped)
          this.#options.log('debug', 'peer.not_watched', {
            error: errorText(error),
          });
      }
      if (pauseMs > 0 && !this.#isToLook) await this.#pause(pauseMs, 'or woken');
    }
    await this.#drop();
  }

  /**
   * Waits once for the lock of one peer, and acts when the lock is free.
   *
   * @returns How long to pause until the next wait.
   */
  async #checkPeers(client: pg.Client): Promise<number> {
    const { everyMs, pool, workerId, log } = this.#options;
    const watched = await this.#wait(client, workerId());
    if (watched === 'interrupted') return 0;
    if (watched.outcome === 'asked') return this.#noteAsked(watched.peerId);
    this.#asked = undefined;
    if (watched.outcome !== 'free') this.#mute.clear();
    if (watched.outcome === 'none') return everyMs;
    const { peerId } = watched;
    this.#watched = peerId;
    if (watched.outcome === 'held') return 0;
    const sign = await readLockSign(client, peerId);
    // The peer has said goodbye, or has reported that it is without its lock for now. Another worker may have to be
    // watched.
    if (sign === undefined) return 0;
    await this.#pause(REFUTE_MS);
    if (this.#isStopped) return everyMs;
    if (!(await endLease(pool, peerId, sign))) return everyMs;
    log('warn', 'peer.lost', { worker_id: peerId });
    await this.#options.takeOver();
    return 0;
  }

  async #wait(
    client: pg.Client,
    workerId: WorkerId,
  ): Promise<Awaited<ReturnType<typeof watchPeer>> | 'interrupted'> {
    try {
      return await watchPeer(client, workerId, { waitMs: this.#options.everyMs, without: [...this.#mute] });
    } catch (error) {
      if (sqlStateOf(error) === INTERRUPTED) return 'interrupted';
      throw error;
    }
  }

  #noteAsked(id: WorkerId): number {
    const times = this.#asked?.id === id ? this.#asked.times + 1 : 1;
    this.#asked = { id, times };
    if (times < ASK_TIMES) return ASK_EVERY_MS;
    this.#mute.add(id);
    return 0;
  }

  async #connect(): Promise<pg.Client> {
    const { directUrl, everyMs, answerMs = ANSWER_MS } = this.#options;
    const client = createDirectClient({
      connectionString: directUrl,
      applicationName: 'boxcar-watch',
      queryMs: everyMs + answerMs,
    });
    this.#watched = undefined;
    try {
      await client.connect();
      return client;
    } catch (error) {
      await endClient(client);
      throw toDatabaseError(error);
    }
  }

  async #drop(): Promise<void> {
    const client = this.#client;
    this.#client = undefined;
    if (client !== undefined) await endClient(client);
  }

  #pause(ms: number, until?: 'or woken'): Promise<void> {
    const { signal } = this.#stopping;
    return new Promise((resolve) => {
      if (signal.aborted) return resolve();
      const done = (): void => {
        timer.clear();
        signal.removeEventListener('abort', done);
        resolve();
      };
      const timer = startTimer(ms, done);
      signal.addEventListener('abort', done);
      if (until !== undefined) this.#wake = done;
    });
  }
}
