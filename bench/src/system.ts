/** Where a system under measure lives; handed to its worker process as it is. */
export interface Target {
  readonly databaseUrl: string;
  /** Without it the queues live in the database. */
  readonly redisUrl?: string;
  /** Turns the worker runs at once. */
  readonly concurrency: number;
}

/** What is measured: Boxcar, the floor or the least floor, with one worker process of its own and a caller in the bench process. */
export interface System extends AsyncDisposable {
  readonly name: 'boxcar' | 'floor' | 'least';
  readonly workerPid: number;
  /**
   * Submits one turn and returns with its answer in hand.
   *
   * @throws when the turn did not end as it must.
   */
  answer(): Promise<void>;
  /** Records the worker's CPU until `stopProfile`, which returns the profile as JSON. */
  startProfile(): Promise<void>;
  stopProfile(): Promise<string>;
}

/** What every turn is asked, on both sides: 1 KiB, far below what a claim may carry inline. */
export const PROMPT = 'Count the wagons and say how many there are. '.repeat(23).slice(0, 1024);
export const ANSWER = 'There are 42 wagons.';
