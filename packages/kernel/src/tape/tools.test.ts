import { describe, expect, test } from 'vitest';
import type { TapeRecord } from './record.js';
import { handoffOf, matchLine, searchText, TAPE_HANDOFF, tapeHandoffSchema } from './tools.js';

const message = (content: string, date: string | null = '2026-01-01T00:00:00Z'): TapeRecord => ({
  position: 3,
  kind: 'message',
  payload: { role: 'user', content },
  meta: {},
  date,
});

describe('tape.handoff', () => {
  test('is shown with the exact schema of the handoff architecture', () => {
    expect(TAPE_HANDOFF).toEqual({
      name: 'tape.handoff',
      description: 'Create tape anchor with optional summary and next_steps state',
      parameters: {
        type: 'object',
        properties: {
          name: { type: 'string', description: "Anchor name (e.g., 'phase-1')" },
          summary: { type: 'string', description: 'Progress summary' },
          next_steps: { type: 'string', description: 'Next steps to take' },
        },
        required: ['name'],
      },
    });
  });

  test.each([
    [{ name: 'phase-1' }, 'phase-1', undefined],
    [{ name: 'a', summary: 's', next_steps: '' }, 'a', { summary: 's' }],
    [{ name: 'a', summary: ' ', next_steps: 'n' }, 'a', { next_steps: 'n' }],
    [{}, 'handoff', undefined],
    [{ summary: 's' }, 'handoff', { summary: 's' }],
    [{ name: ' ', state: { goal: 1 }, summary: 's' }, 'handoff', { goal: 1, summary: 's' }],
  ])('takes the arguments %j of both generations', (input, name, state) => {
    expect(handoffOf(tapeHandoffSchema.parse(input))).toEqual({ name, state });
  });

  test('refuses unknown arguments', () => {
    expect(tapeHandoffSchema.safeParse({ name: 'a', nextSteps: 'b' }).success).toBe(false);
  });
});

describe('the answer of tape.search', () => {
  test('has a JSON line for each match after a line that counts the matches', () => {
    expect(searchText([message('hello'), message('there', null)].map(matchLine), 3)).toBe(
      [
        '[tape.search]: 2 matches (3 filtered)',
        '{"date":"2026-01-01T00:00:00Z","content":{"role":"user","content":"hello"}}',
        '{"date":null,"content":{"role":"user","content":"there"}}',
      ].join('\n'),
    );
    expect(searchText([], 0)).toBe('[tape.search]: 0 matches (0 filtered)');
  });

  test('limits the length of each match', () => {
    const line = matchLine(message('x'.repeat(10_000)));
    expect(line.length).toBeLessThan(5_000);
    expect(line).toContain('… (cut)');
  });
});
