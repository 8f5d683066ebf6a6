/** The webhook functions of a runtime, for the parts that cause events for outside receivers. */
export interface Webhooks {
  /**
   * Checks an address and returns it in its stored form.
   *
   * @throws KernelError `bad_request` for an address that must not receive events; `bad_config` when there is no secret to sign
   * with.
   */
  check(url: string, field: string): Promise<string>;
  /** False: this process has no secret to sign with, and sends nothing. */
  readonly isConfigured: boolean;
  /** A hint to send due events in this process. It never fails, and does nothing where no worker of this process runs. */
  wake(): void;
  /**
   * Reports that a worker of this process has started. @returns A function to call when the worker stops; for the last worker it
   * waits a short time for events that are being sent.
   */
  join(): () => Promise<void>;
}
