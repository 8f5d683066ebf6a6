import { afterAll, afterEach } from 'vitest';
import { closeAll, markFailed } from './lifecycle.js';

// Registered before the hooks of any test file, and so run after them.
afterEach(({ task }) => {
  if (task.result?.state === 'fail') markFailed();
});
afterAll(closeAll);
