/** A finished model call in the form of its step's row. */
import {
  dearestOf,
  type ErrorBody,
  foldManifest,
  type JsonValue,
  type ModelReply,
  type ModelUsage,
} from '@boxcar/kernel';
import { usageRow, warningsRow } from '../model/index.js';
import type { PricedProfile } from '../view/index.js';
import type { ClosedStep } from './held-turn.js';
import type { SentPrompt } from './progress.js';

/** How the call ended: with a reply or with an error. */
export interface EndedCall {
  readonly modelMs: number;
  readonly usage?: ModelUsage;
  /** The usage is not known and is counted at the highest price. */
  readonly isLost?: boolean;
  readonly finishReason?: ModelReply['finishReason'];
  readonly warnings?: readonly string[];
  readonly error?: ErrorBody;
}

export function closeStep(
  { step, view, hash, toolset }: SentPrompt,
  call: EndedCall,
  of: { readonly attempt: number; readonly model: string; readonly price: PricedProfile['price'] },
): ClosedStep {
  const { usage, isLost = false } = call;
  const price = isLost && of.price !== undefined ? dearestOf(of.price) : of.price;
  return {
    step,
    attempt: of.attempt,
    model: of.model,
    promptHash: hash,
    toolsetHash: toolset,
    manifest: foldManifest(view) as unknown as JsonValue,
    thoughtCardId: null,
    usage:
      usage === undefined
        ? null
        : { ...usageRow(usage, price), ...(isLost ? { lost: true } : {}), ...warningsRow(call) },
    finishReason: call.finishReason ?? 'error',
    modelMs: Math.round(call.modelMs),
    error: call.error ?? null,
  };
}
