/**
 * Delivers everything twice, late and out of order, and compares the outcome with that of a run with single deliveries.
 *
 * D1  A ring, or a bell of a tool queue, is handled twice at the same moment. Before each job, all earlier jobs of its queue are delivered
 *     again, the last first.
 * D2  A submission arrives as two jobs of the queue door with one key; both get the same answer.
 * D3  A tool outside answers twice at the door for results before its job returns the answer a third time.
 */
import type { JsonValue } from '@boxcar/kernel';
import type { QueueBackend } from '@boxcar/testkit';
import type { Job, Processor } from 'bullmq';
import type { Queues } from '../../queue/job-queue.js';
import { TOOL_RESULTS_QUEUE } from '../../tool-queue/tool-queue.js';
import { type TestBackend, testBackend } from '../queue-backend.js';
import { answerOf, runAtDoors } from './at-doors.js';
import { findFault } from './conclude.js';
import type { Outcome } from './outcome.js';
import type { Scenario } from './scenario.js';
import { Scenes } from './scenes.js';

export interface RedeliveryReport {
  /** Regular jobs, and additional deliveries. */
  readonly jobs: number;
  readonly redelivered: number;
  readonly failures: readonly string[];
}

interface Counts {
  jobs: number;
  redelivered: number;
}

/** Queues of one kind and a database, used by one scenario after the other. */
export class Redelivery implements AsyncDisposable {
  readonly #backend: TestBackend;
  readonly #scenes: Scenes;
  readonly #calm: Map<Scenario, Outcome>;

  private constructor(backend: TestBackend, scenes: Scenes, calm: Map<Scenario, Outcome>) {
    this.#backend = backend;
    this.#scenes = scenes;
    this.#calm = calm;
  }

  /** @param calm - Outcomes of scenarios with single deliveries, on any queues. */
  static async open(kind: QueueBackend, calm: Map<Scenario, Outcome>): Promise<Redelivery> {
    const backend = await testBackend(kind);
    return new Redelivery(backend, await Scenes.open(backend.database), calm);
  }

  async run(scenario: Scenario): Promise<RedeliveryReport> {
    if (scenario.judge === undefined && !this.#calm.has(scenario))
      this.#calm.set(scenario, (await this.#runOnce(scenario, false)).outcome);
    const { outcome, ...counts } = await this.#runOnce(scenario, true);
    const difference = findFault(scenario, outcome, this.#calm.get(scenario));
    return { ...counts, failures: difference === undefined ? [] : [`${scenario.name}: ${difference}`] };
  }

  async #runOnce(scenario: Scenario, isTwice: boolean): Promise<Counts & { readonly outcome: Outcome }> {
    const backend = this.#backend;
    const counts: Counts = { jobs: 0, redelivered: 0 };
    const outcome = await runAtDoors({
      backend,
      scenes: this.#scenes,
      scenario,
      ...(isTwice
        ? {
            times: 2,
            wrap: (queues: Queues) => redelivering(queues, counts),
            beforeAnswer: answerTwice(backend),
          }
        : {}),
    });
    return { ...counts, outcome };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#scenes[Symbol.asyncDispose]();
    await this.#backend.close();
  }
}

function redelivering(queues: Queues, counts: Counts): Queues {
  return {
    kind: queues.kind,
    queue: (name) => queues.queue(name),
    flow: () => queues.flow(),
    close: () => queues.close(),
    worker: (name, processor, settings) => {
      const earlier: Job[] = [];
      const again: typeof processor = async (job, token, signal) => {
        counts.jobs += 1;
        const deliveries = [...earlier].reverse();
        earlier.push(job);
        counts.redelivered += deliveries.length + 1;
        // These deliveries start first and are not awaited, because one of them may still be in its first delivery, and may last as long as
        // its turn.
        const late = deliveries.map((other) => processor(other, token, signal));
        const [answer] = await Promise.all([
          processor(job, token, signal),
          processor(job, token, signal),
          ...late,
        ]);
        return answer;
      };
      return queues.worker(name, again satisfies Processor, settings);
    },
  };
}

/** Sends the answer of a tool to the door for results twice: the first is recorded, and the second is a duplicate. */
function answerTwice(backend: TestBackend) {
  const queue = backend.queue(TOOL_RESULTS_QUEUE);
  return async (toolCallId: string, result: JsonValue): Promise<void> => {
    for (let n = 0; n < 2; n += 1) {
      const { id = '' } = await queue.add('result', { tool_call_id: toolCallId, result });
      await answerOf(backend, TOOL_RESULTS_QUEUE, id);
    }
  };
}
