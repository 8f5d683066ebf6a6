/** A map that forgets its oldest entries. */
export class RecentMap<K, V> extends Map<K, V> {
  readonly #max: number;

  /** @param max - Maximum number of entries. */
  constructor(max: number) {
    super();
    this.#max = max;
  }

  /** The entry becomes the newest entry. */
  override set(key: K, value: V): this {
    this.delete(key);
    super.set(key, value);
    const [oldest] = this.keys();
    if (this.size > this.#max && oldest !== undefined) this.delete(oldest);
    return this;
  }
}
