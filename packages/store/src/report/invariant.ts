export interface Invariant {
  readonly name: string;
  /** What holds. */
  readonly rule: string;
  /**
   * `always`: at every moment. `settled`: once everything that was accepted has ended. `wide`: at every moment too, but it
   * reads whole tables, so it is left out where only the newest turns are looked at.
   */
  readonly when: 'always' | 'settled' | 'wide';
  /** Selects what breaks it as `id` and `what`. */
  readonly broken: string;
}
