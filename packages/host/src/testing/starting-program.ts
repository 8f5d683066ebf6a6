/** A separate program that gets the signal of its argument after its server has started and before the rest has. */
import { startBoxcar } from '../start-boxcar.js';

const signal = process.argv[2] ?? 'SIGTERM';
await startBoxcar({
  log: (_level, event) => {
    if (event === 'database.embedded') process.kill(process.pid, signal);
  },
});
console.log('started');
