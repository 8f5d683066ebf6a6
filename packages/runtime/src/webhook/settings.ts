/** The webhook settings of a process, from its program or its environment. */
import { KernelError } from '@boxcar/kernel';
import { MAX_DURATION_MS } from '@boxcar/kernel/base';

export interface WebhookSettings {
  /**
   * The signing secret: `whsec_` and base64, or any text, whose bytes are the key. It may be several secrets with
   * `whsec_`, separated by spaces. All of them sign, so that receivers can change from one secret to the next.
   */
  readonly secret: string;
  /** Hosts, addresses and networks that receivers may use although they are not public. */
  readonly allowPrivate?: readonly string[] | undefined;
  /** The first pause after a failure. Default 5. */
  readonly retrySeconds?: number | undefined;
}

export interface CheckedWebhooks {
  readonly keys: readonly Uint8Array[];
  readonly allowPrivate: readonly string[];
  readonly baseMs: number;
}

export const SECRET_VARIABLE = 'BOXCAR_WEBHOOK_SECRET';
export const ALLOW_VARIABLE = 'BOXCAR_WEBHOOK_ALLOW_PRIVATE';
const RETRY_VARIABLE = 'BOXCAR_WEBHOOK_RETRY_SECONDS';
const PREFIX = 'whsec_';
const BASE64 = /^[A-Za-z0-9+/]+={0,2}$/;
const DEFAULT_RETRY_SECONDS = 5;

const badConfig = (variable: string, problem: string): KernelError =>
  new KernelError('bad_config', { message: `${variable}: ${problem}.`, details: { variable } });

function keyOf(secret: string): Uint8Array {
  const encoded = secret.slice(PREFIX.length);
  // The message does not repeat the secret.
  if (!secret.startsWith(PREFIX) || !BASE64.test(encoded))
    throw badConfig(SECRET_VARIABLE, `must be base64 after ${PREFIX}`);
  const key = Buffer.from(encoded, 'base64');
  // A single character of base64 is less than a byte.
  if (key.length === 0) throw badConfig(SECRET_VARIABLE, `must be a key after ${PREFIX}`);
  return key;
}

function keysOf(secret: string): readonly Uint8Array[] {
  const text = secret.trim();
  if (!text.startsWith(PREFIX)) return text === '' ? [] : [Buffer.from(text)];
  return text.split(/\s+/).map(keyOf);
}

/** @throws KernelError `bad_config`. */
export function checkWebhooks(settings: WebhookSettings): CheckedWebhooks {
  const { secret, allowPrivate = [], retrySeconds = DEFAULT_RETRY_SECONDS } = settings;
  const keys = typeof secret === 'string' ? keysOf(secret) : [];
  if (keys.length === 0) throw badConfig(SECRET_VARIABLE, 'must not be blank');
  if (!(retrySeconds > 0 && retrySeconds <= MAX_DURATION_MS / 1000))
    throw badConfig(RETRY_VARIABLE, 'must be a number of seconds, more than 0 and at most 2592000');
  return { keys, allowPrivate, baseMs: retrySeconds * 1000 };
}

/** The settings in the environment; undefined when it has no secret. @throws KernelError `bad_config`. */
export function readWebhookEnvironment(
  env: Readonly<Record<string, string | undefined>>,
): WebhookSettings | undefined {
  const given = (name: string): string | undefined => env[name]?.trim() || undefined;
  const secret = given(SECRET_VARIABLE);
  if (secret === undefined) return undefined;
  const seconds = given(RETRY_VARIABLE);
  const allowPrivate = (given(ALLOW_VARIABLE) ?? '').split(',').map((part) => part.trim());
  return {
    secret,
    allowPrivate: allowPrivate.filter(Boolean),
    ...(seconds === undefined ? {} : { retrySeconds: Number(seconds) }),
  };
}
