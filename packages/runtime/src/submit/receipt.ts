/** The parts of a submission's answer that its handler does not provide. */
import {
  type BatchId,
  isJsonObject,
  type JsonValue,
  type RunId,
  type TurnId,
  tryParseId,
  warnOfSecrets,
} from '@boxcar/kernel';
import type { InnerSubmitOptions } from '../core/index.js';

/**
 * Adds to a receipt for a caller outside the run of its turn or batch. A calling turn is in the same run, so its prompt does not
 * repeat it.
 */
export function withRun(
  answer: JsonValue,
  runs: ReadonlyMap<TurnId | BatchId, RunId>,
  { call }: InnerSubmitOptions,
): JsonValue {
  if (call !== undefined || !isJsonObject(answer) || 'run_id' in answer) return answer;
  const ids = [answer.batch_id, answer.turn_id, answer.turn_ids].flat(1).slice(0, 3);
  const named = ids.flatMap((id) => (typeof id === 'string' ? (tryParseId<'turn'>(id) ?? []) : []));
  const runId = named.map((id) => runs.get(id)).find((found) => found !== undefined);
  return runId === undefined ? answer : { ...answer, run_id: runId };
}

/** An answer that warns when `input` holds secrets. */
export function withWarnings(answer: JsonValue, input: JsonValue): JsonValue {
  const warnings = warnOfSecrets(input);
  return warnings === undefined || !isJsonObject(answer) || 'warnings' in answer
    ? answer
    : { ...answer, warnings };
}

/** The end of the awaited turn or batch, with the warnings of the receipt. */
export function warnAgain(answer: JsonValue, receipt: JsonValue): JsonValue {
  if (!isJsonObject(answer) || 'warnings' in answer || !isJsonObject(receipt)) return answer;
  const { warnings } = receipt;
  return warnings === undefined ? answer : { ...answer, warnings };
}
