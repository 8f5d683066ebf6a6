/**
 * A program that submits, in a separate process. It prints `ready`. Each line on stdin is the JSON of a `CallerRequest`: the program
 * submits it under its key until it gets an answer (`again <key>` for each repeat), and prints `answer <key> <JSON>` or
 * `refused <key> <message>`.
 *
 * argv: the JSON of `CallerProcessOptions`.
 */

import { createInterface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';
import type { JsonValue } from '@boxcar/kernel';
import { errorText } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { isTransient } from '@boxcar/store';
import { openRuntime } from '../open.js';

export interface CallerProcessOptions {
  readonly databaseUrl: string;
  readonly redisUrl?: string;
}

export interface CallerRequest {
  readonly key: string;
  readonly primitive: string;
  readonly args: JsonValue;
}

const RETRY_MS = 50;

const { runtime } = openRuntime({
  ...(JSON.parse(process.argv[2] ?? '{}') as CallerProcessOptions),
  model: createModelRouter({}),
});

async function submit({ key, primitive, args }: CallerRequest): Promise<void> {
  for (;;) {
    try {
      const answer = await runtime.submit(primitive, args, { idempotencyKey: key });
      console.log(`answer ${key} ${JSON.stringify(answer)}`);
      return;
    } catch (error) {
      if (!isTransient(error)) {
        console.log(`refused ${key} ${errorText(error)}`);
        return;
      }
      console.log(`again ${key}`);
      await delay(RETRY_MS);
    }
  }
}

createInterface({ input: process.stdin }).on(
  'line',
  (line) => void submit(JSON.parse(line) as CallerRequest),
);
console.log('ready');
