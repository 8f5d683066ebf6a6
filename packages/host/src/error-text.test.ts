import { ERROR_CATALOGUE, type ErrorCode } from '@boxcar/kernel';
import { expect, it } from 'vitest';
import { detailsOf, errorLine } from './error-text.js';

it('whether details are printed depends on the code, and not on the message', () => {
  const details = { turn_id: 'x' };
  expect(detailsOf({ code: 'not_found', message: "No tape 'details'.", details })).toEqual([]);
  expect(errorLine({ code: 'model_failed', message: 'HTTP 500.', details })).toBe(
    'model_failed: HTTP 500. (turn_id: x)',
  );
  expect(detailsOf({ code: 'of_another_build', message: 'See the details.', details })).toEqual([]);
});

it('the catalogue marks exactly the codes whose advice refers to details', () => {
  for (const code of Object.keys(ERROR_CATALOGUE) as ErrorCode[]) {
    const { next, namesDetails } = ERROR_CATALOGUE[code];
    expect({ code, namesDetails }).toEqual({ code, namesDetails: /\bdetails\b/.test(next) });
  }
});
