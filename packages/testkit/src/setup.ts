import { afterAll, afterEach, beforeAll } from 'vitest';
import { testContext } from './context.js';
import { closeAll, markFailed, ownSetTimeout } from './lifecycle.js';
import { useBundles } from './spawn-node.js';

useBundles(testContext().bundles);

// No command of a test leaves a server behind.
process.env.BOXCAR_POSTGRES_KEEP_SECONDS ??= '0';

// What sweeps and waits does so by timers: without them all later files would hang, and none would say why.
beforeAll(() => {
  if (globalThis.setTimeout !== ownSetTimeout)
    throw new Error('A test file of this process has left a setTimeout of its own behind.');
});
// Registered before the hooks of any test file, and so run after them.
afterEach(({ task }) => {
  if (task.result?.state === 'fail') markFailed();
});
afterAll(closeAll);
