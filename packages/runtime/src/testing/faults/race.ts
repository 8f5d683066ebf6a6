/**
 * Lets two workers race for every claim and every commit, and compares the outcome with that of a run with one worker.
 *
 * A1  Every ring reaches both workers at the same moment: one claims the turn, the other gives up.
 * A2  While the model answers, the turn is handed to the other worker. When that worker calls the model too, both get their answer at once
 *     and commit side by side: one under the old epoch, one under the current epoch.
 * A3  The same happens while a tool runs. A tool that may run again ends in both workers at once; a tool that may not ends in the first
 *     worker only.
 */
import type { Doorbell, DoorbellSubscription, ModelRequest, Ring, TurnId, WorkerId } from '@boxcar/kernel';
import { releaseTurns } from '@boxcar/store';
import { type TestDatabase, testDatabase, waitFor } from '@boxcar/testkit';
import { persistentClient } from './client.js';
import { concludeScene, countUnfinished, findFault, watcherOf } from './conclude.js';
import type { Outcome } from './outcome.js';
import { type Cast, castOf, type Scenario } from './scenario.js';
import { Scenes } from './scenes.js';
import { openStage, type Stage } from './stage.js';

const SOON = { deadlineMs: 20_000 };

export interface RaceReport {
  /** Model calls and runs of tools during which the turn changed its worker. */
  readonly races: number;
  /** Claims and commits that were refused because the other worker was first. */
  readonly lost: number;
  readonly failures: readonly string[];
}

/** Two processes and the database that they share, for one scenario after the other. */
export class Race implements AsyncDisposable {
  readonly #scenes: Scenes;
  readonly #stages: readonly [Stage, Stage];
  readonly #bell: Doorbell;
  readonly #state: RaceState;

  private constructor(
    scenes: Scenes,
    of: { readonly stages: readonly [Stage, Stage]; readonly bell: Doorbell; readonly state: RaceState },
  ) {
    this.#scenes = scenes;
    this.#stages = of.stages;
    this.#bell = of.bell;
    this.#state = of.state;
  }

  /** @param scenarios - All scenarios that will be raced. */
  static async open(scenarios: readonly Scenario[]): Promise<Race> {
    const scenes = await Scenes.open(await testDatabase());
    const bell = new SharedDoorbell();
    const state: RaceState = { lost: 0, handover: undefined };
    const open = (): Stage => openRacer(scenes.database, { cast: castOf(scenarios), bell, state });
    return new Race(scenes, { stages: [open(), open()], bell, state });
  }

  async run(scenario: Scenario): Promise<RaceReport> {
    const calm = scenario.judge === undefined ? await this.#runOnce(scenario, 1) : undefined;
    const handover = new Handover(this.#scenes.database, this.#bell);
    Object.assign(this.#state, { lost: 0, handover });
    const outcome = await this.#runOnce(scenario, 2);
    this.#state.handover = undefined;
    await handover.checkCommits();
    const difference = findFault(scenario, outcome, calm);
    return {
      races: handover.races,
      lost: this.#state.lost,
      failures: difference === undefined ? [] : [`${scenario.name}: ${difference}`],
    };
  }

  async #runOnce(scenario: Scenario, workers: 1 | 2): Promise<Outcome> {
    const { pool } = this.#scenes.database;
    const [first] = this.#stages;
    const stages = this.#stages.slice(0, workers);
    await this.#scenes.set(scenario, first.runtime);
    for (const stage of stages) await stage.work();
    const driven = await scenario.drive(
      persistentClient(() => first),
      watcherOf(pool),
    );
    await waitFor(async () => (await countUnfinished(pool)) === 0, {
      message: 'all turns have ended',
      intervalMs: 5,
      ...SOON,
    });
    // Both rest at the same time, because the work of one process may wait for the work of the other.
    await Promise.all(stages.map((stage) => stage.rest()));
    return concludeScene(pool, scenario, driven ?? null);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const stage of this.#stages) await stage.close();
    await this.#scenes[Symbol.asyncDispose]();
  }
}

interface RaceState {
  lost: number;
  /** Undefined: there is no race. */
  handover: Handover | undefined;
}

const openRacer = (
  database: TestDatabase,
  { cast, bell, state }: { readonly cast: Cast; readonly bell: Doorbell; readonly state: RaceState },
): Stage =>
  openStage({
    cast,
    databaseUrl: database.url,
    effects: database.pool,
    leaseMs: 60_000,
    sweepMs: 100,
    takesOwnRings: false,
    doorbell: bell,
    log: (_level, event, { outcome } = {}) => {
      if (event === 'turn.left' && outcome === 'fenced') state.lost += 1;
    },
    model: (model) => ({
      ...model,
      generate: async (request, options) => {
        const reply = await model.generate(request, options);
        await state.handover?.meet(stepOf(request), request.turn.turnId, {
          step: request.turn,
          signal: options.signal,
        });
        return reply;
      },
    }),
    beforeTool: async ({ retry }, { toolCallId, turnId, signal }) => {
      if (retry === 'safe') await state.handover?.meet(toolCallId, turnId, { signal });
      else await state.handover?.give(turnId);
    },
  });

type StepAt = Pick<ModelRequest['turn'], 'turnId' | 'step' | 'epoch'>;

const stepOf = ({ turn }: ModelRequest): string => `${turn.turnId} ${turn.step}`;

/** Takes turns away from the worker that works on them, so that two workers do. */
class Handover {
  races = 0;
  /** Steps that were answered in a worker that had lost the turn. */
  readonly #stale: StepAt[] = [];
  readonly #waiting = new Map<string, () => void>();
  readonly #met = new Set<string>();
  readonly #database: TestDatabase;
  readonly #bell: Doorbell;

  constructor(database: TestDatabase, bell: Doorbell) {
    this.#database = database;
    this.#bell = bell;
  }

  /** The first worker that arrives with a key loses the turn, and waits until the other worker arrives or can no longer arrive. */
  async meet(
    key: string,
    turnId: TurnId,
    { step, signal }: { readonly step?: StepAt; readonly signal: AbortSignal },
  ): Promise<void> {
    const wake = this.#waiting.get(key);
    if (wake !== undefined) {
      this.#waiting.delete(key);
      wake();
      return;
    }
    if (this.#met.has(key)) return;
    this.#met.add(key);
    const met = new Promise<void>((settle) => {
      this.#waiting.set(key, settle);
      signal.addEventListener('abort', () => settle(), { once: true });
    });
    if (await this.give(turnId)) {
      if (step !== undefined) this.#stale.push(step);
      await met;
    } else this.#waiting.delete(key);
  }

  /** @throws Error when an answer was committed under an old epoch. */
  async checkCommits(): Promise<void> {
    const { rows } = await this.#database.pool.query<{ turn_id: string; step: number; epoch: number }>(
      'select turn_id, step, epoch from boxcar.steps where committed_at is not null',
    );
    const broken = rows.filter((row) =>
      this.#stale.some(
        ({ turnId, step, epoch }) => turnId === row.turn_id && step === row.step && epoch === row.epoch,
      ),
    );
    if (broken.length > 0)
      throw new Error(`committed under an epoch that had passed: ${JSON.stringify(broken)}`);
  }

  /** @returns False when no worker holds the turn anymore. */
  async give(turnId: TurnId): Promise<boolean> {
    const { pool } = this.#database;
    const { rows } = await pool.query<{ holder_id: WorkerId | null; epoch: number }>(
      'select holder_id, epoch from boxcar.turns where id = $1',
      [turnId],
    );
    const { holder_id: holderId = null, epoch = 0 } = rows[0] ?? {};
    const rings = holderId === null ? [] : await releaseTurns(pool, holderId, [{ turnId, epoch }]);
    if (rings.length === 0) return false;
    this.races += 1;
    await this.#bell.ring(rings);
    return true;
  }
}

/** Rings all listeners at the same moment. */
class SharedDoorbell implements Doorbell {
  readonly #listeners = new Set<(rings: readonly Ring[]) => void>();
  readonly #running = new Set<Promise<void>>();

  async ring(rings: readonly Ring[]): Promise<void> {
    for (const deliver of this.#listeners) deliver(rings);
  }

  async findLost(): Promise<readonly Ring[]> {
    return [];
  }

  async raise(): Promise<void> {}

  async knock(): Promise<readonly string[]> {
    return [];
  }

  async listen(options: Parameters<Doorbell['listen']>[0]): Promise<DoorbellSubscription> {
    const waiting: Ring[] = [];
    let isPaused = false;
    const deliver = (rings: readonly Ring[]): void => {
      waiting.push(...rings);
      for (let ring = waiting[0]; ring !== undefined && !isPaused; ring = waiting[0]) {
        if (options.admit?.(ring) === false) {
          isPaused = true;
          return;
        }
        waiting.shift();
        const work: Promise<void> = options.handle(ring).finally(() => this.#running.delete(work));
        this.#running.add(work);
      }
      if (waiting.length === 0) options.onEmpty?.();
    };
    this.#listeners.add(deliver);
    return {
      pause: () => {
        isPaused = true;
      },
      resume: () => {
        isPaused = false;
        deliver([]);
      },
      close: async () => {
        this.#listeners.delete(deliver);
        await Promise.all(this.#running);
      },
    };
  }

  async close(): Promise<void> {
    await Promise.all(this.#running);
  }
}
