/**
 * Work that follows a commit: rings, calls for tool workers, promotions, batches, hints to waiting callers.
 *
 * The announcer owns this background work, and gathers the requests of the same turn of the event loop. Its methods return at
 * once and never fail: the rows record which work is due, and the sweep does any work that is lost here.
 */
import type { BatchId, HandoffId, Ring, TurnId } from '@boxcar/kernel';
import {
  findJobsWaitingFor,
  findWarmedTargets,
  outsideHandlers,
  type PendingCall,
  promote,
} from '@boxcar/store';
import type { Ends, RuntimeCore } from './core/index.js';
import { finishBatch, tellParent, tellSource } from './end/index.js';
import { OnceAtATime } from './lib/index.js';

export class Announcer {
  readonly #runtime: RuntimeCore;
  readonly #background = new Set<Promise<void>>();
  readonly #rings: Ring[] = [];
  readonly #sending: PendingCall[] = [];
  // A promotion that fails is still due according to its rows, and the sweep tries it again.
  readonly #promoting = new OnceAtATime<string>(async (target) => {
    try {
      this.ring(await promote(this.#runtime.pool, target));
    } catch (error) {
      this.#runtime.log('warn', 'queue.promote_failed', { worker_target: target, error });
    }
  });
  readonly #finishing = new OnceAtATime<BatchId>(async (id) => {
    try {
      await finishBatch(this.#runtime, id);
    } catch (error) {
      this.#runtime.log('warn', 'batch.finish_failed', { batch_id: id, error });
    }
  });

  constructor(runtime: RuntimeCore) {
    this.#runtime = runtime;
  }

  /** Settles when no background work is left. */
  async settled(): Promise<void> {
    while (this.#background.size > 0) await Promise.all(this.#background);
  }

  ring(rings: readonly Ring[]): void {
    if (rings.length === 0) return;
    this.#rings.push(...rings);
    // All rings of the same turn of the event loop are sent together.
    if (this.#rings.length > rings.length) return;
    this.#inBackground(() =>
      new Promise((settle) => setImmediate(settle)).then(async () => {
        let rings: readonly Ring[] = this.#rings.splice(0);
        for (const worker of this.#runtime.localWorkers) rings = worker.keep(rings);
        if (rings.length > 0) await this.#runtime.doorbell.ring(rings);
      }),
    );
  }

  sendSoon(call: PendingCall): void {
    const { outside } = this.#runtime;
    if (outside === undefined) return;
    this.#sending.push(call);
    if (this.#sending.length > 1) return;
    this.#inBackground(() =>
      new Promise((settle) => setImmediate(settle)).then(() => outside.send(this.#sending.splice(0))),
    );
  }

  promoteSoon(workerTarget: string): void {
    this.#inBackground(() => this.#promoting.ask(workerTarget));
  }

  letWarmedIn(turnId: TurnId): void {
    this.#inBackground(async () => {
      for (const target of await findWarmedTargets(this.#runtime.pool, turnId)) this.promoteSoon(target);
    });
  }

  announceEnds(ends: Ends): void {
    for (const target of ends.backlogTargets) this.promoteSoon(target);
    this.finishSoon(ends.dueBatchIds);
    for (const turnId of ends.noticeTurnIds) this.#tellSoon(turnId);
    if (ends.endedTurnIds.length === 0) return;
    this.#runtime.watcher.hint(ends.endedTurnIds);
    if (ends.doorTurnIds.length > 0) this.wakeDoorJobsSoon(ends.doorTurnIds);
  }

  finishSoon(batchIds: readonly BatchId[]): void {
    for (const id of batchIds) this.#inBackground(() => this.#finishing.ask(id));
  }

  #tellSoon(turnId: TurnId): void {
    this.#inBackground(() =>
      tellParent(this.#runtime, turnId).catch((error: unknown) => {
        this.#runtime.log('warn', 'session.tell_failed', { turn_id: turnId, error });
      }),
    );
  }

  tellSourceSoon(handoffId: HandoffId): void {
    this.#inBackground(() =>
      tellSource(this.#runtime, handoffId).catch((error: unknown) => {
        this.#runtime.log('warn', 'handoff.tell_failed', { handoff_id: handoffId, error });
      }),
    );
  }

  wakeDoorJobsSoon(ids: readonly (TurnId | BatchId)[]): void {
    this.#inBackground(async () => {
      const doors = await findJobsWaitingFor(this.#runtime.pool, ids);
      await this.#runtime.doorbell.knock(doors.map((door) => door.job_id));
    });
  }

  afterwards(work: () => Promise<void>): void {
    this.#inBackground(work);
  }

  /** The work does not belong to the handler that caused it: it runs in parallel, on other connections. */
  #inBackground(work: () => Promise<void>): void {
    const tracked = outsideHandlers(work)
      .catch((error: unknown) => this.#runtime.log('warn', 'background.failed', { error }))
      .finally(() => {
        this.#background.delete(tracked);
      });
    this.#background.add(tracked);
  }
}
