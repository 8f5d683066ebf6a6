import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import type { Cast, Scenario } from './scenario.js';
import { Scenes } from './scenes.js';
import { openStage, type Stage, type StageOptions } from './stage.js';

/** Later than the lease of any worker under fault, and before any deadline of a call. */
export const RECOVERY_AHEAD_MS = 60_000;
const LONG_LEASE_MS = 3_600_000;

/**
 * A database in which cases run one after the other, each on the rows of its scene alone. A second process without faults finishes the work
 * that the process under fault has left.
 */
export class Lane implements AsyncDisposable {
  readonly rescuer: Stage;
  readonly #scenes: Scenes;
  #scenario: Scenario | undefined;
  #workerId = '';

  private constructor(scenes: Scenes, rescuer: Stage) {
    this.#scenes = scenes;
    this.rescuer = rescuer;
  }

  static async open(
    options: Pick<StageOptions, 'toolQueue' | 'model'> & { readonly cast: Cast },
  ): Promise<Lane> {
    const database = await testDatabase({ max: 2 });
    const scenes = await Scenes.open(database);
    const rescuer = openStage({
      ...options,
      databaseUrl: database.url,
      effects: database.pool,
      leaseMs: LONG_LEASE_MS,
    });
    return new Lane(scenes, rescuer);
  }

  get database(): TestDatabase {
    return this.#scenes.database;
  }

  /** Restores the rows of a scene. */
  async reset(scenario: Scenario): Promise<void> {
    // A worker reads the limits of providers only once.
    if (this.#scenario !== scenario) await this.rescuer.rest();
    await this.#scenes.set(scenario, this.rescuer.runtime, [this.#workerId]);
    if (this.#scenario !== scenario) this.#workerId = (await this.rescuer.work()).id;
    this.#scenario = scenario;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.rescuer.close();
    await this.#scenes[Symbol.asyncDispose]();
  }
}
