/**
 * Removes secrets from texts: the addresses, the model and the key of a target, which only the operator may see.
 *
 * C1  Errors conceal all of them. Results and parts conceal the key and the configured addresses, since a model may write about models.
 * C2  Parts are concealed while they arrive. A secret that is split over two parts is found, and the joined parts are the concealed text.
 */
import { isJsonObject, type JsonValue, maskSecrets } from '@boxcar/kernel';

interface Needle {
  readonly shown: string;
  readonly value: string;
}

const MODEL = '[model]';
const ADDRESS = '[address]';

const escaped = (text: string): string => text.replace(/[.*+?^${}()|[\]\\/-]/g, '\\$&');

/** Matches whole words only: a short name may be a part of ordinary words. */
const asWord = (value: string): RegExp => new RegExp(`(?<![\\w-])${escaped(value)}(?![\\w-])`, 'gi');

const longestFirst = (needles: readonly Needle[]): readonly Needle[] =>
  needles.filter(({ value }) => value !== '').toSorted((a, b) => b.value.length - a.value.length);

/** The forms of an address in texts, without bare host names. */
function formsOf(url: string): readonly string[] {
  if (!URL.canParse(url)) return [url];
  const { href, origin } = new URL(url);
  return [url, href, href.replace(/\/$/, ''), origin];
}

export class Concealer {
  readonly #key: Needle;
  readonly #model: string;
  readonly #addresses = new Set<string>();
  readonly #hosts = new Set<string>();
  readonly #paths = new Set<string>();

  constructor(secrets: {
    readonly key?: { readonly variable: string; readonly value: string } | undefined;
    readonly model?: string | undefined;
    readonly addresses?: readonly (string | undefined)[];
  }) {
    const { key, model = '', addresses = [] } = secrets;
    this.#key = { shown: `[secret: ${key?.variable ?? ''}]`, value: key?.value ?? '' };
    this.#model = model;
    for (const url of addresses) if (url !== undefined) this.addAddress(url);
  }

  /** An address that is learned during the attempt, for example from the card of an agent. */
  addAddress(url: string): void {
    for (const form of formsOf(url)) this.#addresses.add(form);
    if (!URL.canParse(url)) return;
    const { host, hostname, pathname, search } = new URL(url);
    this.#hosts.add(host).add(hostname);
    // Servers name the path that they do not have.
    if (pathname !== '/') this.#paths.add(pathname).add(pathname + search);
  }

  /** The secrets that results and parts must not show. */
  get needles(): readonly Needle[] {
    const addresses = [...this.#addresses].map((value) => ({ shown: ADDRESS, value }));
    return longestFirst([this.#key, ...addresses]);
  }

  /** A text of an error. */
  error(text: string): string {
    let clean = maskSecrets(text);
    for (const { shown, value } of this.needles) clean = clean.replaceAll(value, () => shown);
    for (const host of this.#hosts) clean = clean.replace(asWord(host), ADDRESS);
    for (const path of [...this.#paths].toSorted((a, b) => b.length - a.length))
      clean = clean.replace(new RegExp(`${escaped(path)}(?![\\w-])`, 'g'), ADDRESS);
    return this.#model === '' ? clean : clean.replace(asWord(this.#model), MODEL);
  }

  /** Opens a text that arrives in parts. */
  openText(): ConcealedText {
    return new ConcealedText(this.needles);
  }

  text(text: string): string {
    const open = this.openText();
    return open.push(text) + open.end();
  }

  /** Conceals a result: its texts and the names of its members. */
  value(value: JsonValue): JsonValue {
    if (typeof value === 'string') return this.text(value);
    if (Array.isArray(value)) return value.map((item) => this.value(item));
    if (!isJsonObject(value)) return value;
    return Object.fromEntries(
      Object.entries(value).map(([name, member]) => [this.text(name), this.value(member)]),
    );
  }
}

/** A text that arrives in parts (C2): an end that may be the beginning of a secret is held back. */
export class ConcealedText {
  readonly #needles: readonly Needle[];
  #held = '';

  constructor(needles: readonly Needle[]) {
    this.#needles = needles;
  }

  /** @returns The text that can be shown now. */
  push(text: string): string {
    return this.#take(this.#held + text, false);
  }

  /** @returns The text that was held back. */
  end(): string {
    return this.#take(this.#held, true);
  }

  #take(text: string, isEnd: boolean): string {
    const firsts = new Set(this.#needles.map(({ value }) => value[0]));
    let shown = '';
    let from = 0;
    let at = 0;
    for (; at < text.length; at += 1) {
      if (!firsts.has(text[at])) continue;
      if (!isEnd && this.#mayGrow(text, at)) break;
      const found = this.#needles.find(({ value }) => text.startsWith(value, at));
      if (found === undefined) continue;
      shown += text.slice(from, at) + found.shown;
      at += found.value.length - 1;
      from = at + 1;
    }
    this.#held = text.slice(at);
    return shown + text.slice(from, at);
  }

  /** True when more text could turn the text from here on into a secret. */
  #mayGrow(text: string, at: number): boolean {
    const left = text.length - at;
    return this.#needles.some(({ value }) => value.length > left && value.startsWith(text.slice(at)));
  }
}
