import {
  type QueueBackend,
  type StatementProxy,
  spawnNode,
  statementProxy,
  type TcpProxy,
  tcpProxy,
} from '@boxcar/testkit';
import { silentLog } from '../../lib/log.js';
import { BullMqDoorbell } from '../../queue/doorbell-bullmq.js';
import type { QueueConnection } from '../../queue/job-queue.js';
import { openQueues } from '../../queue/queues.js';
import { ToolQueue } from '../../tool-queue/tool-queue.js';
import type { Fault } from '../faults/crash-points.js';
import { serveOutside } from '../faults/outside.js';
import type { Cast, Scenario } from '../faults/scenario.js';
import { Scenes } from '../faults/scenes.js';
import { openStage, type Stage } from '../faults/stage.js';
import { type TestBackend, testBackend } from '../queue-backend.js';
import type { WorkerProcessOptions } from '../worker-process.js';

/** The home of the process that stops. */
export type VictimHome = 'this process' | 'own process';

const START_MS = 60_000;

/** Short, so that a case is short. */
export const LEASE_MS = 2_000;
const QUICK = { leaseMs: LEASE_MS, heartbeatMs: 300, sweepMs: 150, lostRingMs: 400 };

/** The process that stops. It reaches all servers through proxies. */
export interface Victim {
  readonly proxy: StatementProxy;
  /** The stage by which it submits; undefined for a separate process, which only works. */
  readonly stage: Stage | undefined;
  /** Starts its worker. */
  start(): Promise<unknown>;
  /** Ends its worker as in normal operation. */
  rest(): Promise<void>;
  close(): Promise<void>;
  /** Lets all held data through and continues the process. */
  wake(): Promise<void>;
  /** Breaks its remaining connections. */
  bury(): Promise<void>;
}

/** A database and its queues, and two processes without faults: one works, one submits. */
export class StopLane implements AsyncDisposable {
  readonly backend: TestBackend;
  readonly #cast: Cast;
  readonly #scenes: Scenes;
  #helper: Stage | undefined;
  #caller: Stage | undefined;
  #scenario: Scenario | undefined;
  #outside: readonly { close(force?: boolean): Promise<void> }[] = [];

  private constructor(backend: TestBackend, scenes: Scenes, cast: Cast) {
    this.backend = backend;
    this.#scenes = scenes;
    this.#cast = cast;
  }

  static async open(kind: QueueBackend, cast: Cast): Promise<StopLane> {
    const backend = await testBackend(kind);
    return new StopLane(backend, await Scenes.open(backend.database), cast);
  }

  /** A worker without faults. It takes turns after a call of `work`. */
  get helper(): Stage {
    this.#helper ??= this.#open(this.backend.database.url, this.backend.connection);
    return this.#helper;
  }

  /** A caller without faults. */
  get caller(): Stage {
    this.#caller ??= this.#open(this.backend.database.url, this.backend.connection);
    return this.#caller;
  }

  #open(databaseUrl: string, connection: QueueConnection): Stage {
    const queues = openQueues(connection);
    return openStage({
      ...QUICK,
      cast: this.#cast,
      databaseUrl,
      effects: this.backend.database.pool,
      doorbell: new BullMqDoorbell(queues, silentLog),
      toolQueue: new ToolQueue(queues, silentLog),
    });
  }

  /** Restores the rows that a scenario starts with. */
  async reset(scenario: Scenario): Promise<void> {
    await this.#scenes.set(scenario, this.caller.runtime);
    if (this.#scenario === scenario) return;
    await Promise.all(this.#outside.map((worker) => worker.close(true)));
    this.#outside = serveOutside(this.backend, scenario);
    this.#scenario = scenario;
  }

  /** @param home - A separate process also gets a real SIGSTOP when it falls silent. */
  async openVictim(fault: Fault | undefined, home: VictimHome): Promise<Victim> {
    const { backend } = this;
    const proxy = await statementProxy(backend.database.url, fault);
    const queueProxy: TcpProxy = await tcpProxy(backend.connection.url);
    const queue: QueueConnection = { ...backend.connection, url: queueProxy.url };
    const process = home === 'own process' ? this.#spawn(proxy, queue) : this.#play(proxy, queue);
    proxy.life.addEventListener(
      'abort',
      () => {
        queueProxy.stall();
        process.stop();
      },
      { once: true },
    );
    return {
      ...process,
      proxy,
      wake: async () => {
        process.goOn();
        proxy.wake();
        await queueProxy.restore();
      },
      bury: async () => {
        await proxy[Symbol.asyncDispose]();
        await queueProxy.close();
      },
    };
  }

  /**
   * Runs the victim in this process. Its timers continue while it receives nothing, like those of a host that is cut off.
   */
  #play(proxy: StatementProxy, queue: QueueConnection) {
    const stage = this.#open(proxy.url, queue);
    return {
      stage,
      start: () => stage.work(),
      rest: () => stage.rest(),
      close: () => stage.close(),
      stop: () => undefined,
      goOn: () => undefined,
    };
  }

  #spawn(proxy: StatementProxy, queue: QueueConnection) {
    const options: WorkerProcessOptions = {
      databaseUrl: proxy.url,
      ...(queue.kind === 'redis' ? { redisUrl: queue.url } : {}),
      effectsUrl: this.backend.database.url,
      worker: QUICK,
      graceMs: 1_000,
    };
    const child = spawnNode(new URL('../worker-process.ts', import.meta.url), [JSON.stringify(options)]);
    let hasEnded = false;
    void child.exited.then(() => {
      hasEnded = true;
    });
    const isRunning = (): boolean => !hasEnded;
    return {
      stage: undefined,
      start: () => child.line(/^ready /, { deadlineMs: START_MS }),
      rest: () => child.kill('SIGTERM'),
      close: async () => {
        await child[Symbol.asyncDispose]();
      },
      stop: () => void process.kill(child.pid, 'SIGSTOP'),
      // A process that has ended cannot be continued.
      goOn: () => void (isRunning() && process.kill(child.pid, 'SIGCONT')),
    };
  }

  /** Opens the stages again, because a failure may have left them in an unknown state. */
  async renew(): Promise<void> {
    const old = [this.#helper, this.#caller];
    this.#helper = undefined;
    this.#caller = undefined;
    await Promise.all(old.map((stage) => stage?.close()));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.renew();
    await this.#scenes[Symbol.asyncDispose]();
    await this.backend.close();
  }
}
