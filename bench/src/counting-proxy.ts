import { connect, createServer, type Socket } from 'node:net';

/** A proxy between one process and Postgres that counts the statements of the process. */
export interface CountingProxy extends AsyncDisposable {
  /** The given URL, redirected through this proxy. */
  readonly url: string;
  /** Statements so far: simple queries and executions, including transaction control. */
  readonly statements: number;
}

/**
 * Statements are counted on the wire, since no other method counts one process exactly. `pg_stat_statements` does not distinguish
 * processes and must be loaded at the server's start. `pg_stat_database` also counts the server's own statements.
 */
export async function openCountingProxy(databaseUrl: string): Promise<CountingProxy> {
  const { hostname, port } = new URL(databaseUrl);
  const open = new Set<Socket>();
  let statements = 0;
  const server = createServer((client) => {
    const upstream = connect(Number(port), hostname);
    for (const [socket, other] of [
      [client, upstream],
      [upstream, client],
    ] as const) {
      open.add(socket);
      socket.setNoDelay(true);
      socket.on('error', () => other.destroy());
      socket.once('close', () => {
        open.delete(socket);
        other.end();
      });
    }
    const count = countStatements(() => {
      statements += 1;
    });
    client.on('data', count);
    client.pipe(upstream).pipe(client);
  });
  await new Promise<void>((settle, fail) => {
    server.once('error', fail);
    server.listen(0, '127.0.0.1', settle);
  });
  const address = server.address();
  if (typeof address !== 'object' || address === null) throw new Error('the system gave no port');
  const url = new URL(databaseUrl);
  url.hostname = '127.0.0.1';
  url.port = String(address.port);
  return {
    url: url.href,
    get statements() {
      return statements;
    },
    [Symbol.asyncDispose]: async () => {
      for (const socket of open) socket.destroy();
      await new Promise((settle) => server.close(settle));
    },
  };
}

const LENGTH_BYTES = 4;
const QUERY = 'Q'.charCodeAt(0);
const EXECUTE = 'E'.charCodeAt(0);

/** Parses the frontend's side of the protocol: the first message has no type, every later message begins with its type and length. */
function countStatements(found: () => void): (chunk: Buffer) => void {
  let rest: Buffer = Buffer.alloc(0);
  let typeBytes = 0;
  return (chunk) => {
    rest = rest.length === 0 ? chunk : Buffer.concat([rest, chunk]);
    for (;;) {
      if (rest.length < typeBytes + LENGTH_BYTES) return;
      const end = typeBytes + rest.readInt32BE(typeBytes);
      if (rest.length < end) return;
      if (typeBytes === 1 && (rest[0] === QUERY || rest[0] === EXECUTE)) found();
      rest = rest.subarray(end);
      typeBytes = 1;
    }
  };
}
