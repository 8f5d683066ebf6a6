/**
 * Lets two workers race for every claim and every commit, and compares what comes of it with a run of one alone.
 *
 * A1  Every ring reaches both at the same moment: one claims, the other leaves.
 * A2  While the model answers, the turn is handed to the other worker. When that one asks the model too, both get their answer
 *     at once and commit side by side: one under the epoch that has passed, one under the epoch that counts.
 * A3  The same while a tool runs: one that may run again ends in both hands at once, one that may not in the first alone.
 */
import type { Doorbell, DoorbellSubscription, ModelRequest, Ring, TurnId, WorkerId } from '@boxcar/kernel';
import { releaseTurns } from '@boxcar/store';
import { type TestDatabase, testDatabase, waitFor } from '@boxcar/testkit';
import { persistentClient } from './client.js';
import { concludeScene, countUnfinished, findFault, watcherOf } from './conclude.js';
import type { Outcome } from './outcome.js';
import type { Scenario } from './scenario.js';
import { prepareScene } from './scene.js';
import { openStage, type Stage } from './stage.js';

const SOON = { deadlineMs: 20_000 };

export interface RaceReport {
  /** Model calls and runs of tools in which the turn changed hands. */
  readonly races: number;
  /** Claims and commits that were refused because the other one was first. */
  readonly lost: number;
  readonly failures: readonly string[];
}

export async function raceEverywhere(scenario: Scenario): Promise<RaceReport> {
  const scene = await prepareScene(scenario);
  const calm = await runOnce(scenario, { scene, workers: 1 });
  const { outcome, ...counts } = await runOnce(scenario, { scene, workers: 2 });
  await scene.close();
  const difference = findFault(scenario, calm.outcome, outcome);
  return { ...counts, failures: difference === undefined ? [] : [`${scenario.name}: ${difference}`] };
}

async function runOnce(
  scenario: Scenario,
  { scene, workers }: { readonly scene: TestDatabase; readonly workers: 1 | 2 },
): Promise<{ readonly races: number; readonly lost: number; readonly outcome: Outcome }> {
  const database = await testDatabase({ from: scene.name });
  const bell = new SharedDoorbell();
  const handover = workers === 2 ? new Handover(database, bell) : undefined;
  let lost = 0;
  const open = (): Stage =>
    openStage({
      scenario,
      databaseUrl: database.url,
      effects: database.pool,
      leaseMs: 60_000,
      sweepMs: 100,
      takesOwnRings: false,
      doorbell: bell,
      log: (_level, event, { outcome } = {}) => {
        if (event === 'turn.left' && outcome === 'fenced') lost += 1;
      },
      ...(handover === undefined
        ? {}
        : {
            model: (model) => ({
              ...model,
              generate: async (request, options) => {
                const reply = await model.generate(request, options);
                await handover.meet(stepOf(request), request.turn.turnId, {
                  step: request.turn,
                  signal: options.signal,
                });
                return reply;
              },
            }),
            beforeTool: async ({ retry }, { toolCallId, turnId, signal }) => {
              if (retry === 'safe') await handover.meet(toolCallId, turnId, { signal });
              else await handover.give(turnId);
            },
          }),
    });
  const stages = Array.from({ length: workers }, open);
  const [first] = stages;
  if (first === undefined) throw new Error('there is no worker');
  for (const stage of stages) await stage.work();
  const driven = await scenario.drive(
    persistentClient(() => first),
    watcherOf(database.pool),
  );
  await waitFor(async () => (await countUnfinished(database.pool)) === 0, {
    message: 'all turns have ended',
    ...SOON,
  });
  // Side by side: what is in the hands of one may wait for what is in those of the other.
  await Promise.all(stages.map((stage) => stage.rest()));
  for (const stage of stages) await stage.close();
  const outcome = await concludeScene(database.pool, scenario, driven ?? null);
  await handover?.checkCommits();
  await database.close();
  return { races: handover?.races ?? 0, lost, outcome };
}

type StepAt = Pick<ModelRequest['turn'], 'turnId' | 'step' | 'epoch'>;

const stepOf = ({ turn }: ModelRequest): string => `${turn.turnId} ${turn.step}`;

/** Takes turns out of the hands of who works on them, so that two do. */
class Handover {
  races = 0;
  /** Steps as they were answered in hands that had lost the turn. */
  readonly #stale: StepAt[] = [];
  readonly #waiting = new Map<string, () => void>();
  readonly #met = new Set<string>();
  readonly #database: TestDatabase;
  readonly #bell: Doorbell;

  constructor(database: TestDatabase, bell: Doorbell) {
    this.#database = database;
    this.#bell = bell;
  }

  /** The first to come with a key loses the turn, and waits until the other one has come as far, or will not come. */
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

  /** @throws Error when an answer was committed under an epoch that had passed. */
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

  /** @returns False when nobody holds the turn any more. */
  async give(turnId: TurnId): Promise<boolean> {
    const { pool } = this.#database;
    const { rows } = await pool.query<{ holder_id: WorkerId | null }>(
      'select holder_id from boxcar.turns where id = $1',
      [turnId],
    );
    const holderId = rows[0]?.holder_id ?? null;
    const rings = holderId === null ? [] : await releaseTurns(pool, holderId, [turnId]);
    if (rings.length === 0) return false;
    this.races += 1;
    await this.#bell.ring(rings);
    return true;
  }
}

/** Rings at all who listen, at the same moment. */
class SharedDoorbell implements Doorbell {
  readonly #listeners = new Set<(ring: Ring) => Promise<void>>();
  readonly #running = new Set<Promise<void>>();

  async ring(rings: readonly Ring[]): Promise<void> {
    for (const ring of rings)
      for (const handle of this.#listeners) {
        const work: Promise<void> = handle(ring).finally(() => this.#running.delete(work));
        this.#running.add(work);
      }
  }

  async findLost(): Promise<readonly Ring[]> {
    return [];
  }

  async knock(): Promise<readonly string[]> {
    return [];
  }

  async listen({ handle }: Parameters<Doorbell['listen']>[0]): Promise<DoorbellSubscription> {
    this.#listeners.add(handle);
    return {
      close: async () => {
        this.#listeners.delete(handle);
        await Promise.all(this.#running);
      },
    };
  }

  async close(): Promise<void> {
    await Promise.all(this.#running);
  }
}
