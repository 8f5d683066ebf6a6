/** The address of an issuer of tokens, from the configuration. */

const LOOPBACK_HOST = /^(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])$/;

/** Whether a URL is a loopback address by its spelling, without name resolution. */
export const isLoopbackUrl = (url: URL): boolean => LOOPBACK_HOST.test(url.hostname);

/** HTTPS, or HTTP on this machine; without a user, a query or a fragment (RFC 8414). */
export function isIssuerUrl(text: string): boolean {
  if (!URL.canParse(text)) return false;
  const url = new URL(text);
  const isSafe = url.protocol === 'https:' || (url.protocol === 'http:' && isLoopbackUrl(url));
  return isSafe && /^https?:\/\/[^?#\s"\\]+$/.test(text) && `${url.username}${url.password}` === '';
}
