/** The only error class, and the conversion of any thrown value to an error body. */
import { ERROR_CATALOGUE, type ErrorCode, type ErrorEntry } from './error-catalogue.js';
import { cutDetails, cutEchoes, type ErrorDetails } from './error-limits.js';
import { maskSecrets } from './secrets.js';

/** The form of an error on the wire, in results and in rows. */
export interface ErrorBody {
  readonly code: string;
  readonly message: string;
  readonly details?: ErrorDetails;
}

/**
 * The only error class: a code of the catalogue, the ids involved, and the cause. None of its texts contains a secret,
 * and none repeats more than 200 characters of an input.
 */
export class KernelError extends Error {
  override readonly name = 'KernelError';
  readonly code: ErrorCode;
  /** The problem. `message` is the problem followed by the next step. */
  declare readonly problem: string;
  /** What to do next. */
  declare readonly next: string;
  readonly details: ErrorDetails;

  /**
   * @param options.message - The problem. Default: the message in the catalogue.
   * @param options.next - The next step for the reader; an empty text ends the message after the problem. Default: the
   * next step in the catalogue.
   */
  constructor(
    code: ErrorCode,
    options: { message?: string; next?: string; details?: ErrorDetails; cause?: unknown } = {},
  ) {
    const known = ERROR_CATALOGUE[code];
    const problem = cutEchoes(maskSecrets(options.message ?? known.message));
    const next = maskSecrets(options.next ?? known.next);
    super(
      next === '' ? problem : `${problem} ${next}`,
      'cause' in options ? { cause: options.cause } : undefined,
    );
    this.code = code;
    // Not enumerable: the message of a printed error already contains both.
    Object.defineProperties(this, { problem: { value: problem }, next: { value: next } });
    this.details = cutDetails(maskSecrets(options.details ?? {}));
  }

  get entry(): ErrorEntry {
    return ERROR_CATALOGUE[this.code];
  }

  /** The place of the problem in the input, from `details`. */
  get field(): string | undefined {
    const { field } = this.details;
    return typeof field === 'string' ? field : undefined;
  }

  /** The same failure in other words: code and next step stay, details are added. */
  restate(problem: string, details: ErrorDetails = {}): KernelError {
    return new KernelError(this.code, {
      message: problem,
      next: this.next,
      details: { ...this.details, ...details },
      cause: this,
    });
  }

  /**
   * The same failure in a larger input, where `field` is the place of the problem. The message begins with the field.
   */
  atField(field: string): KernelError {
    const own = this.field;
    const problem = own === undefined ? this.problem : this.problem.replace(`${own}: `, '');
    return this.restate(`${field}: ${problem}`, { field });
  }

  toJSON(): ErrorBody {
    return {
      code: this.code,
      message: this.message,
      ...(Object.keys(this.details).length > 0 ? { details: this.details } : {}),
    };
  }
}

/** `String(value)`, protected against conversions that throw. */
export function toText(value: unknown): string {
  try {
    return String(value);
  } catch {
    return '[unreadable]';
  }
}

/** The message of an error; any other thrown value as text. */
export const errorText = (error: unknown): string => toText(error instanceof Error ? error.message : error);

/**
 * Any thrown value as an error body. A foreign error gets the code `fallback` and keeps its own words, cut like those
 * of a `KernelError`.
 */
export function toErrorBody(error: unknown, fallback: ErrorCode = 'internal_error'): ErrorBody {
  if (error instanceof KernelError) return error.toJSON();
  return { code: fallback, message: cutEchoes(maskSecrets(errorText(error))) };
}
