/**
 * Tests with the remote agent of the ADK as the client. `node scripts/install-adk.mjs <folder>` installs it. Without BOXCAR_ADK_DIR this
 * case is skipped, except where all backends are required.
 */
import { execFile } from 'node:child_process';
import { cpSync, existsSync, mkdtempSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { openStage, type Stage } from './testing/stage.js';

const folder = process.env.BOXCAR_ADK_DIR ?? '';
const isWanted = folder !== '' || process.env.BOXCAR_REQUIRE_BACKENDS === '1';
const fixtures = fileURLToPath(new URL('./fixtures/adk', import.meta.url));

interface Seen {
  readonly author: string;
  readonly errorMessage?: string;
  readonly text: string;
}

describe.runIf(isWanted)('the remote agent of the ADK', () => {
  let stage: Stage;
  let place = '';

  beforeAll(async () => {
    if (!existsSync(join(folder, 'node_modules', '@google', 'adk')))
      throw new Error('BOXCAR_ADK_DIR: run scripts/install-adk.mjs first');
    place = mkdtempSync(join(folder, 'client-'));
    cpSync(join(fixtures, 'client.js'), join(place, 'client.js'));
    stage = await openStage();
    await stage.agent('echo', [{ say: 'You said {{instruction}}' }]);
  });
  afterAll(async () => {
    if (place !== '') rmSync(place, { recursive: true, force: true });
    await stage?.[Symbol.asyncDispose]();
  });

  const talk = async (key: string, ...messages: readonly string[]): Promise<readonly (readonly Seen[])[]> => {
    const args = [join(place, 'client.js'), `${stage.url}/a2a/echo/`, key, ...messages];
    const { stdout } = await promisify(execFile)(process.execPath, args, { cwd: folder, timeout: 60_000 });
    return stdout
      .split('\n')
      .filter((line) => line.startsWith('['))
      .map((line) => JSON.parse(line) as Seen[]);
  };

  test('gives tasks to a public agent, and continues in the same conversation', async () => {
    const key = await stage.key({ name: 'adk' });
    const answers = await talk(key, 'good day', 'good night');
    for (const [n, words] of ['good day', 'good night'].entries()) {
      expect(answers[n]?.map(({ errorMessage }) => errorMessage).filter(Boolean)).toEqual([]);
      expect(answers[n]?.map(({ text }) => text).join('\n')).toContain(`You said ${words}`);
    }
    const { rows } = await stage.database.pool.query<{ source_agent: string; conversation: string }>(
      'select source_agent, conversation from boxcar.handoffs order by created_at',
    );
    expect(rows.map(({ source_agent }) => source_agent)).toEqual(['a2a:adk', 'a2a:adk']);
    expect(new Set(rows.map(({ conversation }) => conversation)).size).toBe(1);
  });

  test('gets an error when its key is wrong', async () => {
    await expect(talk('boxcar_wrong', 'good day')).rejects.toThrow();
  });
});
