/**
 * How every adapter must report failures of its platform: a code, whether a retry is possible, and no text that only the operator may
 * see.
 */
import { expect, test } from 'vitest';
import { adviseRetry } from '../adapter-error.js';
import { type AdapterSubject, ANSWER, type Bench, failureOf } from './bench.js';
import { requestFor } from './cards.js';
import { PLATFORM_KEY } from './platform-server.js';

const STATUSES: readonly (readonly [status: number, code: string, retryable: boolean])[] = [
  [400, 'platform_failed', false],
  [401, 'platform_unauthorized', false],
  [403, 'platform_unauthorized', false],
  [404, 'target_unknown', false],
  [408, 'platform_unavailable', true],
  [409, 'platform_failed', false],
  [422, 'platform_failed', false],
  [425, 'platform_unavailable', true],
  [429, 'platform_rate_limited', true],
  [500, 'platform_unavailable', true],
  [501, 'platform_unavailable', true],
  [503, 'platform_unavailable', true],
  [529, 'platform_unavailable', true],
  [302, 'platform_failed', false],
];

export function failureCases(subject: AdapterSubject, { run, open, expectConcealed }: Bench): void {
  test.each(STATUSES)('status %i is %s, and is retryable: %s', async (status, code, retryable) => {
    const message = `no: ${[PLATFORM_KEY, ...subject.secrets].join(' ')}`;
    const headers = status === 302 ? { location: 'http://127.0.0.1:9/elsewhere' } : {};
    await using server = await open({ kind: 'status', status, message, headers });
    const error = await failureOf(run(server));
    expect([error.code, error.retryable, error.details.status]).toEqual([code, retryable, status]);
    expect(adviseRetry(error).retryable).toBe(retryable);
    expect([server.works.length, server.requests.length]).toEqual([1, subject.requests]);
    expectConcealed(server, error);
    expect(error.details.handoff_id).toBe(requestFor({ platform: 'x' }).handoff_id);
  });

  test('the pause that the platform asks for is passed on', async () => {
    for (const [headers, retryAfterMs] of [
      [{ 'retry-after': '7' }, 7_000],
      [{ 'retry-after': 'soon' }, undefined],
      [{}, undefined],
    ] as const) {
      await using server = await open({ kind: 'status', status: 429, headers });
      const error = await failureOf(run(server));
      expect([error.code, error.retryAfterMs]).toEqual(['platform_rate_limited', retryAfterMs]);
    }
    await using server = await open({ kind: 'status', status: 400, headers: { 'retry-after': '7' } });
    expect((await failureOf(run(server))).retryAfterMs).toBeUndefined();
  });

  test('cut text does not end with the beginning of the key or of the address', async () => {
    for (const secretOf of [() => PLATFORM_KEY, ({ origin }: { readonly origin: string }) => origin]) {
      const filler = 'no '.repeat(160);
      let secret = '';
      await using server = await open({
        kind: 'status',
        status: 400,
        get message() {
          return `${filler}${secret} and more`;
        },
      });
      secret = secretOf(server);
      const { message } = await failureOf(run(server));
      expect([message.includes('no no no'), message.includes(secret.slice(0, 15))]).toEqual([true, false]);
    }
  });

  test('an error page is not repeated', async () => {
    const body = `<!doctype html><title>Bad gateway</title>${PLATFORM_KEY}`;
    await using server = await open({ kind: 'status', status: 502, body });
    const error = await failureOf(run(server));
    expect([error.code, error.retryable, error.message.includes('html')]).toEqual([
      'platform_unavailable',
      true,
      false,
    ]);
  });

  test('a connection that breaks before the answer can be tried again', async () => {
    await using server = await open({ kind: 'drop' });
    const error = await failureOf(run(server));
    expect([error.code, error.retryable]).toEqual(['platform_unavailable', true]);
    expect([server.works.length, server.requests.length]).toEqual([1, subject.requests]);
    expectConcealed(server, error);
  });

  test('a connection that breaks inside the answer starts no second attempt', async () => {
    await using server = await open({ kind: 'cut', text: ANSWER });
    if (subject.recoversCut === true) expect((await run(server)).result).toBe(ANSWER);
    else {
      const error = await failureOf(run(server));
      expect([error.code, error.retryable]).toEqual(['platform_unavailable', true]);
      expectConcealed(server, error);
    }
    expect(server.works.length).toBe(1);
  });

  test('a platform that cannot be reached can be tried again', async () => {
    const server = await open({ kind: 'drop' });
    await server[Symbol.asyncDispose]();
    const error = await failureOf(run(server));
    expect([error.code, error.retryable, error.details.network]).toEqual([
      'platform_unavailable',
      true,
      'ECONNREFUSED',
    ]);
    expectConcealed(server, error);
  });

  test('an answer that cannot be read fails, and is not tried again', async () => {
    await using server = await open({ kind: 'garbage' });
    const error = await failureOf(run(server));
    expect([error.code, error.retryable]).toEqual(['platform_failed', false]);
    expect(server.works.length).toBe(1);
    expectConcealed(server, error);
  });
}
