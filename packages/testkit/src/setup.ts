import { afterAll, afterEach, beforeAll } from 'vitest';
import { testContext } from './context.js';
import { closeAll, markFailed, ownSetTimeout } from './lifecycle.js';
import { useBundles } from './spawn-node.js';

useBundles(testContext().bundles);

// Commands of tests must not leave a server running.
process.env.BOXCAR_POSTGRES_KEEP_SECONDS ??= '0';

// Sweeps and waits need timers. With a replaced `setTimeout` all later files would hang without an explanation.
beforeAll(() => {
  if (globalThis.setTimeout !== ownSetTimeout)
    throw new Error('A test file of this process has left a setTimeout of its own behind.');
});
// Registered before the hooks of all test files, so it runs after them.
afterEach(({ task }) => {
  if (task.result?.state === 'fail') markFailed();
});
afterAll(closeAll);
