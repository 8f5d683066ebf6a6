import { createServer } from 'node:net';

export function isFree(port: number): Promise<boolean> {
  return new Promise((settle) => {
    const probe = createServer();
    probe.once('error', () => settle(false));
    probe.listen({ host: '127.0.0.1', port, exclusive: true }, () => probe.close(() => settle(true)));
  });
}

/** A free port of the loopback interface. Another process may take the port before the caller does. */
export function freePort(): Promise<number> {
  return new Promise((settle, fail) => {
    const probe = createServer();
    probe.once('error', fail);
    probe.listen({ host: '127.0.0.1', port: 0 }, () => {
      const address = probe.address();
      probe.close(() => {
        if (typeof address === 'object' && address !== null) settle(address.port);
        else fail(new Error('the system gave no port'));
      });
    });
  });
}
