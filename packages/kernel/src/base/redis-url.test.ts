import { describe, expect, it } from 'vitest';
import { readRedisUrl, redisHosts, withClusterPassword } from './redis-url.js';

const cluster = {
  kind: 'cluster',
  nodes: [{ host: 'h', port: 6379 }],
  username: undefined,
  password: undefined,
  isTls: false,
  name: 'boxcar',
};

describe('the URL of Redis', () => {
  it('of a single server is kept unchanged', () => {
    for (const url of ['redis://h:1/0', 'rediss://u:p@h:1/2'])
      expect(readRedisUrl(url)).toEqual({
        address: { kind: 'server', url, nodes: [{ host: 'h', port: 1 }] },
      });
  });

  it.each([
    ['redis+cluster://h', {}],
    ['redis+cluster://h/', {}],
    ['rediss+cluster://h/staging', { isTls: true, name: 'staging' }],
    ['redis+cluster://me@h', { username: 'me' }],
    ['redis+cluster://:p%40ss%2F@h', { password: 'p@ss/' }],
    ['redis+cluster://:a:b@h', { password: 'a:b' }],
    [
      'redis+cluster://a:7000,b.example:7001,[::1]:7002',
      {
        nodes: [
          { host: 'a', port: 7000 },
          { host: 'b.example', port: 7001 },
          { host: '::1', port: 7002 },
        ],
      },
    ],
  ])('of a cluster: %s', (url, rest) => {
    expect(readRedisUrl(url)).toEqual({ address: { ...cluster, ...rest } });
  });

  it.each([
    ['http://h', /^must be a redis:\/\//],
    ['secret', /^must be a redis:\/\//],
    ['redis://a:1,b:2', /^must be a redis:\/\//],
    ['redis+cluster://:%zz@h', /^must be a redis:\/\//],
    ['redis+cluster://h?a=b', /^must be a redis:\/\//],
    ['redis+cluster://', /must name the nodes/],
    ['redis+cluster://a:1,', /must name the nodes/],
    ['redis+cluster://a:0', /must name the nodes/],
    ['redis+cluster://a:65536', /must name the nodes/],
    ['redis+cluster://a:1/0', /no numbered databases/],
    ['redis+cluster://a:1/{tag}', /no numbered databases/],
  ])('is refused with a message that says what to write instead: %s', (url, problem) => {
    expect(readRedisUrl(url)).toEqual({ problem: expect.stringMatching(problem) });
  });

  it('of a cluster takes a password from another setting when the URL has no password', () => {
    const password = 'a@/:?#,b';
    for (const url of [
      'redis+cluster://a:1,b:2/x',
      'redis+cluster://me@a:1,b:2/x',
      'redis+cluster://me:@a:1,b:2/x',
    ])
      expect(readRedisUrl(withClusterPassword(url, password))).toMatchObject({
        address: { password, nodes: [{ host: 'a' }, { host: 'b' }], name: 'x' },
      });
    expect(withClusterPassword('redis+cluster://me:known@a', password)).toBe('redis+cluster://me:known@a');
  });

  it('is shown with hosts and ports, and without user and password', () => {
    const { address } = readRedisUrl('redis+cluster://me:hunter2@a:1,[::1]:2') as { address: never };
    expect(redisHosts(address)).toBe('a:1, [::1]:2');
  });
});
