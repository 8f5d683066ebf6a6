/** The public address of a server. */
import { KernelError } from '@boxcar/kernel';

/**
 * Reads an address under which clients reach the server through a proxy. Removes the trailing slash.
 *
 * @throws KernelError `bad_config`.
 */
export function readPublicUrl(text: string): string {
  const url = /^https?:\/\/[^?#]+$/i.test(text) && URL.canParse(text) ? new URL(text) : null;
  const isPlain = url !== null && !url.pathname.includes('//') && `${url.username}${url.password}` === '';
  if (isPlain) return url.href.replace(/\/$/, '');
  throw new KernelError('bad_config', {
    message: `publicUrl: '${text}' must be an http:// or https:// address without a name, a password, a query and a fragment.`,
    next: 'Give the address by which others reach this server.',
    details: { field: 'publicUrl' },
  });
}
