/** Classifies an answer of a platform as a code of the catalogue. A pure function of the evidence. */
import { type ErrorCode, isContextOverflow } from '@boxcar/kernel';
import { findStatus, type ProviderError } from '@boxcar/llm/failures';
import { isTransientStatus } from '../adapter-error.js';

export interface Verdict {
  readonly code: ErrorCode;
  readonly retryable: boolean;
}

const FILTER_CODES = new Set(['content_filter', 'content_policy_violation', 'responsibleaipolicyviolation']);

const codeOf = (status: number, error: ProviderError | undefined): ErrorCode => {
  if (status === 429) return 'platform_rate_limited';
  if (isTransientStatus(status)) return 'platform_unavailable';
  const isOfRequest = status === 400 || status === 413 || status === 422;
  if (isOfRequest && isContextOverflow({ message: error?.message ?? '', status, code: error?.code }))
    return 'context_overflow';
  if (FILTER_CODES.has(error?.code?.toLowerCase() ?? '')) return 'platform_refused';
  if (status === 401 || status === 402 || status === 403) return 'platform_unauthorized';
  return status === 404 ? 'target_unknown' : 'platform_failed';
};

/**
 * @param status - The status of the answer; 200 for a stream with an error in it.
 * @param error - The platform's error, when it sent one.
 */
export function judge(status: number, error: ProviderError | undefined): Verdict {
  const counted = findStatus({ status, error }) ?? status;
  return { code: codeOf(counted, error), retryable: isTransientStatus(counted) };
}
