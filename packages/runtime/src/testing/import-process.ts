/**
 * A program that imports lines to a tape, in a separate process. It reads one line on stdin, the JSON of `ImportProcessOptions`, and
 * prints `imported <JSON of the answer>`.
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
  const answer = await runtime.importTape({ box }, source, { append: true, dedupKey });
  console.log(`imported ${JSON.stringify(answer)}`);
}
