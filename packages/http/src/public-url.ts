/** By which address others reach a server. */
import { KernelError } from '@boxcar/kernel';

/**
 * An address that clients reach through a proxy, without the slash at its end.
 *
 * @throws KernelError `bad_config`.
 */
export function readPublicUrl(text: string): string {
  const url = URL.canParse(text) ? new URL(text) : null;
  const isPlain =
    url !== null && url.search === '' && url.hash === '' && `${url.username}${url.password}` === '';
  if (isPlain && ['http:', 'https:'].includes(url.protocol)) return url.href.replace(/\/$/, '');
  throw new KernelError('bad_config', {
    message: `publicUrl: '${text}' must be an http:// or https:// address without a name, a password, a query and a fragment.`,
    next: 'Give the address by which other platforms reach this server.',
    details: { field: 'publicUrl' },
  });
}
