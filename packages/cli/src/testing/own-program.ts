/** A program of its own: runs a turn whose model never answers, and waits for its end. */
import { setTimeout as delay } from 'node:timers/promises';
import { startBoxcar } from '../start-boxcar.js';

const boxcar = await startBoxcar({
  models: {
    scripted: {
      functions: {
        never: (_request, { signal }) =>
          new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason))),
      },
    },
  },
});
const { runtime } = boxcar;
boxcar.stopping.addEventListener('abort', () => console.log('stopping'));
await runtime.applyProfile({ name: 'slow', instructions: 'Wait.', model: 'scripted:never' });
await boxcar.startWorker({ graceMs: 100 });
const { answer } = await runtime.accept('launch_principal', { profile_name: 'slow', instruction: 'Go.' });
const { turn_id: turnId } = answer as { turn_id: string };
while ((await runtime.getTurn(turnId)).status !== 'running') await delay(20);
console.log(`running ${boxcar.databaseUrl}`);
await runtime.waitForTurn(turnId);
