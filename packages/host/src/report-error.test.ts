import { KernelError } from '@boxcar/kernel/base';
import { afterEach, expect, it, vi } from 'vitest';
import { reportError } from './report-error.js';

const HOSTILE = 'x\u001b]0;owned\u0007\u202ey\u009b2J';
const CONTROLS = /[^\P{Cc}\n]|\u202e/u;

afterEach(() => vi.restoreAllMocks());

/** The text that the report of an error writes to stderr. */
function written(error: unknown, how: { readonly withStack: boolean; readonly isJson?: boolean }): string {
  let text = '';
  vi.spyOn(process.stderr, 'write').mockImplementation((chunk) => {
    text += String(chunk);
    return true;
  });
  reportError(error, { isJson: false, ...how });
  return text;
}

it('foreign names, places, details and stacks reach the terminal as plain text', () => {
  const findings = [{ place: `profiles/${HOSTILE}.yaml`, message: `no ${HOSTILE}` }];
  for (const error of [
    new KernelError('bad_request', { message: HOSTILE, details: { findings } }),
    new KernelError('model_failed', { message: HOSTILE, details: { [HOSTILE]: HOSTILE } }),
    new Error(HOSTILE, { cause: new Error(HOSTILE) }),
  ]) {
    const text = written(error, { withStack: true });
    expect(text).toContain(']0;owned');
    expect(text).not.toMatch(CONTROLS);
  }
});

it('an error that is its own cause, and details that JSON cannot express, are still reported', () => {
  const inner = new Error('inner');
  const outer = new Error('outer', { cause: inner });
  inner.cause = outer;
  expect(written(outer, { withStack: true })).toMatch(/outer[\s\S]*Error: outer[\s\S]*Error: inner/);
  const big = new KernelError('bad_config', {
    message: 'Too large.',
    details: { size: (2n ** 70n) as never },
  });
  expect(written(big, { withStack: false, isJson: true })).toContain('1180591620717411303424');
});
