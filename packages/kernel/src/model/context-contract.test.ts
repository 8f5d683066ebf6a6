import { expect, test } from 'vitest';
import { contextContract, contextReminder, DEFAULT_CONTEXT_TOKENS } from './context-contract.js';

test('the contract is the original’s text with the limit of the model', () => {
  expect(contextContract(DEFAULT_CONTEXT_TOKENS)).toBe(
    '<context_contract>\nExcessively long context may cause model call failures. In this case, you SHOULD first use ' +
      'tape.handoff tool to shorten the length of the retrieved history. The current limit is 200k tokens.\n' +
      '</context_contract>',
  );
});

test.each([
  [128_000, '128k'],
  [131_072, '131072'],
  [1_000_000, '1M'],
  [1_047_576, '1047576'],
  [1_048_000, '1048k'],
  [800, '800'],
])('a limit of %i tokens is written as %s', (limit, text) => {
  expect(contextContract(limit)).toContain(`The current limit is ${text} tokens.`);
});

test('the reminder names the tool and both numbers', () => {
  const text = contextReminder({ estimateTokens: 850, limitTokens: 1_000 });
  expect(text).toContain('about 850 of 1000 tokens (85 %)');
  expect(text).toContain('tape.handoff');
});
