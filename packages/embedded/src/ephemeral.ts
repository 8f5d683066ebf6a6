/** Temporary folders of servers for tests, and the removal of those that killed test runs have left. */

import { lstatSync, mkdtempSync, writeFileSync } from 'node:fs';
import { readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { errorText } from '@boxcar/kernel/base';
import { closedAncestor, EPHEMERAL_MARK } from './cluster.js';
import { runningPostmaster } from './postmaster.js';
import { isRoot } from './process.js';
import { stopServer } from './stop-server.js';
import { hasUsers } from './users.js';

const EPHEMERAL_PREFIX = 'boxcar-postgres-';

/** A temporary folder that the server's account can enter, independent of TMPDIR. */
function ephemeralHome(): string {
  return (
    [tmpdir(), '/tmp', '/var/tmp'].find((home) => !isRoot() || closedAncestor(home) === undefined) ?? tmpdir()
  );
}

export function makeEphemeralFolder(): string {
  const folder = mkdtempSync(join(ephemeralHome(), EPHEMERAL_PREFIX)); // prepareFolder opens it for the server's account.
  writeFileSync(join(folder, EPHEMERAL_MARK), '', { mode: 0o600 });
  return folder;
}

/**
 * Whether `makeEphemeralFolder` made this folder for this account, long enough ago for its process to have joined, and no process uses it.
 */
function isLeftBehind(folder: string): boolean {
  const account = process.getuid?.();
  const [stats, mark] = [folder, join(folder, EPHEMERAL_MARK)].map((path) =>
    lstatSync(path, { throwIfNoEntry: false }),
  );
  return (
    stats?.isDirectory() === true &&
    mark?.isFile() === true &&
    stats.uid === account &&
    mark.uid === account &&
    Date.now() - stats.mtimeMs >= 60_000 &&
    !hasUsers(folder)
  );
}

/**
 * Stops and removes the servers that killed test runs have left. All accounts may write to the parent folder, so names are not trusted and
 * links are not followed. A failure with one folder does not stop the others or the start.
 */
export async function sweepEphemeral(log: (line: string) => void): Promise<void> {
  const home = ephemeralHome();
  const names = await readdir(home).catch(() => []);
  for (const name of names.filter((one) => one.startsWith(EPHEMERAL_PREFIX))) {
    const folder = join(home, name);
    try {
      if (!isLeftBehind(folder)) continue;
      const running = runningPostmaster(join(folder, 'cluster', 'data'));
      if (running) await stopServer(running.pid);
      await rm(folder, { recursive: true, force: true });
      log(`removed ${folder}, which a killed process had left`);
    } catch (error) {
      log(`could not remove ${folder}: ${errorText(error)}`);
    }
  }
}
