import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Redis } from 'ioredis';
import { afterAll, describe, expect, it } from 'vitest';
import { testContext } from './context.js';
import { queueBackends, spawnNode, testDatabase, testRedis, waitFor } from './index.js';
import { requireVersion } from './require-version.js';

const folder = mkdtempSync(join(tmpdir(), 'boxcar-testkit-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

describe('testDatabase', () => {
  it('gives two migrated databases that share nothing', async () => {
    await using first = await testDatabase();
    await using second = await testDatabase();
    await first.pool.query('create table only_here (n int)');
    const tables = 'select to_regclass($1) is not null as known';
    expect((await first.pool.query(tables, ['boxcar.schema_version'])).rows).toEqual([{ known: true }]);
    expect((await second.pool.query(tables, ['boxcar.schema_version'])).rows).toEqual([{ known: true }]);
    expect((await second.pool.query(tables, ['only_here'])).rows).toEqual([{ known: false }]);
  });

  it('is dropped when closed', async () => {
    const observer = await testDatabase();
    const database = await testDatabase({ empty: true });
    const exists = async () =>
      (await observer.pool.query('select 1 from pg_database where datname = $1', [database.name])).rowCount;
    expect(await exists()).toBe(1);
    await database.close();
    expect(await exists()).toBe(0);
  });

  it('is used again by a later test only when it looks like a new database', async () => {
    const database = await testDatabase({ max: 1 });
    await database.pool.query(
      "insert into boxcar.projects values (gen_random_uuid(), 'left behind', '{}', gen_random_uuid(), gen_random_uuid())",
    );
    await database.close();
    await using again = await testDatabase({ max: 1 });
    expect(again.name).toBe(database.name);
    expect(
      (await again.pool.query("select 1 from boxcar.projects where name = 'left behind'")).rowCount,
    ).toBe(0);
    await again.pool.query('create table left_behind (n int)');
    await again.close();
    await using other = await testDatabase({ max: 1 });
    expect(other.name).not.toBe(database.name);
  });
});

describe.runIf(queueBackends().includes('redis'))('testRedis', () => {
  it('is flushed, is killed, and starts empty on the same port', async () => {
    await using redis = await testRedis();
    const client = new Redis(redis.url, { retryStrategy: () => 20, maxRetriesPerRequest: null });
    client.on('error', () => {});
    await client.set('a', '1');
    await redis.flush();
    expect(await client.get('a')).toBeNull();
    await client.set('a', '2');
    await redis.stop();
    await redis.start();
    expect(await client.get('a')).toBeNull();
    client.disconnect();
  });
});

describe.runIf(testContext().redis.kind === 'program')('a private Redis', () => {
  it('accepts no connection without its password, which its arguments do not show', async () => {
    await using redis = await testRedis();
    const url = new URL(redis.url);
    expect(url.password).toMatch(/^\w{48}$/);
    url.password = '';
    const client = new Redis(url.href, { retryStrategy: () => null, maxRetriesPerRequest: 0 });
    client.on('error', () => {});
    await expect(client.get('a')).rejects.toThrow('NOAUTH');
    client.disconnect();
    await using other = await testRedis();
    expect(new URL(other.url).password).not.toBe(new URL(redis.url).password);
    const shown = spawnSync('ps', ['-axww', '-o', 'args='], { encoding: 'utf8' }).stdout;
    expect(shown).not.toContain(new URL(redis.url).password);
  });
});

describe('spawnNode', () => {
  it('runs TypeScript from the sources of the workspace, and ends with the handle', async () => {
    const script = join(folder, 'child.ts');
    writeFileSync(
      script,
      `const greeting: string = process.env.GREETING ?? '';
       console.log(greeting + ' ' + process.argv[2]);
       process.stdin.on('data', (line) => console.log('heard ' + String(line)));`,
    );
    const child = spawnNode(script, ['world'], { GREETING: 'hello' });
    expect(await child.line(/^hello/)).toBe('hello world');
    child.writeLine('you');
    expect(await child.line(/^heard/)).toBe('heard you');
    await child[Symbol.asyncDispose]();
    expect(await child.exited).toEqual({ code: null, signal: 'SIGKILL' });
  });

  it('reports the output of a child that ended too early', async () => {
    const script = join(folder, 'broken.ts');
    writeFileSync(script, `console.error('the reason'); process.exit(3);`);
    const child = spawnNode(script);
    await expect(child.line(/never/)).rejects.toThrow('the reason');
    expect(await child.exited).toEqual({ code: 3, signal: null });
  });
});

describe('waitFor', () => {
  it('returns the first settled value', async () => {
    let calls = 0;
    const value = await waitFor(() => (++calls === 3 ? { calls } : undefined), { message: 'the third call' });
    expect(value).toEqual({ calls: 3 });
  });

  it('names the condition for which it waited', async () => {
    await expect(waitFor(() => false, { message: 'pigs fly', deadlineMs: 30 })).rejects.toThrow(
      'waited 30 ms in vain until pigs fly',
    );
  });
});

describe('a run for certain versions', () => {
  it('is refused on another major version, and on no version without a requirement', () => {
    expect(() => requireVersion('Node', '24.21.0', '24')).not.toThrow();
    expect(() => requireVersion('Postgres', '15.18', undefined)).not.toThrow();
    expect(() => requireVersion('Postgres', '15.18', '')).not.toThrow();
    expect(() => requireVersion('Postgres', '18.4', '15')).toThrow('meant for Postgres 15, but runs on 18.4');
    expect(() => requireVersion('Node', '2.4.0', '24')).toThrow('Node 24');
  });

  it('gets the requested versions', async () => {
    await using database = await testDatabase({ empty: true });
    const { rows } = await database.pool.query<{ version: string }>(
      "select current_setting('server_version') as version",
    );
    requireVersion('Postgres', rows[0]?.version ?? '', process.env.BOXCAR_REQUIRE_POSTGRES);
    requireVersion('Node', process.versions.node, process.env.BOXCAR_REQUIRE_NODE);
    const script = join(folder, 'version.ts');
    writeFileSync(script, 'console.log(process.version);');
    expect(await spawnNode(script).line(/^v/)).toBe(process.version);
  });
});
