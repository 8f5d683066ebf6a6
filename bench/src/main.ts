import { HELP, parseOptions, UsageError } from './options.js';

const say = (line: string): void => void process.stderr.write(`bench: ${line}\n`);

async function main(): Promise<number> {
  const options = parseOptions(process.argv.slice(2));
  if (options === 'help') console.log(HELP);
  // Loaded only now, so that a mistyped option is reported at once.
  else await (await import('./run.js')).runSuites(options, say);
  return 0;
}

for (const [signal, number] of [
  ['SIGINT', 2],
  ['SIGTERM', 15],
  ['SIGHUP', 1],
] as const) {
  // Exit handlers stop the servers and the worker processes.
  process.once(signal, () => process.exit(128 + number));
}

let exitCode = 0;
try {
  exitCode = await main();
} catch (error) {
  if (error instanceof UsageError) say(error.message);
  else console.error(error);
  exitCode = error instanceof UsageError ? 2 : 1;
}
// Resources that a failed run could not close must not keep the process alive.
process.exit(exitCode);
