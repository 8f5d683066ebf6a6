/**
 * The files that a server leaves on its machine for clients of the same account: its local keys, and which key belongs to which address
 * and port.
 *
 * L1  Only the account can read them: files of mode 0600 in a folder of mode 0700 that belongs to the account. Files that others could
 *     read are not trusted.
 * L2  A file is complete or absent: it is written under another name and renamed.
 */
import { randomBytes } from 'node:crypto';
import {
  chmodSync,
  closeSync,
  constants,
  fstatSync,
  mkdirSync,
  openSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { errorText, KernelError } from '@boxcar/kernel/base';
import { z } from 'zod';

const OTHERS = 0o077;
const HAS_MODES = process.platform !== 'win32';

const keySchema = z.object({
  key_id: z.string(),
  key: z.string(),
  project: z.string(),
  project_id: z.string(),
});
/** A key as stored in its file. */
export type KeptKey = z.infer<typeof keySchema>;

const serverSchema = z.object({ url: z.string(), pid: z.number(), key_file: z.string() });

const isOurs = ({ uid, mode }: { readonly uid: number; readonly mode: number }): boolean =>
  !HAS_MODES || (uid === process.geteuid?.() && (mode & OTHERS) === 0);

const broken = (folder: string, why: string, cause?: unknown): KernelError =>
  new KernelError('bad_config', {
    message: `The folder ${folder} cannot hold the local key: ${why}.`,
    next: 'Correct its owner and its rights, or set BOXCAR_DATA_DIR to a folder of this account.',
    details: { folder },
    cause,
  });

/** @throws KernelError `bad_config` when the folder belongs to another account or cannot be made. */
function openFolder(folder: string): void {
  try {
    // Other accounts may pass through the parent folders: root's embedded Postgres runs as `nobody` in a sibling of this folder.
    mkdirSync(dirname(folder), { recursive: true, mode: 0o711 });
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    const found = statSync(folder);
    if (HAS_MODES && found.uid !== process.geteuid?.()) throw new Error('it belongs to another account');
    if (!isOurs(found)) chmodSync(folder, 0o700);
  } catch (error) {
    throw broken(folder, errorText(error), error);
  }
}

function writePrivate(path: string, value: unknown): void {
  openFolder(dirname(path));
  const beside = `${path}.${randomBytes(6).toString('hex')}`;
  try {
    writeFileSync(beside, `${JSON.stringify(value)}\n`, { flag: 'wx', mode: 0o600 });
    renameSync(beside, path);
  } catch (error) {
    rmSync(beside, { force: true });
    throw broken(dirname(path), errorText(error), error);
  }
}

/** The content of a file, and whether only this account could read it. Undefined when the file is missing or its content is not valid. */
function readPrivate<T>(
  path: string,
  schema: z.ZodType<T>,
): { readonly value: T; readonly isPrivate: boolean } | undefined {
  let file: number | undefined;
  try {
    file = openSync(path, constants.O_RDONLY | (constants.O_NOFOLLOW ?? 0));
    const isPrivate = isOurs(fstatSync(file)) && isOurs(statSync(dirname(path)));
    const parsed = schema.safeParse(JSON.parse(readFileSync(file, 'utf8')));
    return parsed.success ? { value: parsed.data, isPrivate } : undefined;
  } catch {
    return undefined;
  } finally {
    if (file !== undefined) closeSync(file);
  }
}

/** The file with the state of the server that listens at this address. */
const serverFile = (folder: string, { hostname, port }: URL): string =>
  join(folder, 'servers', `${hostname.replace(/[^0-9a-z.]/g, '_')}-${port === '' ? '80' : port}.json`);

export const keyFile = (folder: string, name: string): string => join(folder, 'keys', `${name}.json`);

export const readKeptKey = (
  path: string,
): { readonly value: KeptKey; readonly isPrivate: boolean } | undefined => readPrivate(path, keySchema);

/** @throws KernelError `bad_config`. */
export const writeKeptKey = (path: string, key: KeptKey): void => writePrivate(path, key);

/** Announces which key belongs to the server at an address, until the announcement is withdrawn. @throws KernelError `bad_config`. */
export function announceServer(
  folder: string,
  { url, keyPath }: { readonly url: string; readonly keyPath: string },
): Disposable {
  const path = serverFile(folder, new URL(url));
  writePrivate(path, { url, pid: process.pid, key_file: keyPath });
  return {
    [Symbol.dispose]: () => {
      // Another server may have announced itself at the address since.
      if (readPrivate(path, serverSchema)?.value.pid === process.pid) rmSync(path, { force: true });
    },
  };
}

/** Whether a process of this account has this process id. */
function isRunning(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

/** The key of this account's server at this address. After that server has died, another account may use the port. */
export function keyOfServer(folder: string, url: URL): KeptKey | undefined {
  const server = readPrivate(serverFile(folder, url), serverSchema);
  if (server?.isPrivate !== true || !isRunning(server.value.pid)) return undefined;
  if (!URL.canParse(server.value.url) || new URL(server.value.url).host !== url.host) return undefined;
  const key = readKeptKey(server.value.key_file);
  return key?.isPrivate === true ? key.value : undefined;
}
