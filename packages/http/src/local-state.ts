/**
 * What a server leaves on its machine for clients of the same account: its local keys, and which of them is for which address and port.
 *
 * L1  Only the account reads it: files of mode 0600 in a folder of mode 0700 that belongs to the account. What others could read is not
 *     trusted.
 * L2  A file is whole or not there: it is written under another name and renamed.
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
/** A key as its file has it. */
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

/** @throws KernelError `bad_config` for a folder of another account, and one that cannot be made. */
function openFolder(folder: string): void {
  try {
    // Other accounts may pass through the folders above: the embedded Postgres of root runs as `nobody` in one beside this.
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

/** What a file says, and whether only this account could read it. Undefined: there is none, or it does not say what it should. */
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

/** @param url - With the address that the server listens on. */
const serverFile = (folder: string, { hostname, port }: URL): string =>
  join(folder, 'servers', `${hostname.replace(/[^0-9a-z.]/g, '_')}-${port === '' ? '80' : port}.json`);

export const keyFile = (folder: string, name: string): string => join(folder, 'keys', `${name}.json`);

export const readKeptKey = (
  path: string,
): { readonly value: KeptKey; readonly isPrivate: boolean } | undefined => readPrivate(path, keySchema);

/** @throws KernelError `bad_config`. */
export const writeKeptKey = (path: string, key: KeptKey): void => writePrivate(path, key);

/** Says which key is for the server at an address, until that is taken back. @throws KernelError `bad_config`. */
export function announceServer(
  folder: string,
  { url, keyPath }: { readonly url: string; readonly keyPath: string },
): Disposable {
  const path = serverFile(folder, new URL(url));
  writePrivate(path, { url, pid: process.pid, key_file: keyPath });
  return {
    [Symbol.dispose]: () => {
      // Another server may have the address by now.
      if (readPrivate(path, serverSchema)?.value.pid === process.pid) rmSync(path, { force: true });
    },
  };
}

/** Whether a process of this account has this number. */
function isRunning(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

/** The key of the server that this account has at this address. After the death of that server, somebody else may have the port. */
export function keyOfServer(folder: string, url: URL): KeptKey | undefined {
  const server = readPrivate(serverFile(folder, url), serverSchema);
  if (server?.isPrivate !== true || !isRunning(server.value.pid)) return undefined;
  if (!URL.canParse(server.value.url) || new URL(server.value.url).host !== url.host) return undefined;
  const key = readKeptKey(server.value.key_file);
  return key?.isPrivate === true ? key.value : undefined;
}
