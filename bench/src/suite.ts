import type { Options } from './options.js';
import type { Figure, Unmeasured } from './report.js';
import type { Servers } from './servers.js';
import type { Pair } from './suites/pair.js';

/** Told in one line what happens. */
export type Say = (line: string) => void;

/** What a suite runs on. */
export interface Bench {
  readonly servers: Servers;
  readonly options: Options;
  readonly say: Say;
  /** The two sides on the queue of the suite, warm from the suites before. */
  readonly openPair: () => Promise<Pair>;
}

/** The figures of a suite, by the name of the case: all that the catalogue has for it. */
export type Figures = Readonly<Record<string, Figure | Unmeasured>>;
