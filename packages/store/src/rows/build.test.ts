import { expect, it } from 'vitest';
import { loadMigrations } from '../db/migrations.js';
import { THIS_BUILD } from './build.js';

it('this build is the one that knows the newest migration, and writes turns in no later format', async () => {
  expect(THIS_BUILD.schemaVersion).toBe((await loadMigrations()).length);
  expect(THIS_BUILD.turnFormat).toBeLessThanOrEqual(THIS_BUILD.schemaVersion);
});
