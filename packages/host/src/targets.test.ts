/** Handoff settings from the environment reach the runtime, or a wrong setting stops the start. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { parseConfig } from './config.js';
import { openStack } from './open.js';

const folder = mkdtempSync(join(tmpdir(), 'boxcar-targets-'));
let database: TestDatabase;
beforeAll(async () => {
  database = await testDatabase();
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

function targetsFile(name: string, text: string): string {
  const file = join(folder, name);
  writeFileSync(file, text);
  return file;
}

const open = (env: Record<string, string>) =>
  openStack(parseConfig({ DATABASE_URL: database.url, ...env }), { migrate: true });

const askWriter = {
  source_agent: 'main',
  target_agent: 'writer',
  task: 'Write a line.',
  wait: false,
};

it('the program does not start with a missing or invalid file of targets', async () => {
  await expect(open({ BOXCAR_TARGETS_FILE: join(folder, 'none.yaml') })).rejects.toMatchObject({
    code: 'bad_config',
    message: expect.stringContaining('cannot be read (ENOENT)'),
  });
  const wrong = targetsFile('wrong.yaml', 'writer: { platform: openai, modle: gpt-large }\n');
  await expect(open({ BOXCAR_TARGETS_FILE: wrong })).rejects.toMatchObject({
    code: 'bad_config',
    message: expect.stringContaining(`${wrong}:1:`),
  });
});

it('a handoff reaches a target of the file only by its name', async () => {
  const file = targetsFile('good.yaml', 'writer: { platform: openai, model: gpt-large }\n');
  await using stack = await open({ BOXCAR_HANDOFF_ENABLED: 'true', BOXCAR_TARGETS_FILE: file });
  const { handoff_id } = (await stack.runtime.submit('handoff', askWriter)) as { handoff_id: string };
  const { rows } = await database.pool.query(
    'select platform, worker_target from boxcar.handoffs where id = $1',
    [handoff_id],
  );
  expect(rows).toEqual([{ platform: 'openai', worker_target: 'handoff-platform-openai' }]);
});

it('no handoff is made unless the feature is on', async () => {
  const off: Record<string, string>[] = [
    {},
    { BOXCAR_HANDOFF_ENABLED: 'false', AGDD_HANDOFF_ENABLED: 'true' },
  ];
  for (const env of off) {
    await using stack = await open(env);
    await expect(stack.runtime.submit('handoff', askWriter)).rejects.toMatchObject({
      code: 'feature_disabled',
      message: 'Handoff feature is disabled',
    });
  }
});
