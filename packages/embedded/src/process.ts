import { type SpawnOptions, spawn, spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';

/** Postgres refuses to run as root, so root starts it as `nobody`: that adds no user to the machine. */
const NOBODY = process.platform === 'darwin' ? 4_294_967_294 : 65_534;

export function isRoot(): boolean {
  return process.getuid?.() === 0;
}

/** The account that owns the data folder and runs the binaries. */
export function serverAccount(): { uid: number; gid: number } | undefined {
  return isRoot() ? { uid: NOBODY, gid: NOBODY } : undefined;
}

/** Whether a process of this id runs. A zombie does not: in a container nobody may ever collect it. */
export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
  } catch (error) {
    return codeOf(error) === 'EPERM';
  }
  return statOf(pid)?.state !== 'Z';
}

/** When the process started, in a form that only serves comparison; tells a reused id from the old one. */
export function startOf(pid: number): string {
  return statOf(pid)?.start ?? '0';
}

/** The command line of a running process, or `undefined` where the system does not tell. */
export function commandOf(pid: number): string | undefined {
  if (process.platform === 'linux') {
    try {
      return readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ').trim();
    } catch {
      return undefined;
    }
  }
  if (process.platform === 'win32') return undefined;
  const ps = spawnSync('ps', ['-p', String(pid), '-o', 'command='], { encoding: 'utf8' });
  return ps.status === 0 ? ps.stdout.trim() : undefined;
}

/** Runs a program to its end. A program that cannot be started is a result too: `code` null and the reason as output. */
export async function run(
  file: string,
  args: readonly string[],
  options: SpawnOptions,
): Promise<{ code: number | null; output: string }> {
  return new Promise((settle) => {
    let output = '';
    const child = spawn(file, args, { ...options, stdio: ['ignore', 'pipe', 'pipe'] });
    child.stdout?.on('data', (chunk: Buffer) => {
      output += chunk.toString();
    });
    child.stderr?.on('data', (chunk: Buffer) => {
      output += chunk.toString();
    });
    child.on('error', (error) => settle({ code: null, output: error.message }));
    child.on('close', (code) => settle({ code, output }));
  });
}

/** The `code` of a system error (`ENOENT`, …) or of a Postgres error; `undefined` for anything else. */
export function codeOf(error: unknown): string | undefined {
  if (!(error instanceof Error) || !('code' in error)) return undefined;
  return typeof error.code === 'string' ? error.code : undefined;
}

function statOf(pid: number): { state: string; start: string } | undefined {
  if (process.platform !== 'linux') return undefined;
  let line: string;
  try {
    line = readFileSync(`/proc/${pid}/stat`, 'utf8');
  } catch {
    return undefined;
  }
  // The second field is the command in brackets and may itself hold blanks and brackets.
  const fields = line.slice(line.lastIndexOf(')') + 2).split(' ');
  return { state: fields[0] ?? '', start: fields[19] ?? '0' };
}
