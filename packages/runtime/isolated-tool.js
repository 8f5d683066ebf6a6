/**
 * Runs one call of an isolated tool (docs/primitives.md, "Isolated tools") in a thread of its own. Plain JavaScript, because a thread is
 * started from a file as it is, from the sources as from the build.
 *
 * workerData: { module, input, call }, `input` as JSON. Out: { result }, as JSON or undefined, or { error: { message } }.
 */
import { parentPort, workerData } from 'node:worker_threads';

const { module, input, call } = workerData;

try {
  const { default: run } = await import(module);
  if (typeof run !== 'function') throw new TypeError(`${module}: its default export is not a function`);
  const result = JSON.stringify(await run(JSON.parse(input), call));
  parentPort.postMessage({ result });
} catch (error) {
  parentPort.postMessage({ error: { message: String(error?.message ?? error) } });
}
