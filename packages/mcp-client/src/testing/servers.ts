/** Servers for tests: the official ones, and a raw one that misbehaves. */
import { mkdtempSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const pathOf = (relative: string): string => fileURLToPath(new URL(relative, import.meta.url));
const official = (name: string): string =>
  pathOf(`../../node_modules/@modelcontextprotocol/${name}/dist/index.js`);

export const everything = () => ({
  command: process.execPath,
  args: [official('server-everything'), 'stdio'],
});

export const filesystem = (folder: string) => ({
  command: process.execPath,
  args: [official('server-filesystem'), folder],
});

export const newFolder = (): string => mkdtempSync(join(tmpdir(), 'boxcar-mcp-'));

export interface NotedServer {
  readonly entry: { readonly command: string; readonly args: readonly string[] };
  /** The events of the server, one line each. */
  readonly notes: () => readonly string[];
  /** The processes that were started, in order. */
  readonly pids: () => readonly number[];
}

/** @param argsFor - Returns Node's arguments for the file that receives the notes. */
function noted(argsFor: (file: string) => readonly string[]): NotedServer {
  const file = join(newFolder(), 'notes');
  const notes = (): readonly string[] => {
    try {
      return readFileSync(file, 'utf8').trim().split('\n');
    } catch {
      return [];
    }
  };
  return {
    entry: { command: process.execPath, args: argsFor(file) },
    notes,
    pids: () =>
      notes().flatMap((line) => (line.startsWith('start ') ? [Number(line.slice('start '.length))] : [])),
  };
}

/** @param mode - Its behavior: see the file of the server. */
export const rawServer = (mode: string): NotedServer =>
  noted((file) => [pathOf('../fixtures/raw-server.mjs'), mode, file]);

/** One of the official servers, unchanged; its processes and the calls that reach it are recorded. */
export const notedServer = ({ args }: { readonly args: readonly string[] }): NotedServer =>
  noted((file) => [pathOf('../fixtures/noted-server.mjs'), file, ...args]);

export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}
