/**
 * The keys of an issuer. Its metadata says where they are: those of OAuth (RFC 8414), else those of OpenID.
 *
 * I1  Metadata count only when they name this issuer.
 * I2  Keys are kept for a while, and asked for again when a token has an unknown one, at most once in a while.
 * I3  An issuer that cannot be reached is an error of the server: it says nothing of the token.
 * I4  After a failure nothing is asked for a moment: requests with tokens that nobody has judged yet must not become requests to the issuer.
 */
import { KernelError, safeParse } from '@boxcar/kernel';
import {
  createRemoteJWKSet,
  customFetch,
  errors,
  type FlattenedJWSInput,
  type JWTHeaderParameters,
  type RemoteJWKSet,
} from 'jose';
import { z } from 'zod';
import { createFetchJson, type FetchJson } from './fetch-json.js';

const COOLDOWN_MS = 30_000;
const KEEP_MS = 600_000;
const PAUSE_MS = 2_000;

export interface IssuerTimes {
  /** How long an answer may take. Default: 5 s. */
  readonly askMs?: number | undefined;
  /** How long nothing is asked after a failure. Default: 2 s. */
  readonly pauseMs?: number | undefined;
  /** How long an unknown key is not looked for again. Default: 30 s. */
  readonly cooldownMs?: number | undefined;
  /** How long keys are used without being asked for again. Default: 10 minutes. */
  readonly keepMs?: number | undefined;
}

const metadataSchema = z.object({ issuer: z.string(), jwks_uri: z.url() });

/** In the order of the specification of MCP. */
export function metadataUrlsOf(issuer: string): readonly string[] {
  const { origin, pathname } = new URL(issuer);
  const path = pathname.replace(/\/$/, '');
  return [
    ...['oauth-authorization-server', 'openid-configuration'].map(
      (name) => `${origin}/.well-known/${name}${path}`,
    ),
    ...(path === '' ? [] : [`${origin}${path}/.well-known/openid-configuration`]),
  ];
}

/** The token is at fault: it names a key that the issuer does not have, or does not say which one. */
const isOfToken = (error: unknown): boolean =>
  error instanceof errors.JWKSNoMatchingKey || error instanceof errors.JWKSMultipleMatchingKeys;

export class Issuer {
  readonly #name: string;
  readonly #times: IssuerTimes;
  readonly #fetchJson: FetchJson;
  #keys: Promise<RemoteJWKSet> | undefined;
  #failed: { readonly error: unknown; readonly at: number } | undefined;

  constructor(name: string, times: IssuerTimes = {}) {
    this.#name = name;
    this.#times = times;
    const fetchJson = createFetchJson(name, times.askMs);
    this.#fetchJson = async (url) => {
      this.#checkPause();
      return await fetchJson(url);
    };
  }

  /** The key of a token. @throws KernelError `issuer_unavailable`; what `jose` says of the token. */
  readonly keyOf = async (header: JWTHeaderParameters, token: FlattenedJWSInput) => {
    this.#keys ??= this.#findKeys();
    const asked = this.#keys;
    let keys: RemoteJWKSet | undefined;
    try {
      keys = await asked;
      return await keys(header, token);
    } catch (error) {
      if (isOfToken(error)) throw error;
      // Keys that are still good stay; else the issuer may have moved them.
      if (keys?.fresh !== true && this.#keys === asked) this.#keys = undefined;
      if (this.#failed?.error !== error) this.#failed = { error, at: performance.now() };
      throw new KernelError('issuer_unavailable', { cause: error });
    }
  };

  /** The error of the pause is the same one: being told of it again does not prolong it. */
  #checkPause(): void {
    const { pauseMs = PAUSE_MS } = this.#times;
    if (this.#failed !== undefined && performance.now() - this.#failed.at < pauseMs) throw this.#failed.error;
  }

  async #findKeys(): Promise<RemoteJWKSet> {
    for (const url of metadataUrlsOf(this.#name)) {
      const found = safeParse(metadataSchema, await this.#fetchJson(url));
      if (!found.success) continue;
      const { issuer, jwks_uri: address } = found.data;
      if (issuer !== this.#name) throw new Error('the metadata are those of another issuer');
      return this.#keysAt(address);
    }
    throw new Error('the issuer has no metadata with the address of its keys');
  }

  #keysAt(address: string): RemoteJWKSet {
    const { cooldownMs = COOLDOWN_MS, keepMs = KEEP_MS } = this.#times;
    return createRemoteJWKSet(new URL(address), {
      cooldownDuration: cooldownMs,
      cacheMaxAge: keepMs,
      [customFetch]: async (url) => Response.json((await this.#fetchJson(url)) ?? null),
    });
  }
}
