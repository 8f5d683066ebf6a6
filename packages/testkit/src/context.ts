import { inject } from 'vitest';

export type QueueBackend = 'redis' | 'postgres';

/** What the global setup found and started, as told to each test process. */
export interface TestContext {
  readonly postgres: {
    /** A database of a role that may create others. */
    readonly adminUrl: string;
    /** Name of the migrated database that the others are cloned from. */
    readonly template: string;
    /** Why there is no template: the migrations failed. Tests without a database still run. */
    readonly templateError?: string;
    /** The default isolation level of every database, if the run sets one. */
    readonly isolation?: string;
    /** Distinguishes this run on a server shared with others. */
    readonly runId: string;
  };
  /** The file to run instead of a program, by the path of its source. */
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
 * The queue backends this run can test, for `describe.each(queueBackends())`. A missing one is named at the end of the
 * run, and is a failure where `BOXCAR_REQUIRE_BACKENDS=1` is set.
 */
export function queueBackends(): readonly QueueBackend[] {
  return testContext().redis.kind === 'none' ? ['postgres'] : ['redis', 'postgres'];
}

/** The default isolation level of every database, if the run sets one. */
export const testIsolation = (): string | undefined => testContext().postgres.isolation;
