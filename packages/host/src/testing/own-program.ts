/**
 * A separate program: it runs a turn whose model never answers, and waits for the end of the turn. With `decides` it handles signals
 * itself.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { startBoxcar } from '../start-boxcar.js';

// Acts like a library that cleans up at a signal and leaves the exit to other code.
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => console.log('cleaning up'));
const decides = process.argv[2] === 'decides';
const boxcar = await startBoxcar({
  handleSignals: !decides,
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
if (decides)
  process.once('SIGTERM', async () => {
    await boxcar.close();
    console.log('closed');
    process.exit(0);
  });
boxcar.stopping.addEventListener('abort', () => console.log('stopping'));
await runtime.applyProfile({ name: 'slow', instructions: 'Wait.', model: 'scripted:never' });
await boxcar.startWorker({ graceMs: 100 });
const { answer } = await runtime.accept('launch_principal', { profile_name: 'slow', instruction: 'Go.' });
const { turn_id: turnId } = answer as { turn_id: string };
while ((await runtime.getTurn(turnId)).status !== 'running') await delay(20);
console.log(`running ${boxcar.databaseUrl}`);
await runtime.waitForTurn(turnId).catch((error: unknown) => {
  // The program's own `close` ends the wait.
  if (!decides) throw error;
});
