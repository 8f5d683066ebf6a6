/**
 * Signs as Standard Webhooks defines. Loaded with the first event: bundlers read the export names of this package only
 * from a static import.
 */
import { Webhook } from 'standardwebhooks';
import type { Signer } from './deliver.js';

export const signersOf = (keys: readonly Uint8Array[]): readonly Signer[] =>
  keys.map((key) => new Webhook(key, { format: 'raw' }));
