/** The location of a measured system; passed to its worker process unchanged. */
export interface Target {
  readonly databaseUrl: string;
  /** Undefined: the queues are in the database. */
  readonly redisUrl?: string;
  /** The number of turns that the worker runs at once. */
  readonly concurrency: number;
}

/** A measured system: Boxcar, the floor or the least floor, with its own worker process and a caller in the benchmark's process. */
export interface System extends AsyncDisposable {
  readonly name: 'boxcar' | 'floor' | 'least';
  readonly workerPid: number;
  /**
   * Submits one turn and returns after its answer has arrived.
   *
   * @throws when the turn did not end as expected.
   */
  answer(): Promise<void>;
  /** Records the worker's CPU until `stopProfile`, which returns the profile as JSON. */
  startProfile(): Promise<void>;
  stopProfile(): Promise<string>;
}

/** The prompt of every turn, on both sides: 1 KiB, far below the inline limit of a claim. */
export const PROMPT = 'Count the wagons and say how many there are. '.repeat(23).slice(0, 1024);
export const ANSWER = 'There are 42 wagons.';
