import type { JsonValue } from '@boxcar/kernel';
import type { BareWorker, TestBackend } from '../queue-backend.js';
import type { Scenario } from './scenario.js';

/** Serves the queue tools of a scenario with BullMQ alone, until the workers or the backend are closed. */
export function serveOutside(
  backend: TestBackend,
  scenario: Scenario,
  beforeAnswer: (toolCallId: string, answer: JsonValue) => Promise<void> = () => Promise.resolve(),
): readonly BareWorker[] {
  return Object.entries(scenario.outside ?? {}).map(([target, answer]) =>
    backend.worker(
      `boxcar-tools-${target}`,
      async (job) => {
        const result = answer(job.data.arguments);
        await beforeAnswer(job.data.tool_call_id, result);
        return result;
      },
      { concurrency: 5 },
    ),
  );
}
