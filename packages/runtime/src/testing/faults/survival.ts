import { createRandom } from '../soak/random.js';
import { type CrashOptions, type CrashReport, crashEverywhere } from './crash-everywhere.js';
import { everyFault, fewFaults, someFaults } from './crash-points.js';
import type { Scenario } from './scenario.js';
import { Track, type TrackOptions } from './track.js';

/**
 * `BOXCAR_FAULTS=all`: every statement is cut, however long it takes. `few`: only cuts that no earlier scenario made. By default a sample
 * of these, different in each run.
 */
// biome-ignore lint/style/noProcessEnv: a switch of the tests, which no program reads.
const LEVEL = process.env.BOXCAR_FAULTS;
const IS_THOROUGH = LEVEL === 'all';

const IS_SAMPLE = LEVEL === undefined;
/** The seed of the chosen cuts. `BOXCAR_FAULTS_SEED`, which a failure prints, repeats them. */
// biome-ignore lint/style/noProcessEnv: as above.
const SEED = Number(process.env.BOXCAR_FAULTS_SEED ?? Date.now() % 1_000_000);

export const isThorough = (): boolean => IS_THOROUGH;
/** A run makes some of the cuts, and different ones each time. */
export const isSample = (): boolean => IS_SAMPLE;

export const faultsSeed = (): number => SEED;

const firstLine = (text: string): string => text.slice(0, text.indexOf('\n'));

/** The number of cases at once. */
const CONCURRENCY = 2;

/** How often new cuts are chosen from another run when too few were reached. */
const AGAIN = 2;

/** The scenarios of one test file, crashed one after the other at the chosen cuts, or everywhere. */
export class Survival implements AsyncDisposable {
  /** The cuts so far. */
  readonly covered: Set<string>;
  readonly #tracks: readonly Track[];

  private constructor(tracks: readonly Track[], covered: Set<string>) {
    this.#tracks = tracks;
    this.covered = covered;
  }

  /**
   * @param scenarios - All scenarios that will be used.
   * @param options.covered - Cuts that were made elsewhere.
   */
  static async open(
    scenarios: readonly Scenario[],
    { covered = new Set(), ...options }: TrackOptions & { readonly covered?: Set<string> } = {},
  ): Promise<Survival> {
    return new Survival(await Track.open(scenarios, { ...options, count: CONCURRENCY }), covered);
  }

  /** Marks the statements of these scenarios as cut, because other files cut them. */
  async leaveOut(scenarios: readonly Scenario[]): Promise<void> {
    const choose: CrashOptions['choose'] = (sent) => {
      fewFaults(sent, this.covered);
      return [];
    };
    const tracks = this.#tracks.slice(0, 1);
    for (const scenario of scenarios)
      await crashEverywhere(scenario, tracks, { choose, process: this.#process() });
  }

  /**
   * Crashes a scenario, and prints the number of faults that struck.
   *
   * @throws Error with the first failures, or when too few faults struck.
   */
  async survive(
    scenario: Scenario,
    { atLeast = IS_SAMPLE ? 2 : 3, ...options }: CrashOptions & { readonly atLeast?: number } = {},
  ): Promise<CrashReport> {
    const before = [...this.covered];
    const process = options.afterDeathAt === undefined ? this.#process() : 'fresh';
    const crash = (isPart: boolean): Promise<CrashReport> => {
      const covered = new Set(before);
      const chooseFew: CrashOptions['choose'] = (sent) => {
        const faults = IS_THOROUGH ? everyFault(sent) : fewFaults(sent, covered);
        for (const place of covered) this.covered.add(place);
        return faults;
      };
      const choose = options.choose ?? chooseFew;
      return crashEverywhere(scenario, this.#tracks, {
        ...options,
        choose: (sent) => (isPart ? someFaults(choose(sent), createRandom(SEED).next) : choose(sent)),
        process,
      });
    };
    const isPoor = (one: CrashReport): boolean => isThin(one) || one.struck < atLeast || one.rescued === 0;
    let report = await crash(IS_SAMPLE);
    // The run from which the cuts were chosen may have been unusual in its outcome or its concurrency, and so may the sample. So cuts are
    // chosen again, and in the last round all of them are made.
    for (let again = 0; again < AGAIN && report.failures.length === 0 && isPoor(report); again += 1) {
      for (const track of this.#tracks) track.forget(scenario);
      report = await crash(IS_SAMPLE && again + 1 < AGAIN);
    }
    const { cases, struck, absent, rescued, statements, failures } = report;
    console.log(
      `${scenario.name}: ${struck} of ${cases} faults struck among ${statements.length} statements, ${rescued} times another worker finished`,
    );
    if (failures.length > 0)
      throw new Error(
        `${failures.length} failures (BOXCAR_FAULTS_SEED=${SEED}):\n${failures.slice(0, 3).join('\n\n')}\n\n${failures.slice(3).map(firstLine).join('\n')}`,
      );
    if (isPoor(report))
      throw new Error(`too little was struck: ${JSON.stringify({ cases, struck, absent, rescued })}`);
    return report;
  }

  /** Statements that only a fresh process sends are cut with the first scenario. */
  #process(): 'fresh' | 'warm' {
    return IS_THOROUGH || this.covered.size === 0 ? 'fresh' : 'warm';
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const track of this.#tracks) await track[Symbol.asyncDispose]();
  }
}

/** Too many of its cuts did not reach their statement. */
const isThin = ({ absent, cases }: CrashReport): boolean => absent > cases / 3;
