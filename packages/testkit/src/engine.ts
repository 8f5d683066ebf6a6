import { accessSync, constants } from 'node:fs';
import { connect } from 'node:net';
import { delimiter, join } from 'node:path';

/** The full path of a program, or `undefined` when it is not on the search path. */
export function findProgram(name: string): string | undefined {
  const suffix = process.platform === 'win32' ? '.exe' : '';
  return (process.env.PATH ?? '')
    .split(delimiter)
    .map((folder) => join(folder, name + suffix))
    .find((path) => {
      try {
        accessSync(path, constants.X_OK);
        return true;
      } catch {
        return false;
      }
    });
}

/** Whether a container engine answers. Checks the socket first, because loading the container library takes a second. */
export async function hasContainerEngine(): Promise<boolean> {
  const host = process.env.DOCKER_HOST ?? 'unix:///var/run/docker.sock';
  if (host.startsWith('unix://') && !(await answers(host.slice('unix://'.length)))) return false;
  const { getContainerRuntimeClient } = await import('testcontainers');
  try {
    await getContainerRuntimeClient();
    return true;
  } catch {
    return false;
  }
}

function answers(socketPath: string): Promise<boolean> {
  return new Promise((settle) => {
    const socket = connect(socketPath);
    socket.setTimeout(1_000, () => socket.destroy(new Error('timeout')));
    socket.once('connect', () => {
      socket.destroy();
      settle(true);
    });
    socket.once('error', () => settle(false));
  });
}
