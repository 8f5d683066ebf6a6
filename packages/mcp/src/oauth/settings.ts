/** The settings for tokens at `/mcp`: their issuer and their required claims. */
import { isIssuerUrl } from '@boxcar/host/config';
import { readPublicUrl } from '@boxcar/http';
import { KernelError } from '@boxcar/kernel';

export interface OAuthOptions {
  /** Exactly as in tokens. */
  readonly issuer: string;
  /** The required audience of tokens. Default: the address of `/mcp`. */
  readonly audience?: string | undefined;
  /** The address by which clients reach the server, without `/mcp`. Default: derived from `audience`. */
  readonly publicUrl?: string | undefined;
  /** The project of tokens that name none, by id or name. */
  readonly project: string;
}

export interface OAuthSettings {
  readonly issuer: string;
  /** A token needs one of them. */
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

/** The address of the server that an audience implies; undefined when the audience is not the address of an `/mcp`. */
const baseIn = (audience: string | undefined): string | undefined =>
  audience !== undefined && /^https?:\/\/[^?#]+\/mcp$/.test(audience) && URL.canParse(audience)
    ? audience.slice(0, -DOOR.length)
    : undefined;

/** The address of the resource's metadata: the path follows the well-known prefix (RFC 9728, section 3.1). */
function metadataUrlOf(resource: string): string {
  const { origin, pathname } = new URL(resource);
  return `${origin}${METADATA_PATH}${pathname}`;
}

/**
 * The address never comes from a request: otherwise a client could make tokens for another server valid here.
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
  // For clients another spelling of the address means the same server, and they name the resource: both are accepted.
  const audiences =
    baseIn(audience) === undefined && audience !== undefined ? [audience] : [audience ?? resource, resource];
  return { issuer, audiences, resource, metadataUrl: metadataUrlOf(resource), project };
}
