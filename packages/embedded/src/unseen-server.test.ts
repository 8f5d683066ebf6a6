import { once } from 'node:events';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { expect, test } from 'vitest';
import { mayAnswer } from './unseen-server.js';

const atPort = (port: number) =>
  mayAnswer('/nowhere', { pid: 1, port, hasSocket: false, status: 'ready', memory: undefined });

test.each([
  ['ends', (socket: Socket) => socket.resume().end()],
  ['destroys', (socket: Socket) => socket.destroy()],
  ['resets', (socket: Socket) => socket.resetAndDestroy()],
])('a server that %s the connection may be the server of the folder', async (_how, close) => {
  const server = createServer((socket) => void close(socket.on('error', () => undefined)));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  try {
    expect(await atPort(port)).toBe(true);
  } finally {
    server.close();
  }
  await once(server, 'close');
  expect(await atPort(port)).toBe(false);
});
