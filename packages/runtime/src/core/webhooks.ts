/** What a runtime knows of the events that are sent to receivers outside, for the parts that cause them. */
export interface Webhooks {
  /**
   * The address as it is stored.
   *
   * @throws KernelError `bad_request` for one that no event may be sent to; `bad_config`: there is no secret to sign with.
   */
  check(url: string, field: string): Promise<string>;
  /** False: this process has no secret to sign with, and sends nothing. */
  readonly isConfigured: boolean;
  /** Sends what is due, in this process. A hint: does nothing where none of its workers runs, and never fails. */
  wake(): void;
  /** A worker of this process has started. @returns It stops: the last one waits a little for what is being sent. */
  join(): () => Promise<void>;
}
