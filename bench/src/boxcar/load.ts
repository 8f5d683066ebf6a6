/** A caller as a separate process: it keeps turns in progress from its start until it is closed. `concurrency` is their number. */
import { serveWorker } from '../worker-process.js';
import { openCaller, PROFILE, submitTurn } from './system.js';

serveWorker(async (target) => {
  const { runtime, close } = openCaller(target);
  let isOver = false;
  const client = async (): Promise<void> => {
    while (!isOver) {
      const { status, turn_id } = await runtime.waitForTurn(await submitTurn(runtime, PROFILE.name));
      if (status !== 'success') throw new Error(`turn ${turn_id} ended as ${status}`);
    }
  };
  const load = Promise.all(Array.from({ length: target.concurrency }, client));
  // A failed turn ends the process, and with it the benchmark.
  load.catch((error: unknown) => {
    setImmediate(() => {
      throw error;
    });
  });
  return {
    close: async () => {
      isOver = true;
      await load;
      await close();
    },
  };
});
