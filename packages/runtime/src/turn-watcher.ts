import { isFinal, KernelError, type TurnId, tryParseId } from '@boxcar/kernel';
import { ENDED_CHANNEL, loadTurnStates, type TurnState } from '@boxcar/store';
import pg from 'pg';
import type { Log } from './log.js';

const POLL_MS = 500;

interface Waiter {
  readonly project: string;
  readonly resolve: (state: TurnState) => void;
  readonly reject: (error: unknown) => void;
}

/** Projects are named by id or name. */
export const isOfProject = (state: TurnState, project: string): boolean =>
  state.project_id === tryParseId(project) || state.project_name === project;

export const turnNotFound = (turnId: string, project: string): KernelError =>
  new KernelError('not_found', {
    message: `No turn '${turnId}' in project '${project}'.`,
    details: { turn_id: turnId, project_id: project },
  });

/**
 * Waits for ends of turns. The rows are the truth: one statement reads all watched turns, at once when a notice names one
 * of them, and twice a second in any case, so a lost notice costs half a second.
 */
export class TurnWatcher {
  readonly #options: { readonly pool: pg.Pool; readonly directUrl: string; readonly log: Log };
  readonly #waiters = new Map<TurnId, Set<Waiter>>();
  #listener: pg.Client | undefined;
  #connecting = false;
  #timer: NodeJS.Timeout | undefined;
  #isReading = false;
  #readAgain = new Set<TurnId>();
  #isClosed = false;

  constructor(options: { readonly pool: pg.Pool; readonly directUrl: string; readonly log: Log }) {
    this.#options = options;
  }

  /**
   * @param options.project - Id or name; a turn of another project is not found.
   * @throws KernelError `not_found`, `wait_timeout`, or the signal's reason.
   */
  wait(
    turnId: TurnId,
    options: { readonly project: string; readonly timeoutMs?: number; readonly signal?: AbortSignal },
  ): Promise<TurnState> {
    if (this.#isClosed)
      return Promise.reject(new KernelError('internal_error', { message: 'The runtime is closed.' }));
    options.signal?.throwIfAborted();
    return new Promise<TurnState>((resolve, reject) => {
      const done = (): void => {
        clearTimeout(timeout);
        options.signal?.removeEventListener('abort', onAbort);
        const waiters = this.#waiters.get(turnId);
        waiters?.delete(waiter);
        if (waiters?.size === 0) this.#waiters.delete(turnId);
        if (this.#waiters.size === 0) this.#stopTimer();
      };
      const waiter: Waiter = {
        project: options.project,
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
      const timeout =
        options.timeoutMs === undefined
          ? undefined
          : setTimeout(
              () =>
                waiter.reject(
                  new KernelError('wait_timeout', {
                    details: { turn_id: turnId, timeout_ms: options.timeoutMs },
                  }),
                ),
              options.timeoutMs,
            );
      options.signal?.addEventListener('abort', onAbort, { once: true });
      const waiters = this.#waiters.get(turnId) ?? new Set();
      this.#waiters.set(turnId, waiters.add(waiter));
      this.#timer ??= setInterval(() => void this.#read([...this.#waiters.keys()]), POLL_MS);
      void this.#listen();
      void this.#read([turnId]);
    });
  }

  /** Says that turns have ended; called by whoever ended them in this process. */
  hint(turnIds: readonly TurnId[]): void {
    const watched = turnIds.filter((id) => this.#waiters.has(id));
    if (watched.length > 0) void this.#read(watched);
  }

  async #listen(): Promise<void> {
    if (this.#listener !== undefined || this.#connecting || this.#isClosed) return;
    this.#connecting = true;
    const client = new pg.Client({
      connectionString: this.#options.directUrl,
      application_name: 'boxcar-listen',
      keepAlive: true,
    });
    const drop = (): void => {
      if (this.#listener === client) this.#listener = undefined;
    };
    client.on('error', drop);
    client.on('end', drop);
    client.on('notification', (notice) =>
      this.hint((notice.payload ?? '').split(',').flatMap((id) => tryParseId<'turn'>(id) ?? [])),
    );
    try {
      await client.connect();
      await client.query(`listen ${ENDED_CHANNEL}`);
      if (this.#isClosed) await client.end();
      else this.#listener = client;
      // Whatever ended before the subscription stood is read now.
      void this.#read([...this.#waiters.keys()]);
    } catch (error) {
      this.#options.log('debug', 'watcher.listen_failed', { error });
      client.end().catch(() => undefined);
    } finally {
      this.#connecting = false;
    }
  }

  async #read(turnIds: readonly TurnId[]): Promise<void> {
    for (const id of turnIds) this.#readAgain.add(id);
    if (this.#isReading) return;
    this.#isReading = true;
    try {
      while (this.#readAgain.size > 0) {
        const ids = [...this.#readAgain].filter((id) => this.#waiters.has(id));
        this.#readAgain = new Set();
        if (ids.length === 0) continue;
        const states = new Map(
          (await loadTurnStates(this.#options.pool, ids)).map((state) => [state.turn_id, state]),
        );
        for (const id of ids) this.#settle(id, states.get(id));
      }
      void this.#listen();
    } catch (error) {
      // The next poll reads again; a waiter has its own deadline.
      this.#options.log('debug', 'watcher.read_failed', { error });
    } finally {
      this.#isReading = false;
    }
  }

  #settle(id: TurnId, state: TurnState | undefined): void {
    for (const waiter of [...(this.#waiters.get(id) ?? [])]) {
      if (state === undefined || !isOfProject(state, waiter.project))
        waiter.reject(turnNotFound(id, waiter.project));
      else if (isFinal(state.status)) waiter.resolve(state);
    }
  }

  #stopTimer(): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#stopTimer();
    for (const waiters of [...this.#waiters.values()]) {
      for (const waiter of [...waiters])
        waiter.reject(
          new KernelError('internal_error', { message: 'The runtime was closed while waiting.' }),
        );
    }
    const listener = this.#listener;
    this.#listener = undefined;
    await listener?.end().catch(() => undefined);
  }
}
