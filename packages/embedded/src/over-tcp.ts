/**
 * The same connection as the URL of the server, by its port, for tests and measurements alone: proxies stand in front of a port, and the kernel's limits for
 * connections that are stuck (`tcp_user_timeout`) do not exist on Unix sockets.
 */
export function overTcp(url: string): string {
  const changed = new URL(url);
  changed.hostname = '127.0.0.1';
  return changed.href;
}
