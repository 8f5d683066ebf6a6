/** A caller and a worker on an idle system. The model stops before each answer, so that one operation runs at a time. */
import type { JsonValue, Model, Ring } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { createPool } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import { z } from 'zod';
import { InProcessDoorbell } from '../../queue/doorbell-in-process.js';
import { Runtime } from '../../runtime.js';
import { createWorker } from '../../worker/worker.js';
import type { Cost, Meter } from './meter.js';

/** No periodic work of the worker is due within a test. */
const AT_REST = { sweepMs: 3_600_000, leaseMs: 7_200_000, heartbeatMs: 3_600_000 };

/** A model whose calls wait, in the order of their arrival, until each is released. */
class GatedModel {
  readonly #router = createModelRouter({});
  readonly #waiting: (() => void)[] = [];
  /** The number of calls so far. */
  calls = 0;

  readonly model: Model = {
    ...this.#router,
    generate: async (request, options) => {
      this.calls += 1;
      await new Promise<void>((settle) => this.#waiting.push(settle));
      return this.#router.generate(request, options);
    },
  };

  letGo(): void {
    const next = this.#waiting.shift();
    if (next === undefined) throw new Error('no call of the model waits');
    next();
  }
}

/** Holds rings back while it is closed. */
class HeldDoorbell extends InProcessDoorbell {
  isClosed = true;
  readonly #held: Ring[] = [];

  override ring(rings: readonly Ring[]): Promise<void> {
    if (!this.isClosed) return super.ring(rings);
    this.#held.push(...rings);
    return Promise.resolve();
  }

  letGo(): Promise<void> {
    return super.ring(this.#held.splice(0));
  }
}

export class Stage implements AsyncDisposable {
  readonly #meter: Meter;
  readonly #gate = new GatedModel();
  readonly #bell = new HeldDoorbell();
  readonly #closing: (() => Promise<void>)[] = [];
  readonly #costs = new Map<string, Cost[]>();
  readonly #labels = new Map<string, readonly string[]>();
  /** A process that only submits. */
  readonly caller: Runtime;
  /** The process of the worker. */
  readonly worker: Runtime;

  constructor(meter: Meter) {
    this.#meter = meter;
    this.caller = this.#open();
    this.worker = this.#open();
    this.worker.registerTool({
      name: 'look',
      description: 'Looks.',
      input: z.strictObject({}),
      isReadOnly: true,
      run: () => 'seen',
    });
  }

  #open(): Runtime {
    const pool = createPool({ connectionString: this.#meter.url, max: 6 });
    const runtime = new Runtime({
      pool,
      directUrl: this.#meter.url,
      doorbell: this.#bell,
      model: this.#gate.model,
    });
    this.#closing.push(async () => {
      await runtime.close();
      await pool.end();
    });
    return runtime;
  }

  /** Runs a worker during `work`. */
  async withWorker(concurrency: number, work: () => Promise<void>): Promise<void> {
    const worker = await createWorker(this.worker, { ...AT_REST, concurrency });
    try {
      await work();
    } finally {
      await worker.close({ graceMs: 0 });
    }
  }

  async profile(name: string, script: readonly JsonValue[], rest: object = {}): Promise<void> {
    await this.caller.applyProfile({ name, instructions: 'You act.', model: 'scripted', script, ...rest });
  }

  submit(runtime: Runtime, profile: string): Promise<unknown> {
    return runtime.submit('launch_principal', { profile_name: profile, instruction: 'Go.' });
  }

  /** Releases the next answer of the model. */
  readonly answer = (): void => this.#gate.letGo();
  /** Sends the rings that were held back. */
  readonly ring = (): Promise<void> => this.#bell.letGo();

  /** From now on, rings are sent at once. */
  ringAtOnce(): void {
    this.#bell.isClosed = false;
  }

  /** Measures `work` with all its consequences. */
  async measure(name: string, work: () => unknown): Promise<void> {
    this.#keep(name, await this.#meter.costOf(work));
  }

  /** Runs `work` with all its consequences, without recording the cost. */
  async toRest(work: () => unknown): Promise<void> {
    await this.#meter.costOf(work);
  }

  /** Measures from `work` until the model is called, including all work beside it. */
  async measureToModel(name: string, work: () => unknown): Promise<void> {
    const { calls } = this.#gate;
    this.#keep(name, await this.#meter.costOf(work, () => this.#gate.calls > calls));
  }

  /** Runs `work` until the model has been called this many more times. */
  async toModel(work: () => unknown, more = 1): Promise<void> {
    const calls = this.#gate.calls + more;
    await work();
    await waitFor(() => this.#gate.calls === calls, { message: 'the model is called', intervalMs: 2 });
  }

  #keep(name: string, cost: Cost): void {
    this.#costs.set(name, [...(this.#costs.get(name) ?? []), cost]);
    this.#labels.set(name, this.#meter.labels);
  }

  /**
   * The cost of each operation. From its repetitions, the one with the fewest statements and round trips is used, because filling caches
   * and split packets only add to the cost. Bytes of the log are the median, because a split page adds some.
   */
  costs(): ReadonlyMap<string, Cost> {
    return new Map([...this.#costs].map(([name, costs]) => [name, typicalOf(costs)]));
  }

  /** The statements of an operation, by label. */
  labelsOf(name: string): readonly string[] {
    return this.#labels.get(name) ?? [];
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const close of this.#closing) await close();
  }
}

/** The fewest updates of each table over all repetitions: an update is also cold when its page happens to be full. */
function fewest(all: readonly Cost['coldUpdates'][]): Cost['coldUpdates'] {
  const [first = {}, ...others] = all;
  return Object.fromEntries(
    Object.entries(first).flatMap(([table, updates]) => {
      const least = Math.min(updates, ...others.map((of) => of[table] ?? 0));
      return least === 0 ? [] : [[table, least]];
    }),
  );
}

function typicalOf(costs: readonly Cost[]): Cost {
  const sizes = costs.map(({ walBytes }) => walBytes).sort((a, b) => a - b);
  const [least] = [...costs].sort((a, b) => a.statements - b.statements || a.roundTrips - b.roundTrips);
  if (least === undefined) throw new Error('nothing was measured');
  const walBytes = sizes[Math.floor(sizes.length / 2)] ?? 0;
  return { ...least, walBytes, coldUpdates: fewest(costs.map(({ coldUpdates }) => coldUpdates)) };
}
