/** A reverse proxy on this machine, for tests: the address of a server is known before the server listens. */
import { createServer, request } from 'node:http';
import type { AddressInfo } from 'node:net';

export interface Proxy extends AsyncDisposable {
  readonly url: string;
  /** The address of the proxied server. */
  target: string | undefined;
}

export async function openProxy(): Promise<Proxy> {
  const server = createServer((asked, answer) => {
    if (proxy.target === undefined) return void answer.writeHead(502).end();
    const { method, headers } = asked;
    const passed = request(new URL(asked.url ?? '', proxy.target), { method, headers }, (given) => {
      answer.writeHead(given.statusCode ?? 502, given.headers);
      given.pipe(answer);
    });
    passed.on('error', () => answer.destroy());
    answer.on('close', () => passed.destroy());
    asked.pipe(passed);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const proxy: Proxy = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    target: undefined,
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
  return proxy;
}
