import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { overTcp, startEmbeddedPostgres } from '@boxcar/embedded';
import { migrate } from '@boxcar/store';
import pg from 'pg';
import type { TestProject } from 'vitest/node';
import type { TestContext } from './context.js';
import { findProgram, hasContainerEngine } from './engine.js';
import { KEPT } from './lifecycle.js';
import { bundlePrograms } from './programs.js';
import { requireVersion } from './require-version.js';

interface Server {
  readonly adminUrl: string;
  /** A description, for people, of the server that this run uses. */
  readonly description: string;
  /** Stops everything that was started. Returns a text that says where the kept databases can be found. */
  stop(kept: readonly string[]): Promise<string>;
}

/**
 * Runs once before all test files: finds a Postgres server, migrates one database from which the others are cloned, and finds out which
 * queue backends can be tested.
 */
export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const hasEngine = await hasContainerEngine();
  const redis = findRedis(hasEngine);
  if (redis.kind === 'none' && process.env.BOXCAR_REQUIRE_BACKENDS === '1') {
    throw new Error(
      `BOXCAR_REQUIRE_BACKENDS is set, but the redis backend cannot be tested: ${redis.reason}`,
    );
  }
  requireVersion('Node', process.versions.node, process.env.BOXCAR_REQUIRE_NODE);
  const programs = mkdtempSync(join(tmpdir(), 'boxcar-test-programs-'));
  const [server, bundles] = await Promise.all([
    findServer(hasEngine),
    bundlePrograms(project.config.root, programs, process.env.BOXCAR_TEST_BUILT === '1'),
  ]);
  const version = await withAdmin(server.adminUrl, readVersion);
  requireVersion('Postgres', version, process.env.BOXCAR_REQUIRE_POSTGRES);
  const runId = `${Date.now().toString(36)}${randomBytes(3).toString('hex')}`;
  const template = `boxcar_template_${runId}`;
  const templateError = await makeTemplate(server.adminUrl, template);
  const isolation = process.env.BOXCAR_TEST_ISOLATION ?? '';
  project.provide('boxcar', {
    postgres: {
      adminUrl: server.adminUrl,
      template,
      runId,
      ...(isolation === '' ? {} : { isolation }),
      ...(templateError === undefined ? {} : { templateError }),
    },
    bundles,
    redis,
  });
  say(
    `Node ${process.versions.node}; Postgres ${version}: ${server.description}; Redis: ${describeRedis(redis)}`,
  );

  return async () => {
    rmSync(programs, { recursive: true, force: true });
    const kept = await dropAllBut(server.adminUrl, template, `boxcar_test_${runId}_%`);
    const place = await server.stop(kept);
    if (kept.length > 0) say(`kept for inspection: ${kept.join(', ')} (${place})`);
    report(redis.kind === 'none' ? [`redis (${redis.reason})`] : []);
  };
}

async function readVersion(admin: pg.Client): Promise<string> {
  const { rows } = await admin.query<{ server_version: string }>('show server_version');
  // Debian adds the version of its package in brackets.
  return rows[0]?.server_version.split(' ')[0] ?? 'unknown';
}

async function findServer(hasEngine: boolean): Promise<Server> {
  const external = process.env.TEST_DATABASE_URL;
  if (external !== undefined && external !== '') {
    return {
      adminUrl: external,
      description: 'TEST_DATABASE_URL',
      stop: async () => 'on the server of TEST_DATABASE_URL',
    };
  }
  if (hasEngine) {
    const container = await startContainer();
    if (container) return container;
  }
  const embedded = await startEmbeddedPostgres({ ephemeral: true });
  return {
    adminUrl: overTcp(embedded.adminUrl),
    description: 'embedded',
    stop: async (kept) => {
      await embedded.stop({ keepData: kept.length > 0 });
      return `until the next run; open them with: pnpm db:open ${embedded.dataDir}`;
    },
  };
}

async function startContainer(): Promise<Server | undefined> {
  const { GenericContainer, Wait } = await import('testcontainers');
  const image = 'postgres:18-alpine';
  try {
    const container = await new GenericContainer(image)
      .withEnvironment({ POSTGRES_USER: 'boxcar', POSTGRES_PASSWORD: 'boxcar', POSTGRES_DB: 'boxcar' })
      .withCommand([
        'postgres',
        '-c',
        'fsync=off',
        '-c',
        'synchronous_commit=off',
        '-c',
        'autovacuum=off',
        '-c',
        'max_connections=500',
      ])
      .withExposedPorts(5432)
      // The image starts the server twice: once to set it up, and then permanently.
      .withWaitStrategy(Wait.forLogMessage(/database system is ready to accept connections/, 2))
      .start();
    return {
      adminUrl: `postgres://boxcar:boxcar@${container.getHost()}:${container.getMappedPort(5432)}/boxcar`,
      description: `container ${image}`,
      stop: async (kept) => {
        if (kept.length === 0) await container.stop();
        return `in container ${container.getId().slice(0, 12)}, for as long as the engine keeps it`;
      },
    };
  } catch (error) {
    say(
      `the container engine answers but ${image} does not start (${messageOf(error)}); using the embedded server`,
    );
    return undefined;
  }
}

function findRedis(hasEngine: boolean): TestContext['redis'] {
  const external = process.env.TEST_REDIS_URL;
  if (external !== undefined && external !== '') return { kind: 'external', url: external };
  const path = findProgram('redis-server');
  if (path !== undefined) return { kind: 'program', path };
  if (hasEngine) return { kind: 'container' };
  return { kind: 'none', reason: 'no redis-server on the PATH, no TEST_REDIS_URL, no container engine' };
}

function describeRedis(redis: TestContext['redis']): string {
  switch (redis.kind) {
    case 'program':
      return redis.path;
    case 'external':
      return 'TEST_REDIS_URL';
    case 'container':
      return 'containers';
    case 'none':
      return 'none';
  }
}

/** @returns The reason when the template could not be made. */
async function makeTemplate(adminUrl: string, template: string): Promise<string | undefined> {
  await withAdmin(adminUrl, (admin) => admin.query(`create database ${template}`));
  const url = new URL(adminUrl);
  url.pathname = `/${template}`;
  try {
    await migrate(url.href);
    return undefined;
  } catch (error) {
    say(`the migrations fail, so every test with a database will: ${messageOf(error)}`);
    return messageOf(error);
  }
}

/** Drops the databases of the run, except those of failed tests. @returns The names of the kept databases. */
async function dropAllBut(adminUrl: string, template: string, pattern: string): Promise<string[]> {
  return withAdmin(adminUrl, async (admin) => {
    const { rows } = await admin.query<{ datname: string; is_kept: boolean }>(
      `
        select datname, shobj_description(oid, 'pg_database') is not distinct from $2 as is_kept
        from pg_database
        where datname like $1
        order by datname`,
      [pattern, KEPT],
    );
    for (const name of [template, ...rows.filter((row) => !row.is_kept).map((row) => row.datname)])
      await admin.query(`drop database if exists ${name} with (force)`);
    return rows.filter((row) => row.is_kept).map((row) => row.datname);
  });
}

async function withAdmin<T>(adminUrl: string, use: (admin: pg.Client) => Promise<T>): Promise<T> {
  const admin = new pg.Client({ connectionString: adminUrl });
  await admin.connect();
  try {
    return await use(admin);
  } finally {
    await admin.end();
  }
}

/** Writes down the skipped backends. When `scripts/test.mjs` runs the tests, it prints them in the last lines of the run. */
function report(skippedBackends: readonly string[]): void {
  const file = process.env.BOXCAR_TEST_REPORT;
  if (file !== undefined) writeFileSync(file, JSON.stringify({ skippedBackends }));
  else for (const backend of skippedBackends) say(`skipped backend: ${backend}`);
}

function say(line: string): void {
  console.error(`boxcar tests: ${line}`);
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
