/**
 * Documents of an issuer.
 *
 * J1  A document is asked for within 5 s, has at most 256 KiB, and is where its address says: no redirect is followed.
 * J2  Connections lead to public addresses, unless the issuer is on this machine.
 * J3  After a failure nothing is asked for a moment: requests with tokens that nobody has judged yet must not become requests to the issuer.
 */
import { AddressRules, createFetch } from '@boxcar/adapters/wire';
import { isLoopbackUrl } from '@boxcar/host/config';

const ASK_MS = 5_000;
const PAUSE_MS = 2_000;
const MAX_BYTES = 256 * 1024;
const THIS_MACHINE = ['127.0.0.0/8', '::1'];

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

/** The document, or undefined when the issuer has none there. */
export type FetchJson = (url: string) => Promise<unknown>;

async function readLimited({ body }: Response): Promise<string> {
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of body ?? []) {
    bytes += chunk.byteLength;
    if (bytes > MAX_BYTES) throw new Error(`the document has more than ${MAX_BYTES} bytes`);
    chunks.push(chunk);
  }
  return new TextDecoder('utf-8', { fatal: true }).decode(Buffer.concat(chunks));
}

/** Only an issuer on this machine is asked without TLS. */
function checkScheme(url: string, isHere: boolean): void {
  const { protocol } = new URL(url);
  if (protocol !== 'https:' && !isHere) throw new Error('the address of a document is not https');
}

export function createFetchJson(
  issuer: string,
  { askMs = ASK_MS, pauseMs = PAUSE_MS }: IssuerTimes,
): FetchJson {
  const isHere = isLoopbackUrl(new URL(issuer));
  const fetch = createFetch(new AddressRules(isHere ? THIS_MACHINE : []), {
    what: 'The address of the issuer',
  });
  let failed: { readonly error: unknown; readonly at: number } | undefined;

  async function ask(url: string): Promise<unknown> {
    checkScheme(url, isHere);
    const answer = await fetch(url, {
      headers: { accept: 'application/json' },
      signal: AbortSignal.timeout(askMs),
    });
    if (answer.status === 200) return JSON.parse(await readLimited(answer)) as unknown;
    await answer.body?.cancel();
    if (answer.status === 404) return undefined;
    throw new Error(`the issuer answered ${answer.status}`);
  }

  return async (url) => {
    if (failed !== undefined && performance.now() - failed.at < pauseMs) throw failed.error;
    failed = undefined;
    try {
      return await ask(url);
    } catch (error) {
      failed = { error, at: performance.now() };
      throw error;
    }
  };
}
