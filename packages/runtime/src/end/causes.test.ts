import { KernelError, toErrorBody } from '@boxcar/kernel';
import { expect, test } from 'vitest';
import { fromCause, toCause } from './causes.js';

const CARD = '01a20855-5dcc-7983-8294-ca0ec590d78b';

test.each([
  ['card_damaged', `Card ${CARD} cannot be read: content.text: Required.`],
  ['unsupported_format', `This build does not know a card of kind 'file' (card ${CARD}).`],
] as const)('an end by the sweep names the damaged card like an end by the worker: %s', (code, message) => {
  const error = new KernelError(code, { message, details: { card_id: CARD } });
  const note = `${toCause(error)} (at step 1)`;
  expect(fromCause(note, { attempts: 1 })).toEqual({
    code,
    message: toErrorBody(error).message,
    details: { attempts: 1, card_id: CARD },
  });
});

test('other causes name no card', () => {
  const note = `model_unavailable: The answer was (card ${CARD}). (at step 2)`;
  expect(fromCause(note, {})).toMatchObject({ code: 'model_unavailable', details: {} });
});
