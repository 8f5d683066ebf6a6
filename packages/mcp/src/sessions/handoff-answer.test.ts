import type { SessionAnswer } from '@boxcar/runtime';
import { expect, test } from 'vitest';
import { toHandoffAnswer } from './handoff-answer.js';

const target = {
  target_agent: 'downstream-assistant',
  handoff_id: '0198c1f2-5d21-7ae1-821d-cb1b3af8b547',
  turn_id: null,
  ticket_id: null,
  status: 'active' as const,
};
const handed: Parameters<typeof toHandoffAnswer>[0] = {
  ...target,
  outcome: 'handed_on',
  session: { session_key: 'session-1722600000000' } as SessionAnswer,
  request_type: 'context_transfer',
  source_agent: 'source-agent-id',
  context_summary: 'string summary',
  context_entries: 42,
  cache_key: 'handoff:downstream-assistant:session-1722600000000',
  targets: [target],
};

test('a handoff is answered field by field as in the contract', () => {
  expect(toHandoffAnswer(handed)).toEqual({
    success: true,
    message: 'Handoff request processed successfully',
    handoff: {
      session_key: 'session-1722600000000',
      source_agent: 'source-agent-id',
      target_agent: 'downstream-assistant',
      request_type: 'context_transfer',
      context_summary: 'string summary',
      context_entries: 42,
      cache_key: 'handoff:downstream-assistant:session-1722600000000',
      status: 'active',
      handoff_id: '0198c1f2-5d21-7ae1-821d-cb1b3af8b547',
    },
    instructions: {
      message: "The context has been prepared for agent 'downstream-assistant'.",
      next_steps: [
        'The target agent can retrieve the context using session_key: session-1722600000000',
        'Context is cached and immediately available',
        'Full context history includes 42 entries',
        'Session remains active for continued collaboration',
      ],
    },
  });
});

test('a full handoff reports that the session is completed', () => {
  const answer = toHandoffAnswer({ ...handed, request_type: 'full_handoff', status: 'completed' });
  expect(answer).toMatchObject({
    handoff: { status: 'completed', request_type: 'full_handoff' },
    instructions: {
      next_steps: {
        length: 4,
        3: 'Session has been marked as completed - original agent handoff is complete',
      },
    },
  });
});

test('a handoff that waits for an approval does not report the context as available', () => {
  const answer = toHandoffAnswer({ ...handed, status: 'pending_approval', ticket_id: 'a-ticket' });
  expect(answer).toMatchObject({
    success: true,
    handoff: { status: 'pending_approval', ticket_id: 'a-ticket' },
  });
  const text = JSON.stringify(answer);
  expect(text).toContain('waits for approval ticket a-ticket');
  expect(text).not.toMatch(/immediately available|can retrieve/);
});

test('several targets are listed, each with its own handoff', () => {
  const targets = [
    { ...target, target_agent: 'a', handoff_id: '1' },
    { ...target, target_agent: 'b', handoff_id: '2', status: 'pending_approval' as const, ticket_id: 't' },
  ];
  expect(toHandoffAnswer({ ...handed, request_type: 'collaboration', targets })).toMatchObject({
    handoff: {
      targets: [
        { target_agent: 'a', handoff_id: '1', status: 'active' },
        { target_agent: 'b', handoff_id: '2', status: 'pending_approval', ticket_id: 't' },
      ],
    },
  });
});
