import { KernelError } from '@boxcar/kernel';
import { type Build, checkSchemaVersion, outsideHandlers, retryTransient } from '@boxcar/store';
import type pg from 'pg';

/** How long what was seen is believed. A worker sees it with every heartbeat, and needs no statement of its own. */
const BELIEVED_MS = 5_000;

/**
 * Whether this build may still work on the database: a migration may have shut out builds like it since it started. That is never
 * taken back, so a build that is outdated stays so.
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

  /** What keeps this build from working on, once it is known. */
  get outdated(): KernelError | undefined {
    return this.#outdated;
  }

  /** @throws KernelError `schema_too_new` for an outdated build, `schema_outdated` where a migration is missing. */
  async check(): Promise<void> {
    if (this.#outdated === undefined && performance.now() - this.#lookedAt > BELIEVED_MS)
      await retryTransient(() => this.refresh());
    if (this.#outdated !== undefined) throw this.#outdated;
  }

  /** Asks the database now. @returns Its newest migration. @throws as {@link check}. */
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

  /** Asks the database now whether newer builds may have written to it. */
  async mayBeNewer(): Promise<boolean> {
    return (await this.refresh()) > this.build.schemaVersion;
  }

  /** What a heartbeat has read: the oldest build that may work on the database. */
  recordMinCompatible(minCompatible: number): void {
    this.#lookedAt = performance.now();
    // Fails when it is so, and is told then; when it cannot be asked now, the next heartbeat says it again.
    if (minCompatible > this.build.schemaVersion) this.refresh().catch(() => undefined);
  }

  #shutOut(error: KernelError): void {
    if (this.#outdated !== undefined) return;
    this.#outdated = error;
    for (const listener of this.#listeners) listener(error);
  }

  /** @returns What takes the listener away again. */
  onOutdated(listener: (error: KernelError) => void): () => void {
    this.#listeners.add(listener);
    if (this.#outdated !== undefined) listener(this.#outdated);
    return () => void this.#listeners.delete(listener);
  }
}
