/**
 * Fetches the JSON documents of an issuer.
 *
 * J1  A request may take 5 s, a document may have 256 KiB, and redirects are not followed.
 * J2  Requests use TLS, unless the issuer is on this machine. The address may be private: the operator that configured the issuer trusts
 *     it with far more than an address.
 * J3  An answer without a document, or one that is not JSON, is not a failure: the metadata may be at another address.
 */
import { isLoopbackUrl } from '@boxcar/host/config';

const ASK_MS = 5_000;
const MAX_BYTES = 256 * 1024;

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
  return new TextDecoder().decode(Buffer.concat(chunks));
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Only an issuer on this machine may be called without TLS. */
function checkScheme(url: URL, isHere: boolean): void {
  if (url.protocol === 'https:' || (isHere && isLoopbackUrl(url))) return;
  throw new Error('the address of a document is not https');
}

const TRY_AGAIN: readonly number[] = [408, 429];
const saysNothing = (status: number): boolean => status >= 400 && status < 500 && !TRY_AGAIN.includes(status);

/** @param askMs - The time limit of an answer. Default: 5 s. */
export function createFetchJson(issuer: string, askMs = ASK_MS): FetchJson {
  const isHere = isLoopbackUrl(new URL(issuer));
  return async (url) => {
    checkScheme(new URL(url), isHere);
    const answer = await fetch(url, {
      headers: { accept: 'application/json' },
      redirect: 'manual',
      signal: AbortSignal.timeout(askMs),
    });
    if (answer.status === 200) return parse(await readLimited(answer));
    await answer.body?.cancel();
    if (saysNothing(answer.status)) return undefined;
    throw new Error(`the issuer answered ${answer.status}`);
  };
}
