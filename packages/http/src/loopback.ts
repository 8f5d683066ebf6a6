/** Decides which addresses are reachable only from this machine. */
import { lookup as systemLookup } from 'node:dns/promises';
import { BlockList, isIP } from 'node:net';
import { errorText, KernelError } from '@boxcar/kernel/base';

const LOOPBACK = new BlockList();
LOOPBACK.addSubnet('127.0.0.0', 8, 'ipv4');
LOOPBACK.addAddress('::1', 'ipv6');

const bare = (host: string): string =>
  host.startsWith('[') && host.endsWith(']') ? host.slice(1, -1) : host;

/** False for names, which must be resolved first. */
export function isLoopbackAddress(host: string): boolean {
  const address = bare(host);
  const version = isIP(address);
  return version !== 0 && LOOPBACK.check(address, version === 4 ? 'ipv4' : 'ipv6');
}

/** Converts an IPv4 address in IPv6 notation to IPv4. */
export const plainAddress = (address: string): string =>
  address.toLowerCase().startsWith('::ffff:') && isIP(address.slice(7)) === 4 ? address.slice(7) : address;

/** The address on which a server listens. */
export interface Binding {
  /** The host as it was given. */
  readonly host: string;
  /** The server listens on this address, which was checked, and not on the name. */
  readonly address: string;
  readonly isLoopback: boolean;
}

/** The default port of `boxcar serve`. */
export const DEFAULT_PORT = 7420;
export const DEFAULT_HOST = '127.0.0.1';

export type Lookup = (host: string) => Promise<readonly { readonly address: string }[]>;

/**
 * Resolves the address of a host. A name counts as loopback when all its addresses are loopback.
 *
 * @throws KernelError `bad_config` for a name that cannot be resolved.
 */
export async function resolveBinding(
  host: string,
  lookup: Lookup = (name) => systemLookup(name, { all: true }),
): Promise<Binding> {
  const given = bare(host);
  const found = isIP(given) === 0 ? await resolve(given, lookup) : [given];
  const [address] = found;
  if (address === undefined) throw unresolved(host, 'it has no address');
  return { host, address, isLoopback: found.every(isLoopbackAddress) };
}

/** Whether a host is reachable only from this machine. @throws KernelError as `resolveBinding`. */
export const isLoopbackHost = async (host: string = DEFAULT_HOST): Promise<boolean> =>
  (await resolveBinding(host)).isLoopback;

async function resolve(name: string, lookup: Lookup): Promise<readonly string[]> {
  try {
    return (await lookup(name)).map(({ address }) => address);
  } catch (error) {
    throw unresolved(name, errorText(error));
  }
}

const unresolved = (host: string, why: string): KernelError =>
  new KernelError('bad_config', {
    message: `host: '${host}' cannot be resolved: ${why}.`,
    next: 'Give an address of this machine, such as 127.0.0.1.',
    details: { field: 'host' },
  });
