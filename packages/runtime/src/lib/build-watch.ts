import { KernelError } from '@boxcar/kernel';
import { type Build, checkSchemaVersion, outsideHandlers, retryTransient } from '@boxcar/store';
import type pg from 'pg';

/** How long the last check is trusted. Every heartbeat of a worker renews it, so a worker needs no statement for it. */
const BELIEVED_MS = 5_000;

/**
 * Whether this build may still work on the database. A migration may have excluded such builds since this process started. That
 * cannot be undone, so an outdated build stays outdated.
 */
export class BuildWatch {
  readonly build: Build;
  readonly #pool: pg.Pool;
  readonly #listeners = new Set<(error: KernelError) => void>();
  #outdated: KernelError | undefined;
  #lookedAt = Number.NEGATIVE_INFINITY;
  #looking: Promise<number> | undefined;

  constructor(pool: pg.Pool, build: Build) {
    this.#pool = pool;
    this.build = build;
  }

  /** The error that stops this build from working; undefined while none is known. */
  get outdated(): KernelError | undefined {
    return this.#outdated;
  }

  /** @throws KernelError `schema_too_new` for an outdated build, `schema_outdated` when a migration is missing. */
  async check(): Promise<void> {
    if (this.#outdated === undefined && performance.now() - this.#lookedAt > BELIEVED_MS)
      await retryTransient(() => this.refresh());
    if (this.#outdated !== undefined) throw this.#outdated;
  }

  /** Reads the database now. @returns Its newest migration. @throws as {@link check}. */
  refresh(): Promise<number> {
    this.#looking ??= outsideHandlers(() => this.#refresh()).finally(() => {
      this.#looking = undefined;
    });
    return this.#looking;
  }

  async #refresh(): Promise<number> {
    const lookedAt = performance.now();
    const { schemaVersion: own } = this.build;
    try {
      const version = await checkSchemaVersion(this.#pool, { supported: { min: own, max: own } });
      this.#lookedAt = lookedAt;
      return version;
    } catch (error) {
      if (error instanceof KernelError && error.code === 'schema_too_new') this.#shutOut(error);
      throw error;
    }
  }

  /** Reads from the database now whether newer builds may have written to it. */
  async mayBeNewer(): Promise<boolean> {
    return (await this.refresh()) > this.build.schemaVersion;
  }

  /** Records the value that a heartbeat has read: the oldest build that may work on the database. */
  recordMinCompatible(minCompatible: number): void {
    this.#lookedAt = performance.now();
    // For an outdated build the refresh fails and informs the listeners. If the database does not answer now, the next heartbeat
    // repeats the check.
    if (minCompatible > this.build.schemaVersion) this.refresh().catch(() => undefined);
  }

  #shutOut(error: KernelError): void {
    if (this.#outdated !== undefined) return;
    this.#outdated = error;
    for (const listener of this.#listeners) listener(error);
  }

  /** @returns A function that removes the listener. */
  onOutdated(listener: (error: KernelError) => void): () => void {
    this.#listeners.add(listener);
    if (this.#outdated !== undefined) listener(this.#outdated);
    return () => void this.#listeners.delete(listener);
  }
}
