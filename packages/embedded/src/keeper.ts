/** The program of a keeper (keep.ts): `keeper.js <folder> <process id of the server> <its start>`. */
// Installed before any other module is loaded: a keeper that dies of a signal without a listener leaves its server running.
const stop = new AbortController();
for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) process.on(signal, () => stop.abort());

const { existsSync } = await import('node:fs');
const { join } = await import('node:path');
const { untilUnused } = await import('./keep.js');
const { runningPostmaster } = await import('./postmaster.js');
const { commandOf, startOf } = await import('./process.js');
const { stopServer } = await import('./stop-server.js');
const { Membership } = await import('./users.js');

const [folder = '', serverPid = '', serverStart = ''] = process.argv.slice(2);
const server = Number(serverPid);
const users = join(folder, 'users');
const membership = existsSync(users) ? Membership.joinKeeper(folder, process.pid) : undefined;
await untilUnused(folder, stop.signal);
if (membership !== undefined && existsSync(users))
  await membership.leave(async () => {
    const running = runningPostmaster(join(folder, 'cluster', 'data'));
    if (running !== undefined) await stopServer(running.pid);
  });
// The folder was deleted while the server ran. The process id may belong to another process by now.
else if (startOf(server) === serverStart && commandOf(server)?.includes('postgres') === true)
  await stopServer(server);

export {};
