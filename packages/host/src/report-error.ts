import { type ErrorBody, maskSecrets, toErrorBody } from '@boxcar/kernel/base';
import { writeLogLine } from '@boxcar/runtime/log';
import { toDatabaseError } from '@boxcar/store/health';
import { detailsOf } from './error-text.js';
import { toLine, toPlain } from './plain-text.js';

interface Finding {
  readonly place: string;
  readonly message: string;
}

/** The findings that have a place, which get a line each; all other errors take one line. */
const findingsOf = ({ details }: ErrorBody): readonly Finding[] => {
  const findings = details?.findings;
  return Array.isArray(findings)
    ? findings.filter(
        (item): item is Finding => typeof item?.place === 'string' && typeof item.message === 'string',
      )
    : [];
};

/** The stacks of an error and its causes, each once. */
const stackOf = (error: unknown): string[] => {
  const errors = new Set<Error>();
  for (let cause = error; cause instanceof Error && !errors.has(cause); cause = cause.cause)
    errors.add(cause);
  return [...errors].map(({ stack, message }) => stack ?? message);
};

/** Details of errors may have values of any type. */
const writable = (_key: string, value: unknown): unknown =>
  typeof value === 'bigint' ? String(value) : value;

/** `<code>: message`, followed by the details to which the advice refers; or a line for each finding that has a place. */
export function describeError(body: ErrorBody): string[] {
  const findings = findingsOf(body);
  return findings.length > 0
    ? findings.map(({ place, message }) => `${body.code}: ${toLine(place)}: ${toLine(message)}`)
    : [`${body.code}: ${toLine(body.message)}`, ...detailsOf(body).map((line) => `  ${line}`)];
}

/** Writes `boxcar: <code>: message` to stderr, or one JSON object. The stacks of the error and its causes are added only on request. */
export function reportError(
  thrown: unknown,
  options: {
    readonly isJson: boolean;
    readonly withStack: boolean;
  },
): void {
  const error = toDatabaseError(thrown);
  const body = toErrorBody(error);
  const stack = options.withStack ? maskSecrets(stackOf(error)) : [];
  if (options.isJson) {
    writeLogLine(JSON.stringify({ error: { ...body, ...(stack.length > 0 ? { stack } : {}) } }, writable));
    return;
  }
  const lines = describeError(body).map((line) => `boxcar: ${line}`);
  writeLogLine(toPlain([...lines, ...stack].join('\n')));
}
