/**
 * The address of the Redis that holds the queues, from its URL. One server: `redis://…`. A cluster:
 * `redis+cluster://<user>:<password>@<host>:<port>,<host>:<port>/<name>`. The name separates installations that share
 * the cluster, as the database number does on one server.
 */

export interface RedisNode {
  readonly host: string;
  readonly port: number;
}

export interface RedisServerAddress {
  readonly kind: 'server';
  readonly url: string;
  readonly nodes: readonly [RedisNode];
}

export interface RedisClusterAddress {
  readonly kind: 'cluster';
  /** Any nodes of the cluster; the client learns the others from them. */
  readonly nodes: readonly RedisNode[];
  readonly username: string | undefined;
  readonly password: string | undefined;
  readonly isTls: boolean;
  readonly name: string;
}

export type RedisAddress = RedisServerAddress | RedisClusterAddress;

export type RedisUrlResult =
  | { readonly address: RedisAddress; readonly problem?: undefined }
  | { readonly problem: string };

const DEFAULT_PORT = 6379;
const DEFAULT_NAME = 'boxcar';
const NOT_A_URL = 'must be a redis://, rediss://, redis+cluster:// or rediss+cluster:// URL';
const BAD_NODES =
  'must name the nodes of the cluster as host:port with a comma between them (redis+cluster://a:6379,b:6379)';
const BAD_NAME =
  'must end after the nodes of the cluster, or in a name that begins with a letter (/staging): a cluster has no numbered databases';

const CLUSTER_URL = /^redis(s?)\+cluster:\/\/(?:([^@/?#]*)@)?([^@/?#]*)(?:\/([^/?#]*))?$/;
const NODE = /^(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::(\d{1,5}))?$/i;
const NAME = /^[a-z][a-z0-9_-]{0,63}$/i;

function toNode(text: string): RedisNode | undefined {
  const [, ipv6, name, digits] = NODE.exec(text) ?? [];
  const host = ipv6 ?? name;
  const port = digits === undefined ? DEFAULT_PORT : Number(digits);
  return host === undefined || port < 1 || port > 65_535 ? undefined : { host, port };
}

/** Undefined for text that is not percent-encoded correctly. */
function decode(text: string): string | undefined {
  try {
    return decodeURIComponent(text);
  } catch {
    return undefined;
  }
}

function readCluster(url: string): RedisUrlResult {
  const match = CLUSTER_URL.exec(url);
  if (match === null) return { problem: NOT_A_URL };
  const [, tls, userInfo = '', list = '', name = ''] = match;
  const nodes = list.split(',').map(toNode);
  if (!nodes.every((node) => node !== undefined)) return { problem: BAD_NODES };
  if (name !== '' && !NAME.test(name)) return { problem: BAD_NAME };
  const colon = userInfo.indexOf(':');
  const username = decode(colon < 0 ? userInfo : userInfo.slice(0, colon));
  const password = decode(colon < 0 ? '' : userInfo.slice(colon + 1));
  if (username === undefined || password === undefined) return { problem: NOT_A_URL };
  return {
    address: {
      kind: 'cluster',
      nodes,
      username: username === '' ? undefined : username,
      password: password === '' ? undefined : password,
      isTls: tls === 's',
      name: name === '' ? DEFAULT_NAME : name,
    },
  };
}

function readServer(url: string): RedisUrlResult {
  if (!URL.canParse(url)) return { problem: NOT_A_URL };
  const { protocol, hostname, port } = new URL(url);
  if (protocol !== 'redis:' && protocol !== 'rediss:') return { problem: NOT_A_URL };
  const node = { host: hostname, port: port === '' ? DEFAULT_PORT : Number(port) };
  return { address: { kind: 'server', url, nodes: [node] } };
}

/**
 * Reads the URL. The problem completes a sentence that begins with the name of the setting. It does not repeat the URL,
 * which may contain a password.
 */
export function readRedisUrl(url: string): RedisUrlResult {
  return /^rediss?\+cluster:/.test(url) ? readCluster(url) : readServer(url);
}

/** The URL of a cluster with this password, percent-encoded, unless the URL already has a password. */
export function withClusterPassword(url: string, password: string): string {
  const [, scheme = '', userInfo = '', rest = ''] = /^([^/]*\/\/)(?:([^@/?#]*)@)?(.*)$/.exec(url) ?? [];
  const [username = '', known = ''] = userInfo.split(':');
  return known === '' ? `${scheme}${username}:${encodeURIComponent(password)}@${rest}` : url;
}

/** The nodes in the form that messages show. */
export function redisHosts({ nodes }: RedisAddress): string {
  return nodes
    .map(({ host, port }) =>
      host.includes(':') && !host.startsWith('[') ? `[${host}]:${port}` : `${host}:${port}`,
    )
    .join(', ');
}
