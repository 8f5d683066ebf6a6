/**
 * Secrets of this process, and texts without them. The one place that decides what a secret is and what is shown instead.
 *
 * S1  The password in a URL becomes `[secret: url]`, in any text.
 * S2  The value of a declared variable becomes `[secret: <variable>]`.
 * S3  Errors mask their message and details where they are made; logs, error bodies and results of tools where they leave.
 *     What a caller sends is stored as it is, and the answer warns.
 */

export interface Secret {
  /** Shown in its place: the name of its variable. */
  readonly name: string;
  readonly value: string;
}

const NAME = /(?:KEY|TOKEN|SECRET|PASSWORD)$/;
/** Shorter values occur in ordinary words. */
const MIN_LENGTH = 16;
const MAX_DEPTH = 200;

const URL_SECRET = 'url';
const USER_PASSWORD = /(:\/\/[^\s/?#:@"<>`\\]*:)[^\s/?#"<>`\\]+@/g;
const QUERY_PASSWORD = /([?&](?:ssl)?password=)(?!\[secret: )[^\s&#"'<>`\\]+/gi;

/** What is looked for in texts, and what is shown in its place. */
type Needle = readonly [form: string, shown: string];

/** The value as texts hold it: as it is, in JSON, and in a URL. */
const needlesOf = ({ name, value }: Secret): readonly Needle[] =>
  [...new Set([value, JSON.stringify(value).slice(1, -1), encodeURIComponent(value.toWellFormed())])].map(
    (form) => [form, `[secret: ${name}]`],
  );

const declared = new Map<object, readonly Needle[]>();
/** The longest first: one value may be a part of another. */
let needles: readonly Needle[] = [];

const sortNeedles = (): void => {
  needles = [...declared.values()].flat().sort(([a], [b]) => b.length - a.length);
};

/**
 * Declares the secrets of an environment: the value of each variable whose name ends in KEY, TOKEN, SECRET or PASSWORD, from 16
 * characters on. They are masked in this process until the answer is disposed of.
 */
export function declareSecrets(env: Readonly<Record<string, string | undefined>>): Disposable {
  const handle: Disposable = {
    [Symbol.dispose]: () => {
      declared.delete(handle);
      sortNeedles();
    },
  };
  const secrets = Object.entries(env).flatMap(([name, given = '']) => {
    const value = given.trim();
    return NAME.test(name) && value.length >= MIN_LENGTH ? needlesOf({ name, value }) : [];
  });
  declared.set(handle, secrets);
  sortNeedles();
  return handle;
}

function maskText(text: string, more: readonly Needle[]): string {
  let masked = text;
  for (const [form, shown] of [...more, ...needles]) masked = masked.replaceAll(form, () => shown);
  return masked
    .replace(USER_PASSWORD, `$1[secret: ${URL_SECRET}]@`)
    .replace(QUERY_PASSWORD, `$1[secret: ${URL_SECRET}]`);
}

/** The same value with its texts changed, keys of plain objects included; itself when none changes. */
export function mapTexts(part: unknown, change: (text: string) => string, depth = 0): unknown {
  if (typeof part === 'string') return change(part);
  if (typeof part !== 'object' || part === null || depth >= MAX_DEPTH) return part;
  if (Array.isArray(part)) {
    const items = part.map((item) => mapTexts(item, change, depth + 1));
    return items.some((item, index) => item !== part[index]) ? items : part;
  }
  const prototype: unknown = Object.getPrototypeOf(part);
  if (prototype !== Object.prototype && prototype !== null) return part;
  const members = Object.entries(part);
  const changed = members.map(([key, member]) => [change(key), mapTexts(member, change, depth + 1)] as const);
  const isSame = changed.every(
    ([key, member], at) => key === members[at]?.[0] && member === members[at]?.[1],
  );
  return isSame ? part : Object.fromEntries(changed);
}

/**
 * A text, or the texts in plain objects and lists, without secrets; the same value when it holds none.
 *
 * @param more - Secrets beside the declared ones, of any length above 0.
 */
export function maskSecrets<T>(value: T, more: readonly Secret[] = []): T {
  const known = more.flatMap((secret) => (secret.value === '' ? [] : needlesOf(secret)));
  return mapTexts(value, (text) => maskText(text, known)) as T;
}

/** What the answer to a caller says when the caller's input holds secrets; undefined when it holds none. */
export function warnOfSecrets(input: unknown): readonly string[] | undefined {
  if (maskSecrets(input) === input) return undefined;
  return [
    'The input holds the value of a configured secret or a URL with a password. It is stored as it is: erase the card, and change the secret.',
  ];
}
