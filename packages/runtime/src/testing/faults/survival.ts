import { type CrashOptions, type CrashReport, crashEverywhere } from './crash-everywhere.js';
import { everyFault, fewFaults } from './crash-points.js';
import type { Scenario } from './scenario.js';
import { Track, type TrackOptions } from './track.js';

/** Everything is cut, however long it takes: `BOXCAR_FAULTS=all`. */
// biome-ignore lint/style/noProcessEnv: a switch of the tests, which no program reads.
const IS_THOROUGH = process.env.BOXCAR_FAULTS === 'all';

export const isThorough = (): boolean => IS_THOROUGH;

/** Cases at once. */
const CONCURRENCY = 2;

/** How often new cuts are chosen from another run when too many cuts were not reached. */
const AGAIN = 2;

/** The scenarios of one test file, crashed one after the other where it matters, or everywhere. */
export class Survival implements AsyncDisposable {
  /** What has been cut by now. */
  readonly covered: Set<string>;
  readonly #tracks: readonly Track[];

  private constructor(tracks: readonly Track[], covered: Set<string>) {
    this.#tracks = tracks;
    this.covered = covered;
  }

  /**
   * @param scenarios - All that it will be asked for.
   * @param options.covered - What has been cut elsewhere.
   */
  static async open(
    scenarios: readonly Scenario[],
    { covered = new Set(), ...options }: TrackOptions & { readonly covered?: Set<string> } = {},
  ): Promise<Survival> {
    return new Survival(await Track.open(scenarios, { ...options, count: CONCURRENCY }), covered);
  }

  /** What these do need not be cut again: it is in other files. */
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
   * Crashes a scenario, and prints what was struck.
   *
   * @throws Error with the first failures, or when hardly anything was struck.
   */
  async survive(
    scenario: Scenario,
    { atLeast = 5, ...options }: CrashOptions & { readonly atLeast?: number } = {},
  ): Promise<CrashReport> {
    const before = [...this.covered];
    const process = options.afterDeathAt === undefined ? this.#process() : 'fresh';
    const crash = (): Promise<CrashReport> => {
      const covered = new Set(before);
      const choose: CrashOptions['choose'] = (sent) => {
        const faults = IS_THOROUGH ? everyFault(sent) : fewFaults(sent, covered);
        for (const place of covered) this.covered.add(place);
        return faults;
      };
      return crashEverywhere(scenario, this.#tracks, { choose, process, ...options });
    };
    let report = await crash();
    // The run from which the cuts were chosen may have been unusual in its outcome or its concurrency: cuts are chosen
    // again.
    for (let again = 0; again < AGAIN && report.failures.length === 0 && isThin(report); again += 1) {
      for (const track of this.#tracks) track.forget(scenario);
      report = await crash();
    }
    const { cases, struck, absent, rescued, statements, failures } = report;
    console.log(
      `${scenario.name}: ${struck} of ${cases} faults struck among ${statements.length} statements, ${rescued} times another worker finished`,
    );
    if (failures.length > 0)
      throw new Error(`${failures.length} failures:\n${failures.slice(0, 3).join('\n\n')}`);
    if (struck < atLeast || rescued === 0 || isThin(report))
      throw new Error(`too little was struck: ${JSON.stringify({ cases, struck, absent, rescued })}`);
    return report;
  }

  /** What a fresh process alone sends is cut with the first scenario. */
  #process(): 'fresh' | 'warm' {
    return IS_THOROUGH || this.covered.size === 0 ? 'fresh' : 'warm';
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const track of this.#tracks) await track[Symbol.asyncDispose]();
  }
}

/** Too many of its cuts met nothing. */
const isThin = ({ absent, cases }: CrashReport): boolean => absent > cases / 3;
