import { once } from 'node:events';
import { connect, createServer, type Socket } from 'node:net';
import { type NodeChild, type PrivatePostgres, privatePostgres, waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type CliResult, cliHere, type Env, startCli } from './testing/cli.js';

let server: PrivatePostgres;

beforeAll(async () => {
  server = await privatePostgres();
});

afterAll(() => server.close());

/** On a busy machine even the start of a process takes seconds. */
const PATIENT = { deadlineMs: 120_000 };

const saysThatItWaits = (child: NodeChild): Promise<unknown> =>
  waitFor(() => child.stderr.includes('database.waiting') || undefined, {
    message: `it says that it waits: ${child.stderr}`,
    ...PATIENT,
  });

describe('a database that is being restarted', () => {
  const env = (): Env => ({ DATABASE_URL: server.url, BOXCAR_DATABASE_WAIT_SECONDS: '300' });

  it('is waited for by commands and the worker, which report the wait once and then continue', async () => {
    // REDIS_URL is set only because commands would otherwise need the queue tables; Redis is not contacted.
    const redis = { REDIS_URL: 'redis://127.0.0.1:1' };
    const children: NodeChild[] = [];
    const here: Promise<CliResult>[] = [];
    await server.restart(async () => {
      children.push(startCli(['worker', '--no-door'], { ...env(), ...redis }), startCli(['migrate'], env()));
      here.push(cliHere(['profiles', 'ls'], { ...env(), ...redis }));
      await Promise.all(children.map(saysThatItWaits));
    });
    const [worker, migration] = children;
    if (worker === undefined || migration === undefined) throw new Error('a process is missing');
    expect(await migration.exited, migration.stderr).toEqual({ code: 0, signal: null });
    expect(migration.stderr.match(/database\.waiting/g)).toHaveLength(1);
    for (const { code, stderr } of await Promise.all(here)) {
      expect(code, stderr).toBe(0);
      expect(stderr.match(/database\.waiting/g)).toHaveLength(1);
    }
    await waitFor(() => worker.stderr.includes(' is ready ') || undefined, {
      message: `the worker is ready: ${worker.stderr}`,
      ...PATIENT,
    });
    expect(worker.stderr.match(/database\.waiting/g)).toHaveLength(1);
    await worker.kill('SIGTERM');
    expect(await worker.exited).toEqual({ code: 0, signal: null });
  }, 300_000);

  it.each([
    ['projects ls', 'at its first three connections', [1, 2, 3]],
    // The first connection of `migrate` is for the schema, the second for the tables of the queues.
    ['migrate', 'between two migrations', [2]],
  ] as const)(
    'is waited for by %s while it reports %s that it is starting up',
    async (command, _when, refusals) => {
      const target = new URL(server.url);
      let connections = 0;
      let refused = 0;
      const sockets = new Set<Socket>();
      // Postgres answers like this while it starts: it accepts connections, but no clients yet.
      const door = createServer((socket) => {
        sockets.add(socket);
        socket.on('error', () => undefined);
        connections += 1;
        if ((refusals as readonly number[]).includes(connections)) {
          refused += 1;
          socket.once('data', () => socket.end(startingUp()));
          return;
        }
        const inner = connect(Number(target.port), target.hostname);
        inner.on('error', () => socket.destroy());
        socket.pipe(inner).pipe(socket);
      }).listen(0, '127.0.0.1');
      await once(door, 'listening');
      const address = door.address();
      const url = new URL(server.url);
      url.port = String(typeof address === 'object' && address ? address.port : 0);
      try {
        const result = await cliHere(command.split(' '), { ...env(), DATABASE_URL: url.href });
        expect(result).toMatchObject({ code: 0, stderr: expect.stringContaining('starting up') });
        expect(refused).toBe(refusals.length);
      } finally {
        for (const socket of sockets) socket.destroy();
        door.close();
      }
    },
  );
});

describe('a failure that waiting cannot end', () => {
  it('is reported when the time is over, for a server that stays away', async () => {
    const { code, stderr } = await cliHere(['projects', 'ls'], {
      DATABASE_URL: 'postgres://127.0.0.1:1/boxcar',
      BOXCAR_DATABASE_WAIT_SECONDS: '1',
    });
    expect(code).toBe(1);
    expect(stderr).toMatch(/database\.waiting .*waiting 1 s for it/);
    expect(stderr).toMatch(/^boxcar: database_unavailable: /m);
  });

  it.each(['password', 'pathname'] as const)('is reported at once for a wrong %s', async (part) => {
    const url = new URL(server.url);
    url[part] = part === 'password' ? 'wrong' : '/no_such_database';
    const { code, stderr } = await cliHere(['projects', 'ls'], { DATABASE_URL: url.href });
    expect(code).toBe(1);
    expect(stderr).toMatch(/^boxcar: database_auth_failed: /);
  });

  it('is not waited for by a health check', async () => {
    const { code, stderr } = await cliHere(['health'], { DATABASE_URL: 'postgres://127.0.0.1:1/boxcar' });
    expect(code).toBe(1);
    expect(stderr).toMatch(/^boxcar: database_unavailable: /);
  });
});

/** An error message of the wire protocol: 57P03, cannot connect now. */
function startingUp(): Buffer {
  const fields = Buffer.from('SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0', 'utf8');
  const head = Buffer.alloc(5);
  head.write('E');
  head.writeInt32BE(fields.length + 4, 1);
  return Buffer.concat([head, fields]);
}
