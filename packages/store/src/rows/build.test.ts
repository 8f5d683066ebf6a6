import { expect, it } from 'vitest';
import { loadMigrations } from '../db/migrations.js';
import { THIS_BUILD } from './build.js';

it('this build has the number of the newest migration as its schema version, and a turn format that is not newer', async () => {
  expect(THIS_BUILD.schemaVersion).toBe((await loadMigrations()).length);
  expect(THIS_BUILD.turnFormat).toBeLessThanOrEqual(THIS_BUILD.schemaVersion);
});
