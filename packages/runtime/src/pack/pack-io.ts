/** The inputs and results of packings. */
import type { PackingStrategies } from '@boxcar/kernel';
import { type CallerTx, type Queryable, type Submission, toQueryable } from '@boxcar/store';
import type { Selectors } from './selectors.js';

export interface PackLimits {
  readonly maxCardBytes?: number;
  readonly maxInstructionBytes?: number;
  readonly maxContextCards?: number;
  /** Maximum bytes of the contents of all cards that one call of `createBox` or `createCards` writes. Default 16 MiB. */
  readonly maxBoxBytes?: number;
}

/** The database that a packing reads from, and the limits and strategies that it chooses by. */
export interface PackIo {
  readonly db: Queryable;
  readonly limits?: PackLimits | undefined;
  readonly strategies: PackingStrategies;
  readonly selectors?: Selectors | undefined;
}

/** The result of a packing: rows that are not written yet, and its answer. */
export interface Made<T> {
  readonly answer: T;
  readonly rows: Pick<Submission, 'cards' | 'contextBoxes' | 'grants'>;
}

export const dbOf = ({ db }: PackIo, tx: CallerTx | undefined): Queryable =>
  tx === undefined ? db : toQueryable(tx);

export const noRows = (): Made<unknown>['rows'] => ({ cards: [], contextBoxes: [], grants: [] });
