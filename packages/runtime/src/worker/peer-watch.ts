/**
 * Watches one other worker, the next living one in the circle of ids: waits for its session lock, so that its death is noticed
 * at the moment Postgres notices it. Rules: `store/liveness.ts`.
 *
 * On a connection of its own. A session that waits for a lock does not see its client die, so the lock of a worker that
 * watched on the connection which holds it would outlive the worker; nor does it hear notifications.
 */
import type { WorkerId } from '@boxcar/kernel';
import { endLease, readLockSign, toDatabaseError, watchPeer } from '@boxcar/store';
import pg from 'pg';
import type { Log } from '../log.js';

/** How long a suspect has to show that it lives. */
const REFUTE_MS = 200;

export interface PeerWatchOptions {
  readonly directUrl: string;
  readonly pool: pg.Pool;
  readonly log: Log;
  /** How long one wait for the lock lasts, and the pause when there is nobody to watch. Then the peer is chosen anew. */
  readonly everyMs: number;
  /** The worker that watches; a new incarnation has a new id. */
  readonly workerId: () => WorkerId;
  /** The lease of a peer was ended: its turns may be taken. */
  readonly takeOver: () => Promise<void>;
}

export class PeerWatch {
  readonly #options: PeerWatchOptions;
  readonly #stopping = new AbortController();
  #hasPeers = true;
  #wake: () => void = () => undefined;
  #client: pg.Client | undefined;
  #running: Promise<void> | undefined;

  constructor(options: PeerWatchOptions) {
    this.#options = options;
  }

  start(): void {
    this.#running = this.#run();
  }

  /** What a heartbeat has seen: without others nobody is looked for; as soon as there is one, it is watched. */
  know(hasPeers: boolean): void {
    const isNews = hasPeers && !this.#hasPeers;
    this.#hasPeers = hasPeers;
    if (isNews) this.#wake();
  }

  async stop(): Promise<void> {
    this.#stopping.abort();
    // Also in the middle of a wait: the statement fails, and nobody minds.
    await this.#drop();
    await this.#running;
  }

  get #isStopped(): boolean {
    return this.#stopping.signal.aborted;
  }

  async #run(): Promise<void> {
    while (!this.#isStopped) {
      let pauseMs = this.#options.everyMs;
      try {
        this.#client ??= await this.#connect();
        if (!this.#isStopped && this.#hasPeers && (await this.#look(this.#client)) === 'again') pauseMs = 0;
      } catch (error) {
        await this.#drop();
        if (!this.#isStopped)
          this.#options.log('debug', 'peer.not_watched', {
            error: error instanceof Error ? error.message : String(error),
          });
      }
      if (pauseMs > 0) await this.#pause(pauseMs, 'or woken');
    }
    await this.#drop();
  }

  /** One wait for the lock of one peer, and what follows when it is free. */
  async #look(client: pg.Client): Promise<'again' | 'pause'> {
    const { everyMs, pool, workerId, log } = this.#options;
    const watched = await watchPeer(client, workerId(), everyMs);
    if (watched.outcome === 'none') return 'pause';
    if (watched.outcome === 'held') return 'again';
    const { peerId } = watched;
    const sign = await readLockSign(client, peerId);
    // It has said goodbye, or that it is without its lock for now: there may be another one to watch.
    if (sign === undefined) return 'again';
    await this.#pause(REFUTE_MS);
    if (this.#isStopped) return 'pause';
    if (!(await endLease(pool, peerId, sign))) return 'pause';
    log('warn', 'peer.lost', { worker_id: peerId });
    await this.#options.takeOver();
    return 'again';
  }

  async #connect(): Promise<pg.Client> {
    const client = new pg.Client({
      connectionString: this.#options.directUrl,
      application_name: 'boxcar-watch',
      connectionTimeoutMillis: 10_000,
      keepAlive: true,
    });
    client.on('error', () => undefined);
    try {
      await client.connect();
      return client;
    } catch (error) {
      await client.end().catch(() => undefined);
      throw toDatabaseError(error);
    }
  }

  async #drop(): Promise<void> {
    const client = this.#client;
    this.#client = undefined;
    await client?.end().catch(() => undefined);
  }

  #pause(ms: number, until?: 'or woken'): Promise<void> {
    const { signal } = this.#stopping;
    return new Promise((resolve) => {
      if (signal.aborted) return resolve();
      const done = (): void => {
        clearTimeout(timer);
        signal.removeEventListener('abort', done);
        resolve();
      };
      const timer = setTimeout(done, ms);
      signal.addEventListener('abort', done);
      if (until !== undefined) this.#wake = done;
    });
  }
}
