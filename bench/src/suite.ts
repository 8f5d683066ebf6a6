import type { Options } from './options.js';
import type { Figure, Unmeasured } from './report.js';
import type { Servers } from './servers.js';
import type { Pair } from './suites/pair.js';

/** Receives progress, one line per call. */
export type Say = (line: string) => void;

/** The environment of a suite. */
export interface Bench {
  readonly servers: Servers;
  readonly options: Options;
  readonly say: Say;
  /** The two sides on the suite's queue, already warm from earlier suites. */
  readonly openPair: () => Promise<Pair>;
}

/** The figures of a suite by the name of the case: one for each case in the catalogue. */
export type Figures = Readonly<Record<string, Figure | Unmeasured>>;
