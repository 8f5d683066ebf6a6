import { type SpawnOptions, spawn, spawnSync } from 'node:child_process';
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { basename } from 'node:path';

/** Postgres refuses to run as root, so root starts it as `nobody`, which adds no user to the machine. */
const NOBODY = process.platform === 'darwin' ? 4_294_967_294 : 65_534;

export function isRoot(): boolean {
  return process.getuid?.() === 0;
}

/** The account that owns the data folder and runs the binaries. */
export function serverAccount(): { uid: number; gid: number } | undefined {
  return isRoot() ? { uid: NOBODY, gid: NOBODY } : undefined;
}

/** Whether a process of this id runs. A zombie counts as ended, because in a container it may never be reaped. */
export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
  } catch (error) {
    return codeOf(error) === 'EPERM';
  }
  return statOf(pid)?.state !== 'Z';
}

/** The start time of a process, in a form that can only be compared. It tells a reused process id from the old one. */
export function startOf(pid: number): string {
  return statOf(pid)?.start ?? '0';
}

/** The PID namespace of this process. Ids of another namespace have no meaning here. Empty on systems without namespaces. */
export function pidNamespace(): string {
  try {
    return /\d+/.exec(readlinkSync('/proc/self/ns/pid'))?.[0] ?? '';
  } catch {
    return '';
  }
}

/** The command line of a running process, or `undefined` where the system does not report it. */
export function commandOf(pid: number): string | undefined {
  if (process.platform === 'linux') return argumentsOf(pid)?.join(' ').trim();
  if (process.platform === 'win32') return undefined;
  const ps = spawnSync('ps', ['-ww', '-p', String(pid), '-o', 'command='], { encoding: 'utf8' });
  return ps.status === 0 ? ps.stdout.trim() : undefined;
}

/** The command line as words. Outside Linux, an argument that contains blanks becomes several words. */
export function argumentsOf(pid: number): readonly string[] | undefined {
  if (process.platform !== 'linux') return commandOf(pid)?.split(/\s+/);
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0');
  } catch {
    return undefined;
  }
}

/** The description of a process in messages: its id and the beginning of its command line. */
export function describeProcess(pid: number): string {
  const command = commandOf(pid);
  return command === undefined || command === ''
    ? `process ${pid}`
    : `process ${pid} (${command.length > 200 ? `${command.slice(0, 200)} …` : command})`;
}

/** The ids of all processes that this account can see; none when the system does not report them. */
export function listProcesses(): readonly number[] {
  if (process.platform === 'win32') return [];
  if (process.platform === 'linux')
    return readdirSync('/proc').flatMap((name) => (/^\d+$/.test(name) ? Number(name) : []));
  const ps = spawnSync('ps', ['-axo', 'pid='], { encoding: 'utf8' });
  return ps.stdout.split('\n').flatMap((line) => (line.trim() === '' ? [] : Number(line)));
}

/**
 * Runs a program to its end, or for at most `limitMs`. It is killed when this process exits earlier. If the program cannot be started or
 * does not end, `code` is null and the last line of the output is the reason.
 */
export async function run(
  file: string,
  args: readonly string[],
  { limitMs, ...options }: SpawnOptions & { readonly limitMs: number },
): Promise<{ code: number | null; output: string }> {
  return new Promise((settle) => {
    let output = '';
    const child = spawn(file, args, { ...options, stdio: ['ignore', 'pipe', 'pipe'] });
    const kill = () => child.kill('SIGKILL');
    process.once('exit', kill);
    const limit = setTimeout(() => {
      kill();
      // Child processes of the program may keep its output open.
      child.stdout?.destroy();
      child.stderr?.destroy();
      settle({ code: null, output: `${output}\n${basename(file)} did not end within ${limitMs / 1_000} s` });
    }, limitMs);
    const end = () => {
      clearTimeout(limit);
      process.removeListener('exit', kill);
    };
    child.once('close', end);
    child.once('error', end);
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
  // The second field is the command in brackets, and may itself contain blanks and brackets.
  const fields = line.slice(line.lastIndexOf(')') + 2).split(' ');
  return { state: fields[0] ?? '', start: fields[19] ?? '0' };
}
