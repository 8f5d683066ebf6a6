import type { JsonValue } from '@boxcar/kernel';
import type { TestBackend } from '../queue-backend.js';
import type { Scenario } from './scenario.js';

/** Serves the queue tools of a scenario as anyone does who knows nothing but BullMQ, until the backend closes. */
export function serveOutside(
  backend: TestBackend,
  scenario: Scenario,
  beforeAnswer: (toolCallId: string, answer: JsonValue) => Promise<void> = () => Promise.resolve(),
): void {
  for (const [target, answer] of Object.entries(scenario.outside ?? {})) {
    backend.worker(
      `boxcar-tools-${target}`,
      async (job) => {
        const result = answer(job.data.arguments);
        await beforeAnswer(job.data.tool_call_id, result);
        return result;
      },
      { concurrency: 5 },
    );
  }
}
