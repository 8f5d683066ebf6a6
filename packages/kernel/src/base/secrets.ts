/**
 * The secrets of this process, and the masking of texts. Only this module decides which values are secrets and what
 * replaces them.
 *
 * S1  The password in a URL becomes `[secret: url]`, in any text.
 * S2  The value of a declared variable becomes `[secret: <variable>]`.
 * S3  Errors mask their message and details when they are created. Logs, error bodies and results of tools are masked
 *     on output. A caller's input is stored unchanged, and the answer carries a warning.
 */

export interface Secret {
  /** The name of the secret's variable, which is shown in place of the value. */
  readonly name: string;
  readonly value: string;
}

const NAME = /(?:KEY|TOKEN|SECRET|PASSWORD)$/;
/** The shortest value that is masked; shorter values occur in ordinary words. */
const MIN_LENGTH = 16;
/** Deeper parts are replaced by a marker. The kernel's own JSON has at most 200 levels. */
const MAX_DEPTH = 400;

const URL_SECRET = 'url';
// A quote, an angle bracket or a backtick may also end the text around a URL. It counts as a part of the password only if the next
// character could not follow such an end. JSON inside a text has a backslash before slashes and quotes.
const USER_PASSWORD =
  /(:(?:\/\/|\\\/\\\/)[^\s/?#:@"<>`\\]*:)(?:[^\s/?#"<>`\\]|\\?["<>`](?=[^\s,:;.()[\]{}<>"'`\\/?#&=])|\\\\)+@/g;
const QUERY_PASSWORD =
  /([?&](?:ssl)?password=)(?!\[secret: )(?:[^\s&#"'<>`\\]|\\?["'<>`](?=[^\s,:;.()[\]{}<>"'`\\/?#&=])|\\\\)+/gi;

/** A text to find, and the text that replaces it. */
type Needle = readonly [form: string, shown: string];

/** The forms of the value in texts: unchanged, in JSON, and in a URL. */
const needlesOf = ({ name, value }: Secret): readonly Needle[] =>
  [...new Set([value, JSON.stringify(value).slice(1, -1), encodeURIComponent(value.toWellFormed())])].map(
    (form) => [form, `[secret: ${name}]`],
  );

const declared = new Map<object, readonly Needle[]>();
/** Sorted by length, longest first, because one value may be a part of another. */
let needles: readonly Needle[] = [];

const sortNeedles = (): void => {
  needles = [...declared.values()].flat().sort(([a], [b]) => b.length - a.length);
};

/**
 * Declares the secrets of an environment: the values, from 16 characters on, of all variables whose names end in KEY,
 * TOKEN, SECRET or PASSWORD. They are masked in this process until the returned handle is disposed of.
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

export function maskText(text: string, more: readonly Needle[] = []): string {
  let masked = text;
  for (const [form, shown] of [...more, ...needles]) masked = masked.replaceAll(form, () => shown);
  return masked
    .replace(USER_PASSWORD, `$1[secret: ${URL_SECRET}]@`)
    .replace(QUERY_PASSWORD, `$1[secret: ${URL_SECRET}]`);
}

const TOO_DEEP = '[nested too deep]';
const CIRCULAR = '[circular]';
const UNREADABLE = '[unreadable]';

/** Changes the texts that JSON or a log would show. Visits each object once. */
class TextMapper {
  readonly #change: (text: string) => string;
  readonly #done = new Map<object, unknown>();

  constructor(change: (text: string) => string) {
    this.#change = change;
  }

  map(part: unknown, depth = 0): unknown {
    if (typeof part === 'string') return this.#change(part);
    if (typeof part !== 'object' || part === null || ArrayBuffer.isView(part)) return part;
    if (this.#done.has(part)) return this.#done.get(part);
    if (depth >= MAX_DEPTH) return TOO_DEEP;
    this.#done.set(part, CIRCULAR);
    const mapped = this.#tryObject(part, depth + 1);
    this.#done.set(part, mapped);
    return mapped;
  }

  /** Catches errors, because getters and `toJSON` are outside code. */
  #tryObject(part: object, depth: number): unknown {
    try {
      return this.#mapObject(part, depth);
    } catch {
      return UNREADABLE;
    }
  }

  #mapObject(part: object, depth: number): unknown {
    if (Array.isArray(part)) return this.#mapList(part, depth) ?? part;
    if (part instanceof Error) return this.#mapError(part, depth);
    if (part instanceof Map) {
      const entries = this.#mapList([...part].flat(), depth);
      return entries === undefined
        ? part
        : new Map(entries.flatMap((key, at) => (at % 2 === 0 ? [[key, entries[at + 1]]] : [])));
    }
    if (part instanceof Set) {
      const items = this.#mapList([...part], depth);
      return items === undefined ? part : new Set(items);
    }
    if ('toJSON' in part && typeof part.toJSON === 'function') {
      const shown: unknown = part.toJSON();
      const mapped = this.map(shown, depth);
      return mapped === shown ? part : mapped;
    }
    const members = this.#mapMembers(part, depth);
    return members === undefined ? part : Object.fromEntries(members);
  }

  /** Undefined when no item changes. */
  #mapList(items: readonly unknown[], depth: number): unknown[] | undefined {
    const mapped = items.map((item) => this.map(item, depth));
    return mapped.some((item, index) => item !== items[index]) ? mapped : undefined;
  }

  #mapMembers(part: object, depth: number): (readonly [string, unknown])[] | undefined {
    const members = Object.entries(part);
    const mapped = members.map(([key, member]) => [this.#change(key), this.map(member, depth)] as const);
    return mapped.some(([key, member], at) => key !== members[at]?.[0] || member !== members[at]?.[1])
      ? mapped
      : undefined;
  }

  #mapError(error: Error, depth: number): Error {
    const hidden = { message: error.message, stack: error.stack, cause: error.cause };
    const shown = this.#mapMembers(hidden, depth);
    const members = this.#mapMembers(error, depth);
    if (shown === undefined && members === undefined) return error;
    const masked = Object.setPrototypeOf(new Error(), Object.getPrototypeOf(error) as object) as Error;
    for (const [key, value] of shown ?? Object.entries(hidden))
      if (value !== undefined)
        Object.defineProperty(masked, key, { value, configurable: true, writable: true });
    return Object.assign(masked, Object.fromEntries(members ?? Object.entries(error)));
  }
}

/** The same value with its texts changed, including keys of objects; the value itself when no text changes. */
function mapTexts(part: unknown, change: (text: string) => string): unknown {
  return new TextMapper(change).map(part);
}

/**
 * A text, or the texts in a value, without secrets; the same value when it contains no secret. Errors stay errors. Any
 * other object that contains a secret is replaced by its JSON form.
 *
 * @param more - Secrets in addition to the declared secrets, of any length above 0.
 */
export function maskSecrets<T>(value: T, more: readonly Secret[] = []): T {
  const known = more.flatMap((secret) => (secret.value === '' ? [] : needlesOf(secret)));
  return mapTexts(value, (text) => maskText(text, known)) as T;
}

/** The warnings for a caller whose input contains secrets; undefined when it contains none. */
export function warnOfSecrets(input: unknown): readonly string[] | undefined {
  if (maskSecrets(input) === input) return undefined;
  return [
    'The input holds the value of a configured secret or a URL with a password. It is stored as it is: erase the card, and change the secret.',
  ];
}

/**
 * The position where the text may end in the beginning of a declared secret; the length of the text when it does not.
 */
export function unfinishedFrom(text: string): number {
  const longest = needles[0]?.[0].length ?? 0;
  for (let at = Math.max(text.length - longest + 1, 0); at < text.length; at += 1) {
    const rest = text.slice(at);
    if (needles.some(([form]) => form.length > rest.length && form.startsWith(rest))) return at;
  }
  return text.length;
}
