/** Where a frame listens, and how it stops. */
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { Agent, request } from 'node:http';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createKey, revokeKey } from '@boxcar/runtime';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { approvalRoutes } from './approvals/approval-routes.js';
import { createHttpFrame } from './frame.js';
import { openLocalKey } from './local-key.js';
import { isLoopbackAddress, resolveBinding } from './loopback.js';
import type { Route } from './route.js';
import { bearer, openStage, type Stage } from './testing/stage.js';

let stage: Stage;
beforeAll(async () => {
  stage = await openStage();
});
afterAll(() => stage[Symbol.asyncDispose]());

const frameAt = (host: string, port = 0) => createHttpFrame({ runtime: stage.opened.runtime, host, port });

test('loopback addresses are recognized in every notation', () => {
  for (const address of ['127.0.0.1', '127.255.0.9', '::1', '[::1]', '::ffff:127.0.0.1', '0:0:0:0:0:0:0:1'])
    expect([address, isLoopbackAddress(address)]).toEqual([address, true]);
  for (const address of ['0.0.0.0', '::', '10.0.0.1', '128.0.0.1', '::ffff:10.0.0.1', 'localhost', '', '::2'])
    expect([address, isLoopbackAddress(address)]).toEqual([address, false]);
});

test('a name is loopback when all its addresses are, and the server listens on the checked address', async () => {
  const named = (...addresses: string[]) =>
    resolveBinding('desk', async () => addresses.map((address) => ({ address })));
  expect(await named('127.0.0.1', '::1')).toEqual({ host: 'desk', address: '127.0.0.1', isLoopback: true });
  expect(await named('127.0.0.1', '10.0.0.1')).toMatchObject({ isLoopback: false });
  expect(await named('10.0.0.1')).toMatchObject({ isLoopback: false });
  await expect(named()).rejects.toMatchObject({ code: 'bad_config' });
  await expect(resolveBinding('desk', () => Promise.reject(new Error('ENOTFOUND')))).rejects.toMatchObject({
    code: 'bad_config',
    message: expect.stringContaining("'desk'"),
  });
  expect(await resolveBinding('localhost')).toMatchObject({ isLoopback: true });
  expect(await resolveBinding('[::1]')).toMatchObject({ address: '::1', isLoopback: true });
});

test('on an address that other machines reach the server starts only with a usable key', async () => {
  for (const host of ['0.0.0.0', '::'])
    await expect(frameAt(host).listen()).rejects.toMatchObject({
      code: 'bad_config',
      message: expect.stringContaining('boxcar keys create'),
    });
  const { key, key_id } = await createKey(stage.database.pool, { scopes: ['approvals:read'] });
  {
    await using frame = frameAt('0.0.0.0');
    const { port, isLoopback } = await frame.listen();
    expect(isLoopback).toBe(false);
    const ask = (host: string) =>
      new Promise<number | undefined>((resolve, reject) =>
        request(
          { host: '127.0.0.1', port, path: '/healthz', headers: { ...bearer(key), host } },
          (answer) => {
            answer.resume();
            resolve(answer.statusCode);
          },
        )
          .on('error', reject)
          .end(),
      );
    expect(await ask(`127.0.0.1:${port}`)).toBe(200);
    // An address at which the request did not arrive.
    expect(await ask('10.1.2.3')).toBe(403);
    expect(await ask('evil.example')).toBe(403);
  }
  await revokeKey(stage.database.pool, key_id);
  await expect(frameAt('0.0.0.0').listen()).rejects.toMatchObject({ code: 'bad_config' });
});

test('the key of a machine is valid only on a server that only this machine can reach', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'boxcar-machine-'));
  const { key } = await openLocalKey(stage.database.pool, { project: 'default', folder });
  expect((await fetch(`${stage.url}/approvals`, { headers: bearer(key) })).status).toBe(200);
  await expect(frameAt('0.0.0.0').listen()).rejects.toMatchObject({ code: 'bad_config' });
  const other = await createKey(stage.database.pool, { scopes: ['approvals:read'] });
  await using frame = frameAt('0.0.0.0').mount(approvalRoutes(stage.opened.runtime));
  const { port } = await frame.listen();
  const ask = async (text: string) =>
    (await fetch(`http://127.0.0.1:${port}/approvals`, { headers: bearer(text) })).status;
  expect([await ask(other.key), await ask(key)]).toEqual([200, 401]);
  await revokeKey(stage.database.pool, other.key_id);
  rmSync(folder, { recursive: true });
});

test('a taken port, and an address of another machine, are reported', async () => {
  const other = createServer().listen(0, '127.0.0.1');
  await once(other, 'listening');
  const address = other.address();
  const port = typeof address === 'object' && address !== null ? address.port : 0;
  await expect(frameAt('127.0.0.1', port).listen()).rejects.toMatchObject({ code: 'port_in_use' });
  other.close();
  await createKey(stage.database.pool, { scopes: ['approvals:read'] });
  await expect(frameAt('192.0.2.1').listen()).rejects.toMatchObject({ code: 'bad_config' });
});

/** A route that answers when the test tells it to. */
function heldRoute(): { readonly route: Route; readonly begun: Promise<void>; answer(): void } {
  let begin: () => void = () => undefined;
  let answer: () => void = () => undefined;
  const begun = new Promise<void>((resolve) => {
    begin = resolve;
  });
  const answered = new Promise<void>((resolve) => {
    answer = resolve;
  });
  return {
    begun,
    answer: () => answer(),
    route: {
      method: 'GET',
      path: '/held',
      scope: 'handoffs:read',
      handle: async () => {
        begin();
        await answered;
        return Response.json({ done: true });
      },
    },
  };
}

test('an end waits for running requests, accepts no others, and closes idle connections', async () => {
  const held = heldRoute();
  await using own = await openStage({ routes: [held.route] });
  const headers = bearer(await own.key(['handoffs:read']));
  const agent = new Agent({ keepAlive: true });
  const [idle] = await once(request({ port: own.port, path: '/healthz', agent }).end(), 'response');
  idle.resume();
  const running = fetch(`${own.url}/held`, { headers });
  await held.begun;
  const closed = own.frame.close({ graceMs: 60_000 });
  await expect(fetch(`${own.url}/healthz`)).rejects.toThrow();
  held.answer();
  const answer = await running;
  expect(answer.headers.get('connection')).toBe('close');
  expect(await answer.json()).toEqual({ done: true });
  await closed;
  agent.destroy();
});

test('a server that is closed while it starts does not start, now or later', async () => {
  await using own = await openStage();
  const frame = createHttpFrame({ runtime: own.opened.runtime, port: 0 });
  const listening = frame.listen();
  await frame.close();
  await expect(listening).rejects.toMatchObject({ code: 'bad_config' });
  await expect(frame.listen()).rejects.toMatchObject({ code: 'bad_config' });
});

test('requests that take longer than the grace time are cut', async () => {
  const held = heldRoute();
  await using own = await openStage({ routes: [held.route] });
  const running = fetch(`${own.url}/held`, { headers: bearer(await own.key(['handoffs:read'])) });
  const failed = expect(running).rejects.toThrow();
  await held.begun;
  await own.frame.close({ graceMs: 20 });
  await failed;
  held.answer();
});
