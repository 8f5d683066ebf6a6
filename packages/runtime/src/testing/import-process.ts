/**
 * A program that imports lines to a tape, in a separate process. It reads one line on stdin, the JSON of `ImportProcessOptions`, and
 * prints `imported <JSON of the answer>`, or `refused <JSON of the error>`.
 */

import { createInterface } from 'node:readline';
import { createModelRouter } from '@boxcar/llm';
import { openRuntime } from '../open.js';

export interface ImportProcessOptions {
  readonly databaseUrl: string;
  /** The box of the tape. */
  readonly box: string;
  readonly dedupKey: string;
  readonly lines: readonly string[];
}

for await (const line of createInterface({ input: process.stdin })) {
  const { databaseUrl, box, dedupKey, lines } = JSON.parse(line) as ImportProcessOptions;
  const { runtime } = openRuntime({ databaseUrl, model: createModelRouter({}) });
  const source = { main: { lines: () => lines } };
  const importing = runtime.importTape({ box }, source, { append: true, dedupKey });
  console.log(
    await importing.then(
      (answer) => `imported ${JSON.stringify(answer)}`,
      ({ code, message }) => `refused ${JSON.stringify({ code, message })}`,
    ),
  );
}
