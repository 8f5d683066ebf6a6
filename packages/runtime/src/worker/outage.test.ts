import { setTimeout as delay } from 'node:timers/promises';
import { KernelError } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { createPool } from '@boxcar/store';
import {
  type NodeChild,
  privatePostgres,
  queueBackends,
  spawnNode,
  testDatabase,
  testRedis,
  waitFor,
} from '@boxcar/testkit';
import type pg from 'pg';
import { describe, expect, test } from 'vitest';
import { type OpenRuntime, openRuntime } from '../open.js';
import { migrateQueues } from '../queue/queues.js';
import { checkInvariants } from '../testing/invariants.js';
import type { WorkerProcessOptions } from '../testing/worker-process.js';

const TURNS = 1_000;
const CONCURRENCY = 25;
const AWAY_MS = 30_000;
/**
 * With this time, the two workers need about as long for all turns as Redis is away, with almost no load on the
 * machine.
 */
const LONG_THINKING_MS = 1_500;
const THINKING_MS = 400;
const PATIENCE = { deadlineMs: 60_000 };

const MAIN = new URL('../../../cli/src/main.ts', import.meta.url);

/** Two worker processes, a program that submits, and turns in progress. */
class Outage implements AsyncDisposable {
  readonly urls: { readonly databaseUrl: string; readonly redisUrl?: string };
  readonly pool: pg.Pool;
  readonly submitter: OpenRuntime;
  readonly workers: NodeChild[] = [];

  constructor(urls: Outage['urls']) {
    this.urls = urls;
    this.pool = createPool({ connectionString: urls.databaseUrl, max: 3 });
    this.submitter = openRuntime({ ...urls, model: createModelRouter() });
  }

  async start(delayMs: number): Promise<void> {
    await this.submitter.runtime.applyProfile({
      name: 'slow',
      instructions: 'You are slow.',
      model: 'scripted',
      script: [{ say: 'done {{instruction}}', delayMs }],
    });
    const options: WorkerProcessOptions = {
      ...this.urls,
      effectsUrl: this.urls.databaseUrl,
      worker: { concurrency: CONCURRENCY },
    };
    for (let at = 0; at < 2; at += 1)
      this.workers.push(
        spawnNode(new URL('../testing/worker-process.ts', import.meta.url), [JSON.stringify(options)]),
      );
    await Promise.all(this.workers.map((worker) => worker.line(/^ready /, PATIENCE)));
  }

  submit(n: number, options: { readonly idempotencyKey?: string } = {}): Promise<unknown> {
    return this.submitter.runtime.submit(
      'launch_principal',
      { profile_name: 'slow', instruction: `${n}` },
      options,
    );
  }

  async submitAll(): Promise<void> {
    await Promise.all(Array.from({ length: TURNS }, (_, n) => this.submit(n)));
    await waitFor(async () => (await this.count("status = 'running'")) > 0, {
      message: 'turns run',
      ...PATIENCE,
    });
  }

  async count(condition: string): Promise<number> {
    const { rows } = await this.pool.query<{ n: number }>(
      `select count(*)::int as n from boxcar.turns where ${condition}`,
    );
    return rows[0]?.n ?? 0;
  }

  /**
   * Checks that all turns have succeeded, each with the answer to its own instruction, and that all invariants hold.
   */
  async checkEnds(expected: number): Promise<void> {
    await waitFor(
      async () => {
        const open = await this.count('ended_at is null').catch(() => -1);
        return open === 0;
      },
      { message: 'every turn has ended', deadlineMs: 120_000, intervalMs: 250 },
    );
    const { rows } = await this.pool.query<{ status: string; turns: number; answers: number }>(
      `select t.status, count(*)::int as turns, count(distinct c.content->>'text')::int as answers
       from boxcar.turns t join boxcar.cards c on c.id = t.deliverable_card_id group by t.status`,
    );
    expect(rows).toEqual([{ status: 'success', turns: expected, answers: expected }]);
    for (const worker of this.workers) expect(worker.stderr).not.toContain('unhandled');
    await checkInvariants(this.pool);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const worker of this.workers) await worker[Symbol.asyncDispose]();
    await this.submitter.close();
    await this.pool.end();
  }
}

describe.runIf(queueBackends().includes('redis'))('with 1,000 turns in flight and Redis', () => {
  test('flushed and then stopped for half a minute, all turns end once, and submissions are accepted meanwhile', {
    timeout: 240_000,
  }, async () => {
    await using database = await testDatabase();
    await using redis = await testRedis();
    await using outage = new Outage({ databaseUrl: database.url, redisUrl: redis.url });
    await outage.start(LONG_THINKING_MS);
    await outage.submitAll();

    await redis.flush();
    await redis.stop();
    const stoppedAt = performance.now();
    await Promise.all(Array.from({ length: 20 }, (_, n) => outage.submit(TURNS + n)));
    await using cli = spawnNode(
      MAIN,
      [
        'submit',
        'launch_principal',
        '--arg',
        'profile_name=slow',
        '--arg',
        'instruction=by the command line',
        '--json',
      ],
      { DATABASE_URL: database.url, REDIS_URL: redis.url },
    );
    expect((await cli.exited).code, cli.stderr).toBe(0);
    expect(JSON.parse(cli.stdout)).toMatchObject({ status: 'accepted' });
    expect(await outage.count('ended_at is null')).toBeGreaterThan(0);
    await delay(AWAY_MS - (performance.now() - stoppedAt));
    await redis.start();

    await outage.checkEnds(TURNS + 21);
  });
});

describe.each(queueBackends())('with 1,000 turns in flight, queues on %s', (kind) => {
  test('a restart of Postgres lets all accepted turns end once, and a submission meanwhile commits or says that it may be repeated', {
    timeout: 240_000,
  }, async () => {
    await using postgres = await privatePostgres();
    const redis = kind === 'redis' ? await testRedis() : undefined;
    if (redis === undefined) await migrateQueues(postgres.url);
    await using outage = new Outage({
      databaseUrl: postgres.url,
      ...(redis === undefined ? {} : { redisUrl: redis.url }),
    });
    await outage.start(THINKING_MS);
    await outage.submitAll();

    const answers = new Map<number, unknown>();
    const failures: unknown[] = [];
    let isOver = false;
    const submitting = (async () => {
      for (let n = TURNS; !isOver; n += 1) {
        const idempotencyKey = `outage-${n}`;
        for (;;) {
          try {
            answers.set(n, await outage.submit(n, { idempotencyKey }));
            break;
          } catch (error) {
            failures.push(error);
            await delay(20);
          }
        }
      }
    })();
    await postgres.restart(() => delay(1_000));
    await waitFor(() => answers.size > 0, { message: 'a submission is accepted again', ...PATIENCE });
    isOver = true;
    await submitting;

    expect(failures.length).toBeGreaterThan(0);
    for (const failure of failures) {
      expect(failure).toBeInstanceOf(KernelError);
      expect(failure).toMatchObject({ code: 'database_unavailable' });
    }
    // With its key each submission counts once, whatever the outcome of the first try was.
    for (const [n, answer] of answers)
      expect(await outage.submit(n, { idempotencyKey: `outage-${n}` })).toEqual(answer);
    await outage.checkEnds(TURNS + answers.size);
    await redis?.close();
  });
});
