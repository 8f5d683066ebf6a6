import type { RuntimeCore } from '../core/index.js';

/** Sends all rings of a process to its doorbell, as if other workers served the targets of its workers. */
export function sendAllRings({ localWorkers }: Pick<RuntimeCore, 'localWorkers'>): void {
  for (const worker of localWorkers) worker.keep = (rings) => rings;
}
