import { expect, test } from 'vitest';
import type { AgentId } from '../base/ids.js';
import { buildHandoff, readHandoffTarget } from './handoff.js';

const from = '01a00000-0000-7000-8000-000000000001' as AgentId;
const to = '01a00000-0000-7000-8000-000000000002' as AgentId;
const at = new Date('2026-02-21T12:00:00.987Z');
const tapeRef = 'tape://workspace/telegram:123/entry/45';
const words = { target_ref: 'x', reason: 'a specialist', summary: 'a pattern' };

test('a message has the fields of the format in their order, and an intention only when it was given', () => {
  const intention = { next_steps: 'review', context_summary: 'injection' };
  const whole = buildHandoff({ ...words, intention, ownership: 'transfer' }, { from, to, at, tapeRef });
  expect(JSON.stringify(whole)).toBe(
    `{"type":"context_handoff","from":"agent:${from}","to":"agent:${to}","timestamp":"2026-02-21T12:00:00Z","content":{"reason":"a specialist","summary":"a pattern","tape_ref":"${tapeRef}","intention":{"next_steps":"review","context_summary":"injection"},"ownership":"transfer"}}`,
  );
  expect(buildHandoff(words, { from, to, at, tapeRef }).content).toEqual({
    reason: 'a specialist',
    summary: 'a pattern',
    tape_ref: tapeRef,
    ownership: 'share',
  });
});

test('a target is an agent or a profile when the call says so, else whichever exists', () => {
  expect(readHandoffTarget('agent:ada')).toEqual({ kind: 'agent', name: 'ada' });
  expect(readHandoffTarget('profile: writer')).toEqual({ kind: 'profile', name: 'writer' });
  expect(readHandoffTarget('crew:ada')).toEqual({ kind: 'any', name: 'crew:ada' });
});
