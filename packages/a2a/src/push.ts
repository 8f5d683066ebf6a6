/** Reads and writes configurations of push notifications. Rule: docs/reference/a2a.md, "Push notifications". */
import type { TaskPushNotificationConfig } from '@a2a-js/sdk';
import type { PushRequest } from '@boxcar/runtime';
import { malformed } from './errors.js';
import { checkName, isText } from './message.js';

/** The same limit as for the URL of a callback. */
const MAX_URL = 2_000;
/** The characters that are allowed in a header. */
const VALUE = /^[\x21-\x7e](?:[\x20-\x7e]{0,4094}[\x21-\x7e])?$/;
const SCHEME = /^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$/;

function readValue(
  given: unknown,
  { field, form }: { readonly field: string; readonly form: RegExp },
): string | null {
  if (given === undefined || given === null || given === '') return null;
  if (isText(given) && form.test(given)) return given;
  throw malformed(`${field}: must be a valid value of a header.`);
}

/** Checks only the form; the address is not judged here. @throws A2AError when the form of the protocol is not met. */
export function readPush(
  { id, url, token, authentication }: TaskPushNotificationConfig,
  version: string,
): PushRequest {
  const field = 'pushNotificationConfig';
  if (!isText(url) || url === '') throw malformed(`${field}.url: is missing.`);
  if (url.length > MAX_URL) throw malformed(`${field}.url: must have at most ${MAX_URL} characters.`);
  return {
    id: isText(id) && id === '' ? undefined : checkName(id, `${field}.id`),
    url,
    token: readValue(token, { field: `${field}.token`, form: VALUE }),
    scheme: readValue(authentication?.scheme, { field: `${field}.authentication.scheme`, form: SCHEME }),
    credentials: readValue(authentication?.credentials, {
      field: `${field}.authentication.credentials`,
      form: VALUE,
    }),
    version,
  };
}

/** The configuration as its caller sent it. */
export const toPush = (
  taskId: string,
  { id, url, token, scheme, credentials }: Omit<PushRequest, 'id'> & { readonly id: string },
): TaskPushNotificationConfig => ({
  tenant: '',
  id,
  taskId,
  url,
  token: token ?? '',
  authentication: scheme === null ? undefined : { scheme, credentials: credentials ?? '' },
});
