/** The program of a keeper (keep.ts): `keeper.js <folder> <process id of the server> <milliseconds>`. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { untilUnused } from './keep.js';
import { runningPostmaster } from './postmaster.js';
import { commandOf } from './process.js';
import { stopServer } from './stop-server.js';
import { Membership } from './users.js';

const [folder = '', serverPid = '', keepMs = '0'] = process.argv.slice(2);
const stop = new AbortController();
for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => stop.abort());

const users = join(folder, 'users');
const membership = existsSync(users) ? Membership.joinKeeper(folder, process.pid) : undefined;
await untilUnused(folder, Number(keepMs), stop.signal);
if (membership !== undefined && existsSync(users))
  await membership.leave(async () => {
    const running = runningPostmaster(join(folder, 'cluster', 'data'));
    if (running !== undefined) await stopServer(running.pid);
  });
// Its folder was deleted under it.
else if (commandOf(Number(serverPid))?.includes('postgres') === true) await stopServer(Number(serverPid));
