/** Checks a caller's numbers where they are passed in: a later error could not name the field. */
import { KernelError } from './errors.js';

/** The longest timeout: 30 days. */
export const MAX_DURATION_MS = 30 * 86_400_000;

type Code = 'bad_request' | 'bad_config';

function refuse(
  field: string,
  value: unknown,
  options: { readonly code?: Code; readonly must: string },
): never {
  throw new KernelError(options.code ?? 'bad_request', {
    message: `${field}: must be ${options.must}; it is ${typeof value === 'number' ? value : `a ${typeof value}`}.`,
    details: { field },
  });
}

/**
 * Checks that a value is a whole number within a range.
 *
 * @throws KernelError `bad_request`, or the `code` given, naming the field.
 */
export function checkWholeNumber(
  value: unknown,
  field: string,
  range: { readonly min: number; readonly max: number; readonly code?: Code },
): number {
  const { min, max } = range;
  if (typeof value !== 'number' || !Number.isInteger(value) || value < min || value > max)
    return refuse(field, value, { ...range, must: `a whole number from ${min} to ${max}` });
  return value;
}

/**
 * Checks a duration in milliseconds: positive (with `allowsZero` also 0) and at most 30 days.
 *
 * @throws KernelError `bad_request`, or the `code` given, naming the field.
 */
export function checkDuration(
  value: unknown,
  field: string,
  options: { readonly code?: Code; readonly allowsZero?: boolean } = {},
): number {
  const { allowsZero = false } = options;
  if (typeof value !== 'number' || !(allowsZero ? value >= 0 : value > 0) || value > MAX_DURATION_MS)
    return refuse(field, value, {
      ...options,
      must: `a number of milliseconds, ${allowsZero ? '0 or more' : 'more than 0'} and at most ${MAX_DURATION_MS} (30 days)`,
    });
  return value;
}

/**
 * Checks how long a caller of the library waits: a duration, or `Infinity`, which means no limit.
 *
 * @throws KernelError `bad_request` naming the field.
 */
export const checkWait = (value: unknown, field: string): number =>
  value === Infinity ? Infinity : checkDuration(value, field);
