/** Who gives tokens for `/mcp`, and what they must say. */
import { isIssuerUrl } from '@boxcar/host/config';
import { readPublicUrl } from '@boxcar/http';
import { KernelError } from '@boxcar/kernel';

export interface OAuthOptions {
  /** As it is in tokens, to the letter. */
  readonly issuer: string;
  /** What tokens must be for. Default: the address of `/mcp`. */
  readonly audience?: string | undefined;
  /** The address by which clients reach the server, without `/mcp`. Default: by `audience`. */
  readonly publicUrl?: string | undefined;
  /** Of tokens that name none, by id or name. */
  readonly project: string;
}

export interface OAuthSettings {
  readonly issuer: string;
  /** Any of them. */
  readonly audiences: readonly string[];
  /** The address of `/mcp`. */
  readonly resource: string;
  readonly metadataUrl: string;
  readonly project: string;
}

export const METADATA_PATH = '/.well-known/oauth-protected-resource';
const DOOR = '/mcp';

const refuse = (message: string, next: string): never => {
  throw new KernelError('bad_config', { message, next, details: { field: 'oauth' } });
};

/** The address of the server that an audience names; undefined when it is not that of a `/mcp`. */
const baseIn = (audience: string | undefined): string | undefined =>
  audience !== undefined && /^https?:\/\/[^?#]+\/mcp$/.test(audience) && URL.canParse(audience)
    ? audience.slice(0, -DOOR.length)
    : undefined;

/** Its address is made of that of the resource: the path comes after the well-known one (RFC 9728, section 3.1). */
function metadataUrlOf(resource: string): string {
  const { origin, pathname } = new URL(resource);
  return `${origin}${METADATA_PATH}${pathname}`;
}

/**
 * The address is never taken from a request: tokens for another server must not be valid here because a client says so.
 *
 * @throws KernelError `bad_config`.
 */
export function readOAuth({ issuer, audience, publicUrl, project }: OAuthOptions): OAuthSettings {
  if (!isIssuerUrl(issuer))
    refuse(
      'BOXCAR_OAUTH_ISSUER: must be an https:// URL, or http:// on this machine, without a query and a fragment.',
      'Give the issuer as it is in its tokens.',
    );
  const base =
    publicUrl ??
    baseIn(audience) ??
    refuse(
      'BOXCAR_OAUTH_ISSUER needs the address by which clients reach /mcp.',
      'Give it with --public-url, or set BOXCAR_OAUTH_AUDIENCE to it.',
    );
  const plain = readPublicUrl(base);
  if (plain.endsWith(DOOR))
    refuse(
      `publicUrl: '${base}' ends in ${DOOR}, which is added to it.`,
      `Give the address without ${DOOR}.`,
    );
  const resource = `${plain}${DOOR}`;
  // An address that is written in another way is the same one to clients, which name the resource.
  const audiences =
    baseIn(audience) === undefined && audience !== undefined ? [audience] : [audience ?? resource, resource];
  return { issuer, audiences, resource, metadataUrl: metadataUrlOf(resource), project };
}
