/**
 * Rules for the addresses of A2A agents and receivers of callbacks. An address that a third party names must not lead into the operator's
 * own network.
 *
 * P1  An address is judged in the form in which it is used, not as written: `0x7f.1`, `2130706433` and `[::ffff:127.0.0.1]` are all
 *     loopback.
 * P2  A name is judged by the address it leads to, at the moment of the connection.
 * P3  Only the operator can make exceptions: hosts, addresses or networks in the configuration.
 */
import { BlockList, isIP } from 'node:net';
import { KernelError } from '@boxcar/kernel';

/** Everything that is not public unicast: private, local, shared, reserved, multicast, and IPv6 forms that contain an IPv4 address. */
const NOT_PUBLIC: readonly string[] = [
  '0.0.0.0/8',
  '10.0.0.0/8',
  '100.64.0.0/10',
  '127.0.0.0/8',
  '169.254.0.0/16',
  '172.16.0.0/12',
  '192.0.0.0/24',
  '192.0.2.0/24',
  '192.88.99.0/24',
  '192.168.0.0/16',
  '198.18.0.0/15',
  '198.51.100.0/24',
  '203.0.113.0/24',
  '224.0.0.0/4',
  '240.0.0.0/4',
  '::/96',
  '::ffff:0:0:0/96',
  '64:ff9b::/96',
  '64:ff9b:1::/48',
  '100::/64',
  '2001::/23',
  '2001:db8::/32',
  '2002::/16',
  '3fff::/20',
  '5f00::/16',
  'fc00::/7',
  'fe80::/10',
  'fec0::/10',
  'ff00::/8',
];

const familyOf = (address: string): 'ipv4' | 'ipv6' => (isIP(address) === 6 ? 'ipv6' : 'ipv4');

/** Adds an address or a network. @returns False when the text is neither. */
function addRange(list: BlockList, range: string): boolean {
  const [address = '', bits, more] = range.split('/');
  const version = isIP(address);
  if (version === 0 || more !== undefined) return false;
  const most = version === 6 ? 128 : 32;
  const prefix = bits === undefined ? most : /^\d{1,3}$/.test(bits) ? Number(bits) : Number.NaN;
  if (!(prefix <= most)) return false;
  list.addSubnet(address, prefix, familyOf(address));
  return true;
}

const notPublic = new BlockList();
for (const range of NOT_PUBLIC) addRange(notPublic, range);

/** The host of a URL without the brackets of IPv6. */
const bareHost = (host: string): string => host.replace(/^\[|\]$/g, '').toLowerCase();

/** Names that lead to the machine itself with any resolver. */
const LOCAL_NAME = /(^|\.)localhost\.?$/;
const LOOPBACK = ['127.0.0.1', '::1'];

/** The limit of DNS. The host of a callback is indexed, and index rows have a size limit too. */
const MAX_HOST = 253;

const HOST_NAME = /^[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*$/;

/** Decides which network addresses may be called. */
export class AddressRules {
  readonly #hosts = new Set<string>();
  readonly #ranges = new BlockList();
  readonly #variable: string;

  /**
   * @param allowPrivate - Host names, addresses and networks (`10.1.0.0/16`) that are allowed although they are not public.
   * @param variable - The setting that has them. Default: the setting of targets.
   * @throws KernelError `bad_config` for an entry that is none of them.
   */
  constructor(allowPrivate: readonly string[] = [], variable?: string) {
    this.#variable = variable ?? 'BOXCAR_TARGETS_ALLOW_PRIVATE';
    for (const given of allowPrivate) {
      const word = bareHost(given.trim());
      if (addRange(this.#ranges, word)) continue;
      if (!HOST_NAME.test(word) || /^[\d.]+$/.test(word))
        throw new KernelError('bad_config', {
          message: `${variable ?? 'allowPrivate'}: '${given}' is not a host, an address or a network.`,
          details: { field: 'allowPrivate' },
        });
      this.#hosts.add(word);
    }
  }

  /** Whether a connection to `address` may be made for a URL with this host (P1, P2). */
  allows(host: string, address: string): boolean {
    const bare = bareHost(host);
    // A zone such as `%eth0` occurs only on link-local addresses.
    const plain = address.split('%')[0] ?? address;
    if (isIP(plain) === 0) return false;
    if (this.#hosts.has(bare) || this.#ranges.check(plain, familyOf(plain))) return true;
    return !notPublic.check(plain, familyOf(plain));
  }

  /**
   * Judges a URL before any request; host names are judged at the connection.
   *
   * @throws KernelError `bad_request` for another scheme, a user in the URL, a host longer than a name may be, and a literal address that
   *   is not public.
   */
  check(url: string, what: string): URL {
    const refuse = (why: string): never => {
      throw new KernelError('bad_request', {
        message: `${what} ${why}.`,
        next: `Correct the address, or have the operator allow it by ${this.#variable}.`,
      });
    };
    if (!URL.canParse(url)) return refuse('is not a URL');
    const parsed = new URL(url);
    if (parsed.protocol !== 'http:' && parsed.protocol !== 'https:')
      return refuse('has another scheme than http or https');
    if (parsed.username !== '' || parsed.password !== '') return refuse('holds a user or a password');
    const host = bareHost(parsed.hostname);
    if (host.length > MAX_HOST) return refuse('has a host that is longer than a name may be');
    if (isIP(host) !== 0 && !this.allows(host, host)) return refuse('is at an address that is not public');
    if (LOCAL_NAME.test(host) && !LOOPBACK.some((address) => this.allows(host, address)))
      return refuse('is at an address that is not public');
    return parsed;
  }
}
