import { inject } from 'vitest';

export type QueueBackend = 'redis' | 'postgres';

/** The servers that the global setup found or started, as passed to each test process. */
export interface TestContext {
  readonly postgres: {
    /** The database of a role that may create other databases. */
    readonly adminUrl: string;
    /** The name of the migrated database from which the others are cloned. */
    readonly template: string;
    /** Why the template is missing: the migrations failed. Tests without a database still run. */
    readonly templateError?: string;
    /** The default isolation level of every database, if the run sets one. */
    readonly isolation?: string;
    /** Distinguishes this run from other runs on a shared server. */
    readonly runId: string;
  };
  /** The file to run in place of a program, keyed by the path of the program's source. */
  readonly bundles: Readonly<Record<string, string>>;
  readonly redis:
    | { readonly kind: 'program'; readonly path: string }
    | { readonly kind: 'external'; readonly url: string }
    | { readonly kind: 'container' }
    | { readonly kind: 'none'; readonly reason: string };
}

declare module 'vitest' {
  export interface ProvidedContext {
    boxcar: TestContext;
  }
}

export function testContext(): TestContext {
  return inject('boxcar');
}

/**
 * The queue backends that this run can test, for `describe.each(queueBackends())`. The end of the run names a missing backend; where
 * `BOXCAR_REQUIRE_BACKENDS=1` is set, a missing backend is a failure.
 */
export function queueBackends(): readonly QueueBackend[] {
  return testContext().redis.kind === 'none' ? ['postgres'] : ['redis', 'postgres'];
}

/** The default isolation level of every database, if the run sets one. */
export const testIsolation = (): string | undefined => testContext().postgres.isolation;
