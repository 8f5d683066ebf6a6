/** A program of its own that gets the signal of its argument when its server has started, and nothing else has. */
import { startBoxcar } from '../start-boxcar.js';

const signal = process.argv[2] ?? 'SIGTERM';
await startBoxcar({
  log: (_level, event) => {
    if (event === 'database.embedded') process.kill(process.pid, signal);
  },
});
console.log('started');
