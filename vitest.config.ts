import { availableParallelism } from 'node:os';
import { defineConfig } from 'vitest/config';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

/**
 * Half a minute and more each: they inject faults at every statement, start and kill programs and servers, or measure. `outside.test.ts` is none of
 * them: it runs the packed command line on both versions of Node.
 */
const LONG_TESTS = [
  '**/a2a/src/push.test.ts',
  '**/custom-handlers.test.ts',
  '**/dev/dev.test.ts',
  '**/doorbell.test.ts',
  '**/erase/purge.test.ts',
  '**/evaluate.property.test.ts',
  '**/failed-runs.test.ts',
  '**/faults/**/*.test.ts',
  '**/fit-schema.test.ts',
  '**/leave.test.ts',
  '**/left-turns.test.ts',
  '**/mcp-client/src/agents.test.ts',
  '**/mcp-client/src/servers/mcp-servers.test.ts',
  '**/mcp/src/sessions/faults.test.ts',
  '**/mcp/src/stdio/stdio.test.ts',
  '**/newcomers.test.ts',
  '**/outage.test.ts',
  '**/provider-loops.test.ts',
  '**/queue-door.test.ts',
  '**/queue/queues.test.ts',
  '**/recovery.test.ts',
  '**/regular-expressions.test.ts',
  '**/scenarios/costs.test.ts',
  '**/scenarios/replay.test.ts',
  '**/sent-bytes.test.ts',
  '**/serve/serve.test.ts',
  '**/soak/**/*.test.ts',
  '**/sweep-bounds.test.ts',
  '**/thousand-children.test.ts',
  '**/tool-queue.test.ts',
  '**/tool-worker.test.ts',
  '**/worker-role.test.ts',
  '**/worker/builds.test.ts',
  '**/worker/previous-build.test.ts',
  '**/worker/worker.test.ts',
  'bench/**/*.test.ts',
  'examples/repo-survey/src/repository.test.ts',
  'packages/embedded/**/*.test.ts',
  'scripts/start.test.ts',
  'scripts/tutorial.test.ts',
];
/** `npm test` runs the others and `npm run test:long` these; vitest by itself runs all. */
const PART = process.env.BOXCAR_TEST_PART;
const ALL_TESTS = [
  '{packages,services,examples}/*/src/**/*.test.ts',
  'bench/src/**/*.test.ts',
  'scripts/**/*.test.ts',
];
const NO_TESTS = ['**/node_modules/**', '**/dist/**', '**/fixtures/**'];

/** Files of half a minute and more. A fresh clone knows no durations, and one of these begun last runs alone. */
const LONG =
  /\/(faults\/[^/]+|[\w.-]+\.property|bench|gate-simulation|outage|outside|recovery|scoped-looks|soak|start|thousand-children|tool-queue)\.test\.ts$/;

class LongFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const sorted = await super.sort(files);
    const isLong = (file: TestSpecification): boolean => LONG.test(file.moduleId);
    return [...sorted.filter(isLong), ...sorted.filter((file) => !isLong(file))];
  }
}

export default defineConfig({
  // Workspace packages resolve to their sources, so tests need no build. Exactly this condition: adding the usual
  // ones here makes vite load the ES module entry of pg, which breaks `class … extends`.
  ssr: { resolve: { conditions: ['@boxcar/source'] } },
  // The global setup is loaded by an environment of vitest's own.
  environments: { __vitest__: { resolve: { conditions: ['@boxcar/source'] } } },
  test: {
    experimental: { fsModuleCache: true },
    include: PART === 'long' ? LONG_TESTS : ALL_TESTS,
    exclude: PART === 'short' ? [...NO_TESTS, ...LONG_TESTS] : NO_TESTS,
    globalSetup: ['packages/testkit/src/global-setup.ts'],
    setupFiles: ['packages/testkit/src/setup.ts'],
    // Child processes are real, so a worker of the pool is a process of its own, never a thread.
    pool: 'forks',
    // Test files follow one another in a process, which loads the modules once. The setup file closes what a file left open.
    isolate: false,
    // Many tests wait for leases, deadlines and processes. With one file more than there are cores, a quarter of their time is
    // idle; with three more, nearly none is.
    maxWorkers: availableParallelism() + 3,
    sequence: { sequencer: LongFirst },
    // They end what hangs, on a busy machine too: nothing that is promised is measured by them.
    testTimeout: 120_000,
    hookTimeout: 120_000,
    teardownTimeout: 30_000,
  },
});
