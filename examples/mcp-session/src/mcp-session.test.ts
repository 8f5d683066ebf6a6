import { readFileSync } from 'node:fs';
import { migrateQueues } from '@boxcar/runtime';
import { spawnNode, testDatabase } from '@boxcar/testkit';
import { expect, test } from 'vitest';

const PROGRAM = new URL('../program.js', import.meta.url);
const README = readFileSync(new URL('../README.md', import.meta.url), 'utf8');

test('the program prints the output of its README, twice on one database', async () => {
  const [, printed] = /```\n(planner [\s\S]+?)```/.exec(README) ?? [];
  await using database = await testDatabase();
  await migrateQueues(database.url);
  const env = { DATABASE_URL: database.url, DATABASE_DIRECT_URL: undefined, REDIS_URL: undefined };
  for (const _run of [1, 2]) {
    await using child = spawnNode(PROGRAM, [], env);
    expect(await child.exited, child.stderr).toEqual({ code: 0, signal: null });
    expect(child.stdout).toBe(printed);
  }
}, 60_000);
