import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import type { Scenario } from './scenario.js';
import { EFFECTS, openStage } from './stage.js';

/** Makes a migrated database fit for a scenario: its profiles are applied. */
export async function setScene(database: TestDatabase, scenario: Scenario): Promise<void> {
  await database.pool.query(EFFECTS);
  const stage = openStage({ databaseUrl: database.url, scenario, effects: database.pool, leaseMs: 1 });
  for (const profile of scenario.profiles)
    await stage.runtime.applyProfile({
      instructions: `You are ${String(profile.name)}.`,
      model: 'scripted',
      ...profile,
    });
  await stage.close();
  if (scenario.prepare !== undefined) await database.pool.query(scenario.prepare);
}

/** A database with the scene of a scenario, to be cloned: nobody is connected to it. */
export async function prepareScene(scenario: Scenario): Promise<TestDatabase> {
  const database = await testDatabase();
  await setScene(database, scenario);
  await database.pool.end();
  return database;
}
