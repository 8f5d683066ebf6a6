export interface Invariant {
  readonly name: string;
  /** The rule that holds. */
  readonly rule: string;
  /**
   * `always`: at every moment. `settled`: after all accepted work has ended. `wide`: at every moment too, but the statement reads whole
   * tables, so it is skipped when only the newest turns are checked.
   */
  readonly when: 'always' | 'settled' | 'wide';
  /** Selects the violations as `id` and `what`. */
  readonly broken: string;
}
