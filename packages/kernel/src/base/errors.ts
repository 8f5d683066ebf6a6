/** The one error class, and any thrown value as an error's body. */
import { ERROR_CATALOGUE, type ErrorCode, type ErrorEntry } from './error-catalogue.js';
import { cutDetails, cutEchoes, type ErrorDetails } from './error-limits.js';
import { maskSecrets } from './secrets.js';

/** How an error looks on the wire, in results and in rows. */
export interface ErrorBody {
  readonly code: string;
  readonly message: string;
  readonly details?: ErrorDetails;
}

/**
 * The one error class: a code of the catalogue, the ids involved, and the cause. No text of it holds a secret, and none
 * repeats more than 200 characters of an input.
 */
export class KernelError extends Error {
  override readonly name = 'KernelError';
  readonly code: ErrorCode;
  /** What is wrong. `message` is this and the next step. */
  declare readonly problem: string;
  /** What to do next. */
  declare readonly next: string;
  readonly details: ErrorDetails;

  /**
   * @param options.message - The problem. Default: the message in the catalogue.
   * @param options.next - The next step for the reader; empty: the message ends with the problem. Default: that of the catalogue.
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
    // Not enumerable: printed errors have both in their message already.
    Object.defineProperties(this, { problem: { value: problem }, next: { value: next } });
    this.details = cutDetails(maskSecrets(options.details ?? {}));
  }

  get entry(): ErrorEntry {
    return ERROR_CATALOGUE[this.code];
  }

  /** Where in the input the problem is, as `details` has it. */
  get field(): string | undefined {
    const { field } = this.details;
    return typeof field === 'string' ? field : undefined;
  }

  /** The same failure, told anew: code and next step stay, details are added. */
  restate(problem: string, details: ErrorDetails = {}): KernelError {
    return new KernelError(this.code, {
      message: problem,
      next: this.next,
      details: { ...this.details, ...details },
      cause: this,
    });
  }

  /** The same failure of a larger input, in which `field` is the place of the problem. The message begins with it. */
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

/** `String(value)`, which outside code can make throw. */
export function toText(value: unknown): string {
  try {
    return String(value);
  } catch {
    return '[unreadable]';
  }
}

/** The message of an error; another thrown value as a text. */
export const errorText = (error: unknown): string => toText(error instanceof Error ? error.message : error);

/** Any thrown value as an error body; foreign errors become `fallback` with their own words, cut as those of a `KernelError`. */
export function toErrorBody(error: unknown, fallback: ErrorCode = 'internal_error'): ErrorBody {
  if (error instanceof KernelError) return error.toJSON();
  return { code: fallback, message: cutEchoes(maskSecrets(errorText(error))) };
}
