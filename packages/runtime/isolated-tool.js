/**
 * Runs one call of an isolated tool (docs/reference/primitives.md, "Isolated tools") in a process of its own. Plain JavaScript, because it is
 * started from a file as it is, from the sources as from the build.
 *
 * stdin: the JSON of { module, input, call }. fd 3: one line, the JSON of { result }, { error } or { crash }; the last two are
 * messages. fd 4 ends with the worker.
 */
import { writeFileSync } from 'node:fs';
import { Worker as Thread } from 'node:worker_threads';

const MAX_OUTPUT_BYTES = 65_536;
const MAX_MESSAGE_CHARS = 2_000;
const RESULT_FD = 3;

// In a thread, since the code of the tool may hold this one. The group has the processes that the tool has started.
new Thread(
  `const end = () => process.kill(0, 'SIGKILL');
  new (require('node:net').Socket)({ fd: 4 }).on('close', end).on('error', end).resume();`,
  { eval: true },
).unref();

try {
  // When memory is short, the system ends this process and not the worker.
  writeFileSync('/proc/self/oom_score_adj', '1000');
} catch {
  // Not on Linux.
}

function answer(kind, text) {
  writeFileSync(RESULT_FD, `${text === undefined ? '{}' : `{"${kind}":${text}}`}\n`);
}

const messageOf = (error) => JSON.stringify(String(error?.message ?? error).slice(0, MAX_MESSAGE_CHARS));

for (const event of ['uncaughtException', 'unhandledRejection'])
  process.on(event, (error) => {
    answer('crash', messageOf(error));
    process.exit(1);
  });

// What a tool prints beyond this is dropped, and its call goes on.
let printedBytes = 0;
for (const stream of [process.stdout, process.stderr]) {
  const write = stream.write.bind(stream);
  stream.write = (chunk, ...rest) => {
    printedBytes += Buffer.byteLength(chunk);
    if (printedBytes <= MAX_OUTPUT_BYTES) return write(chunk, ...rest);
    rest.find((one) => typeof one === 'function')?.();
    return true;
  };
}

const chunks = [];
for await (const chunk of process.stdin) chunks.push(chunk);
const { module, input, call } = JSON.parse(Buffer.concat(chunks).toString());

try {
  const { default: run } = await import(module);
  if (typeof run !== 'function') throw new TypeError(`${module}: its default export is not a function`);
  answer('result', JSON.stringify(await run(input, call)));
} catch (error) {
  answer('error', messageOf(error));
}
