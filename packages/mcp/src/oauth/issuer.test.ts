/** Requests for the keys of an issuer. */
import type { ServerResponse } from 'node:http';
import { KernelError } from '@boxcar/kernel';
import { jwtVerify } from 'jose';
import { afterEach, describe, expect, test } from 'vitest';
import { openIssuer, type TestIssuer } from '../testing/issuer.js';
import { Issuer, metadataUrlsOf } from './issuer.js';

const open: TestIssuer[] = [];
afterEach(async () => {
  for (const issuer of open.splice(0)) await issuer[Symbol.asyncDispose]();
});

async function start(path?: string): Promise<TestIssuer> {
  const issuer = await openIssuer({ audience: 'here', ...(path === undefined ? {} : { path }) });
  open.push(issuer);
  return issuer;
}

/** The verdict on a token: `good`, or the code of an error. */
async function judge(asked: Issuer, token: string): Promise<string> {
  try {
    await jwtVerify(token, asked.keyOf);
    return 'good';
  } catch (error) {
    return error instanceof Error && 'code' in error ? String(error.code) : 'unknown';
  }
}

/** Why an issuer cannot be reached. */
async function reasonOf(name: string): Promise<string> {
  const other = await start();
  try {
    await jwtVerify(await other.token(), new Issuer(name).keyOf);
    return 'good';
  } catch (error) {
    if (!(error instanceof KernelError)) throw error;
    return `${error.code}: ${error.cause instanceof Error ? error.cause.message : ''}`;
  }
}

describe('the metadata of an issuer', () => {
  test('are searched at the addresses that MCP defines', () => {
    expect(metadataUrlsOf('https://id.example')).toEqual([
      'https://id.example/.well-known/oauth-authorization-server',
      'https://id.example/.well-known/openid-configuration',
    ]);
    expect(metadataUrlsOf('https://id.example/')).toEqual(metadataUrlsOf('https://id.example'));
    expect(metadataUrlsOf('https://id.example/a/b')).toEqual([
      'https://id.example/.well-known/oauth-authorization-server/a/b',
      'https://id.example/.well-known/openid-configuration/a/b',
      'https://id.example/a/b/.well-known/openid-configuration',
    ]);
  });

  test.each([
    ['', '/.well-known/oauth-authorization-server'],
    ['', '/.well-known/openid-configuration'],
    ['/tenant', '/.well-known/oauth-authorization-server/tenant'],
    ['/tenant', '/.well-known/openid-configuration/tenant'],
    ['/tenant', '/tenant/.well-known/openid-configuration'],
  ])('with the path "%s" are found at %s', async (path, metadataPath) => {
    const issuer = await start(path);
    issuer.metadataPath = metadataPath;
    expect(await judge(new Issuer(issuer.url), await issuer.token())).toBe('good');
    expect(issuer.asked.slice(-2)).toEqual([metadataPath, '/keys']);
  });

  test.each<[string, (answer: ServerResponse) => void]>([
    ['answers with another error status', (answer) => void answer.writeHead(405).end()],
    ['answers everything with a web page', (answer) => void answer.writeHead(200).end('<html>')],
    ['fails', (answer) => void answer.writeHead(500).end()],
    ['leads elsewhere', (answer) => void answer.writeHead(302, { location: '/' }).end()],
    [
      'has metadata of another issuer',
      (answer) =>
        void answer.end(
          JSON.stringify({ issuer: 'https://other.example', jwks_uri: 'https://other.example/k' }),
        ),
    ],
  ])('of OpenID are found when the first address %s', async (_what, first) => {
    const issuer = await start();
    issuer.metadataPath = '/.well-known/openid-configuration';
    issuer.elsewhere = first;
    expect(await judge(new Issuer(issuer.url), await issuer.token())).toBe('good');
  });

  test('are ignored when they name another issuer', async () => {
    const issuer = await start();
    issuer.calledIssuer = 'https://other.example';
    expect(await judge(new Issuer(issuer.url), await issuer.token())).toBe('issuer_unavailable');
    expect(issuer.asked).not.toContain('/keys');
  });
});

describe('the keys of an issuer', () => {
  test('are requested once, also for many tokens at once', async () => {
    const issuer = await start();
    const asked = new Issuer(issuer.url);
    const token = await issuer.token();
    expect(new Set(await Promise.all(Array.from({ length: 20 }, () => judge(asked, token))))).toEqual(
      new Set(['good']),
    );
    expect(issuer.asked.filter((path) => path === '/keys')).toHaveLength(1);
  });

  test.each(['PS256', 'ES256', 'ES384', 'Ed25519', 'EdDSA'])('may be of the kind %s', async (algorithm) => {
    const issuer = await start();
    await issuer.rotate(algorithm);
    expect(await judge(new Issuer(issuer.url), await issuer.token())).toBe('good');
  });

  test.each<[string, object, string]>([
    ['unreadable', { kty: 'RSA', e: 'AQAB' }, 'DataError'],
    ['too short', { kty: 'RSA', e: 'AQAB', n: 'AQAB' }, 'TypeError'],
  ])(
    'are still used when one key is of the kind %s, and no additional request is made',
    async (_what, key) => {
      const issuer = await start();
      issuer.otherKeys.push({ kid: 'bad', use: 'sig', ...key });
      const asked = new Issuer(issuer.url, { cooldownMs: 0 });
      expect(await judge(asked, await issuer.token())).toBe('good');
      const made = await issuer.token({}, { kid: 'bad' });
      for (let count = 0; count < 3; count += 1)
        expect(await judge(asked, made)).not.toBe('issuer_unavailable');
      expect(issuer.asked.filter((path) => path === '/keys')).toHaveLength(1);
      await issuer.rotate();
      expect(await judge(asked, await issuer.token())).toBe('good');
    },
  );

  test('are not a failure of the issuer when two have the name that a token names', async () => {
    const issuer = await start();
    issuer.otherKeys.push({ ...issuer.jwk });
    expect(await judge(new Issuer(issuer.url), await issuer.token())).toBe('ERR_JWKS_MULTIPLE_MATCHING_KEYS');
  });

  test('are not requested again and again for unknown names', async () => {
    const issuer = await start();
    const asked = new Issuer(issuer.url);
    const unknown = await issuer.token({}, { kid: 'unknown' });
    for (let count = 0; count < 5; count += 1)
      expect(await judge(asked, unknown)).toBe('ERR_JWKS_NO_MATCHING_KEY');
    expect(issuer.asked.filter((path) => path === '/keys')).toHaveLength(1);
  });

  test('are requested again when they are old, and old keys are not used when the issuer is away', async () => {
    const issuer = await start();
    const asked = new Issuer(issuer.url, { keepMs: 0, pauseMs: 0 });
    const token = await issuer.token();
    expect(await judge(asked, token)).toBe('good');
    issuer.broken = (answer) => void answer.destroy();
    expect(await judge(asked, token)).toBe('issuer_unavailable');
    issuer.broken = undefined;
    expect(await judge(asked, token)).toBe('good');
  });

  test('are found by the metadata when the issuer has moved them', async () => {
    const issuer = await start();
    const asked = new Issuer(issuer.url, { keepMs: 0, pauseMs: 0 });
    issuer.jwksUri = `${issuer.url}/elsewhere`;
    expect(await judge(asked, await issuer.token())).toBe('issuer_unavailable');
    issuer.jwksUri = `${issuer.url}/keys`;
    expect(await judge(asked, await issuer.token())).toBe('good');
  });
});

describe('an issuer that fails', () => {
  test.each<[string, (answer: ServerResponse) => void]>([
    ['closes the connection', (answer) => void answer.destroy()],
    ['answers with an error', (answer) => void answer.writeHead(500).end()],
    ['has no document', (answer) => void answer.writeHead(404).end()],
    ['answers with another document', (answer) => void answer.end('<html>')],
    ['answers with JSON that is not metadata', (answer) => void answer.end('[]')],
    ['never answers', () => undefined],
    ['never ends its answer', (answer) => void answer.write('{')],
  ])('%s, and then the token is not judged', async (_what, broken) => {
    const issuer = await start();
    issuer.broken = broken;
    const token = await issuer.token();
    expect(await judge(new Issuer(issuer.url, { askMs: 200 }), token)).toBe('issuer_unavailable');
  });

  test('has metadata over the size limit, and then the token is not judged', async () => {
    const issuer = await start();
    issuer.padding = 'x'.repeat(300_000);
    expect(await reasonOf(issuer.url)).toMatch(/^issuer_unavailable: the document has more than/);
    issuer.padding = 'x'.repeat(200_000);
    expect(await judge(new Issuer(issuer.url), await issuer.token())).toBe('good');
  });

  test.each<[number, (answer: ServerResponse) => void]>([
    [2, (answer) => void answer.destroy()],
    [2, (answer) => void answer.writeHead(404).end()],
    [2, (answer) => void answer.end('<html>')],
  ])('is not asked again for a while (%i requests)', async (requests, broken) => {
    const issuer = await start();
    issuer.broken = broken;
    const asked = new Issuer(issuer.url, { pauseMs: 600_000 });
    for (let count = 0; count < 5; count += 1)
      expect(await judge(asked, await issuer.token())).toBe('issuer_unavailable');
    expect(issuer.asked).toHaveLength(requests);
  });

  test('is asked again after that time, however many tokens have arrived meanwhile', async () => {
    const issuer = await start();
    issuer.broken = (answer) => void answer.destroy();
    const asked = new Issuer(issuer.url, { pauseMs: 100 });
    const token = await issuer.token();
    while (issuer.asked.length < 3) expect(await judge(asked, token)).toBe('issuer_unavailable');
  });

  test('a redirect of an issuer is not followed', async () => {
    const issuer = await start();
    const other = await start();
    issuer.broken = (answer) => void answer.writeHead(302, { location: `${other.url}/keys` }).end();
    expect(await reasonOf(issuer.url)).toBe('issuer_unavailable: the issuer answered 302');
    expect(other.asked).toEqual([]);
  });

  test('a pause grows with each failure, and ends with the first answer', async () => {
    const issuer = await start();
    const askedAt: number[] = [];
    issuer.broken = (answer) => {
      askedAt.push(performance.now());
      answer.destroy();
    };
    const asked = new Issuer(issuer.url, { pauseMs: 20, keepMs: 0 });
    const token = await issuer.token();
    const pauses = [20, 40, 80, 160];
    // Each attempt requests two addresses; then there is a pause.
    while (askedAt.length < 2 * pauses.length + 1) await judge(asked, token);
    for (const [at, least] of pauses.entries())
      expect((askedAt[2 * at + 2] ?? 0) - (askedAt[2 * at + 1] ?? 0)).toBeGreaterThan(least - 2);
    issuer.broken = undefined;
    while ((await judge(asked, token)) !== 'good');
    expect(await judge(asked, token)).toBe('good');
  });
});

// None of these requests would leave this machine, even if the rule were broken.
test.each(['http://0.0.0.0:1/keys', 'http://[::]:1/keys'])(
  'an issuer on this machine cannot refer to %s',
  async (jwksUri) => {
    const issuer = await start();
    issuer.jwksUri = jwksUri;
    expect(await reasonOf(issuer.url)).toBe('issuer_unavailable: the address of a document is not https');
  },
);
