/**
 * The URL of the same database by its TCP port, for tests and measurements only. Proxies need a port, and the kernel's limits for stuck
 * connections (`tcp_user_timeout`) do not exist on Unix sockets.
 */
export function overTcp(url: string): string {
  const changed = new URL(url);
  changed.hostname = '127.0.0.1';
  return changed.href;
}
