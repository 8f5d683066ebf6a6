/** Turns of several projects on one worker. The test releases each model answer, so that it counts ends and measures no times. */
import { randomUUID } from 'node:crypto';
import type { Doorbell, Model, Ring, TurnId } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { promote } from '@boxcar/store';
import { type QueueBackend, waitFor } from '@boxcar/testkit';
import { silentLog } from '../lib/log.js';
import { BullMqDoorbell } from '../queue/doorbell-bullmq.js';
import { InProcessDoorbell } from '../queue/doorbell-in-process.js';
import { openQueues } from '../queue/queues.js';
import type { WorkerOptions } from '../worker/worker.js';
import { deafDoorbell } from './deaf-doorbell.js';
import { sendAllRings } from './far-rings.js';
import { type Harness, harness } from './harness.js';
import { testBackend } from './queue-backend.js';

const START = Date.now();

/**
 * `no queue`: rings are ignored, so the worker takes turns from the rows. `near`: the rings stay in the process, because no other worker
 * lives.
 */
export type FairKind = 'in process' | 'no queue' | 'near' | QueueBackend;

export interface FairStage extends AsyncDisposable {
  readonly h: Harness;
  readonly doorbell: Doorbell;
  /** Turns in the order of their starts. */
  readonly started: TurnId[];
  /** Turns whose last model call is held, in the order of these calls. */
  readonly held: TurnId[];
  /** Turns that were rung. A turn that the dispatching worker took itself is not included. */
  readonly rung: ReadonlySet<TurnId>;
  /** Starts the worker of the stage. */
  work(options: WorkerOptions): Promise<void>;
  /** Creates a project with the one-step profile `plain`. */
  project(name: string): Promise<string>;
  /** Submits a turn. If it was dispatched, settles after its ring is in the queue. */
  submit(projectId: string, args?: Readonly<Record<string, unknown>>): Promise<TurnId>;
  /**
   * Fills the window, which a worker does some time after an end, and waits until the rings of all dispatched turns are in the queue:
   * rings that are sent at the same time may arrive in either order.
   */
  allRung(): Promise<void>;
  /** Waits until the rings that the worker has refused, or is about to refuse, are in the queue again. A sweep raises no other rings. */
  allGivenBack(): Promise<void>;
  /** Releases a held turn, by default the first one, and waits until `count` turns are held again. */
  end(count: number, turnId?: TurnId): Promise<void>;
}

/**
 * @param now - Clock of the doorbell, in milliseconds. By default the clock does not advance: rings that are some seconds old pass newer
 *   rings, so on a busy machine the order would depend on how long a test takes.
 */
export async function openFairStage(kind: FairKind, now: () => number = () => START): Promise<FairStage> {
  const isQueue = kind === 'redis' || kind === 'postgres';
  const backend = isQueue || kind === 'near' ? await testBackend(isQueue ? kind : 'postgres') : undefined;
  const queue = (): Doorbell => {
    if (backend !== undefined) return new BullMqDoorbell(openQueues(backend.connection), silentLog, now);
    return kind === 'no queue' ? deafDoorbell() : new InProcessDoorbell(now);
  };
  const doorbell = queue();
  const rung = new Set<TurnId>();
  const ring = doorbell.ring.bind(doorbell);
  doorbell.ring = async (rings: readonly Ring[]) => {
    await ring(rings);
    for (const { turnId } of rings) rung.add(turnId);
  };
  const started: TurnId[] = [];
  const held: TurnId[] = [];
  const gates = new Map<TurnId, () => void>();
  const calls = new Map<TurnId, number>();
  let isOpen = false;
  const router = createModelRouter({});
  const model: Model = {
    ...router,
    generate: async (request, options) => {
      const { turnId } = request.turn;
      const call = (calls.get(turnId) ?? 0) + 1;
      calls.set(turnId, call);
      if (call === 1) started.push(turnId);
      if (!isOpen && call === request.script?.length) {
        held.push(turnId);
        await new Promise<void>((settle) => gates.set(turnId, settle));
      }
      return router.generate(request, options);
    },
  };
  const h = await harness({ doorbell, model });
  const release = (turnId: TurnId): void => {
    held.splice(held.indexOf(turnId), 1);
    gates.get(turnId)?.();
    gates.delete(turnId);
  };
  return {
    h,
    doorbell,
    started,
    held,
    rung,
    work: async (options) => {
      await h.worker(options);
      if (kind !== 'near') {
        sendAllRings(h.runtime);
        return;
      }
      for (const worker of h.runtime.localWorkers) {
        const keep = worker.keep.bind(worker);
        worker.keep = (rings) => {
          const others = keep(rings);
          for (const ring of rings) if (!others.includes(ring)) rung.add(ring.turnId);
          return others;
        };
      }
      const probe = { turnId: randomUUID() as TurnId, epoch: 1, workerTarget: '' };
      const keeps = () => [...h.runtime.localWorkers].some((worker) => worker.keep([probe]).length === 0);
      await waitFor(keeps, { message: 'the rings stay in the process' });
    },
    project: async (name) => {
      const [projectId, operatorId] = [randomUUID(), randomUUID()];
      await h.rows(
        `
          insert into boxcar.projects (id, name, operator_agent_id, bootstrap_card_id)
          select $1, $2, $3, bootstrap_card_id
          from boxcar.projects
          limit 1`,
        [projectId, name, operatorId],
      );
      await h.rows("insert into boxcar.agents (id, project_id, name) values ($1, $2, 'operator')", [
        operatorId,
        projectId,
      ]);
      const plain = { name: 'plain', instructions: 'Answer.', model: 'scripted', script: [{ say: 'done' }] };
      await h.runtime.applyProfile(plain, { projectId });
      return projectId;
    },
    submit: async (projectId, args = {}) => {
      const receipt = await h.runtime.submit(
        'launch_principal',
        { profile_name: 'plain', instruction: 'go', ...args },
        { projectId },
      );
      const turnId = (receipt as { turn_id: TurnId }).turn_id;
      const [turn] = await h.rows<{ status: string; epoch: number }>(
        'select status, epoch from boxcar.turns where id = $1',
        [turnId],
      );
      if (turn?.status !== 'dispatched' || kind === 'no queue') return turnId;
      if (kind === 'near')
        await waitFor(() => started.includes(turnId) || rung.has(turnId), { message: 'the turn is rung' });
      else
        await waitFor(
          async () =>
            started.includes(turnId) ||
            (await doorbell.findLost([{ turnId, epoch: turn.epoch, workerTarget: '' }]))?.length === 0,
          { message: 'the ring is in the queue' },
        );
      return turnId;
    },
    allRung: async () => {
      await doorbell.ring(await promote(h.database.pool, ''));
      if (kind === 'no queue') return;
      const isRung = async (): Promise<boolean> => {
        const rows = await h.rows<{ id: TurnId; epoch: number }>(
          "select id, epoch from boxcar.turns where status = 'dispatched'",
        );
        const rings = rows.map(({ id, epoch }) => ({ turnId: id, epoch, workerTarget: '' }));
        return rings.length === 0 || (await doorbell.findLost(rings))?.length === 0;
      };
      await waitFor(isRung, { message: 'the rings of all dispatched turns are in the queue' });
    },
    allGivenBack: async () => {
      if (!isQueue || backend === undefined) return;
      const queue = backend.queue('boxcar-turns');
      const isGivenBack = async (): Promise<boolean> => {
        const rows = await h.rows<{ id: TurnId; epoch: number }>(
          "select id, epoch from boxcar.turns where status = 'dispatched'",
        );
        const states = await Promise.all(rows.map(({ id, epoch }) => queue.getJobState(`${id}-${epoch}`)));
        return !states.includes('active');
      };
      await waitFor(isGivenBack, { message: 'the refused rings are in the queue again' });
    },
    end: async (count, turnId = held[0]) => {
      if (turnId === undefined) throw new Error('no turn is held');
      release(turnId);
      await waitFor(() => held.length >= count, { message: `${count} turns are held` });
    },
    [Symbol.asyncDispose]: async () => {
      isOpen = true;
      for (const turnId of [...held]) release(turnId);
      await h[Symbol.asyncDispose]();
      await backend?.close();
    },
  };
}
