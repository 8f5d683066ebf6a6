/**
 * The keys of an issuer. Their address is in its metadata: the metadata of OAuth (RFC 8414), else of OpenID.
 *
 * I1  Metadata are accepted only when they name this issuer.
 * I2  Keys are cached for a limited time. An unknown key id in a token causes a new request, at most once per cooldown.
 * I3  An unreachable issuer is an error of the server, since it says nothing about the token. A key that is not usable counts only
 *     against the token, since any token can name it.
 * I4  After a failure no request is made for a time that grows with each failure: requests with unverified tokens must not become
 *     requests to the issuer.
 */
import { KernelError, safeParse } from '@boxcar/kernel';
import {
  createRemoteJWKSet,
  customFetch,
  type FlattenedJWSInput,
  type JWTHeaderParameters,
  type RemoteJWKSet,
} from 'jose';
import { z } from 'zod';
import { createFetchJson, type FetchJson } from './fetch-json.js';

const COOLDOWN_MS = 5_000;
const KEEP_MS = 600_000;
const PAUSE_MS = 2_000;
const MAX_PAUSE_MS = 60_000;

export interface IssuerTimes {
  /** The time limit of an answer. Default: 5 s. */
  readonly askMs?: number | undefined;
  /** The pause after a first failure. Default: 2 s; after further failures it grows to at most a minute. */
  readonly pauseMs?: number | undefined;
  /** The time after which an unknown key is looked up again. Default: 5 s. */
  readonly cooldownMs?: number | undefined;
  /** How long keys are used before they are fetched again. Default: 10 minutes. */
  readonly keepMs?: number | undefined;
}

const metadataSchema = z.object({ issuer: z.string(), jwks_uri: z.url() });

const keysSchema = z.object({ keys: z.array(z.record(z.string(), z.unknown())) });

/** In the order that the MCP specification defines. */
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

/** The issuer was not reached, or its answer is not usable. */
class IssuerFailed extends Error {}
const causeIn = (error: unknown): string => (error instanceof Error ? error.message : String(error));

export class Issuer {
  readonly #name: string;
  readonly #times: IssuerTimes;
  readonly #fetchJson: FetchJson;
  #keys: Promise<RemoteJWKSet> | undefined;
  #failed: { readonly error: IssuerFailed; readonly at: number; readonly pauseMs: number } | undefined;

  constructor(name: string, times: IssuerTimes = {}) {
    this.#name = name;
    this.#times = times;
    this.#fetchJson = createFetchJson(name, times.askMs);
  }

  /**
   * The key of a token.
   *
   * @throws KernelError `issuer_unavailable`; the error of `jose` about the token, or about the key that it names.
   */
  readonly keyOf = async (
    header: JWTHeaderParameters,
    token: FlattenedJWSInput,
  ): ReturnType<RemoteJWKSet> => {
    this.#keys ??= this.#findKeys();
    const asked = this.#keys;
    let keys: RemoteJWKSet | undefined;
    try {
      keys = await asked;
      return await keys(header, token);
    } catch (error) {
      if (!(error instanceof IssuerFailed)) throw error;
      // Fresh keys stay. Older keys are dropped, since the issuer may have moved them.
      if (keys?.fresh !== true && this.#keys === asked) this.#keys = undefined;
      throw new KernelError('issuer_unavailable', { cause: error });
    }
  };

  /** Runs the work, unless there is a pause. During a pause the first error is thrown again, which does not prolong the pause. */
  async #ask<T>(work: () => Promise<T>): Promise<T> {
    const { pauseMs = PAUSE_MS } = this.#times;
    const failed = this.#failed;
    if (failed !== undefined && performance.now() - failed.at < failed.pauseMs) throw failed.error;
    try {
      const found = await work();
      this.#failed = undefined;
      return found;
    } catch (error) {
      this.#failed = {
        error: new IssuerFailed(causeIn(error), { cause: error }),
        at: performance.now(),
        pauseMs: failed === undefined ? pauseMs : Math.min(failed.pauseMs * 2, MAX_PAUSE_MS),
      };
      throw this.#failed.error;
    }
  }

  #findKeys(): Promise<RemoteJWKSet> {
    return this.#ask(async () => {
      let thrown: unknown;
      for (const url of metadataUrlsOf(this.#name)) {
        try {
          const found = safeParse(metadataSchema, await this.#fetchJson(url));
          if (found.success && found.data.issuer === this.#name) return this.#keysAt(found.data.jwks_uri);
          if (found.success) thrown ??= new Error('the metadata are those of another issuer');
        } catch (error) {
          thrown ??= error;
        }
      }
      throw thrown ?? new Error('the issuer has no metadata with the address of its keys');
    });
  }

  #keysAt(address: string): RemoteJWKSet {
    const { cooldownMs = COOLDOWN_MS, keepMs = KEEP_MS } = this.#times;
    return createRemoteJWKSet(new URL(address), {
      cooldownDuration: cooldownMs,
      cacheMaxAge: keepMs,
      [customFetch]: (url) =>
        this.#ask(async () => {
          const found = safeParse(keysSchema, await this.#fetchJson(url));
          if (!found.success) throw new Error('the address in the metadata has no keys');
          return Response.json(found.data);
        }),
    });
  }
}
