import { expect, test } from 'vitest';
import { wireErrors } from '../testing/wire.js';
import { HANDOFF_PHASES, handoffStatusOf } from './phases.js';
import { type ApprovalTicket, type Handoff, toHandoffRequest, toHandoffResponse } from './records.js';

const { request, response, ticket } = wireErrors;

const handoff: Handoff = {
  handoff_id: '01890a5d-ac96-774b-bcce-b302099a8057',
  source_agent: 'main',
  target_agent: 'specialist',
  task: 'Analyze',
  context: { days: 7 },
  payload: null,
  platform: 'agdd',
  phase: 'pending',
  status: 'pending',
  created_at: new Date('2026-01-01T10:00:00Z'),
  ended_at: null,
  result: null,
  error: null,
  run_id: null,
  calling_run_id: null,
  target_run_id: null,
  turn_id: null,
  ticket_id: null,
  joined_to: null,
  root_handoff_id: '01a00000-0000-7000-8000-000000000001',
  parent_handoff_id: null,
  depth: 0,
  mode: 'handoff',
  hop: null,
  compensates: null,
  cached_from: null,
  cached: false,
  decision: null,
  attempts: 0,
  loss: null,
};

test('a handoff is valid on the wire in every phase, and has no answer fields before there is an answer', () => {
  for (const phase of HANDOFF_PHASES) {
    const one = { ...handoff, phase, status: handoffStatusOf(phase) };
    expect(request(toHandoffRequest(one))).toEqual([]);
    const answer = toHandoffResponse(one);
    if (one.status === 'pending') expect(answer).toBeUndefined();
    else expect(response(answer)).toEqual([]);
  }
});

test('a result of any type, an error and an end are valid on the wire', () => {
  const ended = { ...handoff, phase: 'failed', status: 'failed', ended_at: handoff.created_at } as const;
  for (const result of [null, { a: 1 }, 'text', 5, ['a']])
    expect(response(toHandoffResponse({ ...ended, result }))).toEqual([]);
  expect(toHandoffResponse({ ...ended, result: 'text' })?.result).toEqual({ output: 'text' });
  const failed = toHandoffResponse({ ...ended, error: { code: 'handoff_timeout', message: 'Too late.' } });
  expect(failed).toMatchObject({ error: 'Too late.', completed_at: '2026-01-01T10:00:00.000Z' });
  expect(response(failed)).toEqual([]);
});

test('the run of a handoff is the caller’s run, else the run of the calling turn, else the handoff itself', () => {
  const runOf = (rest: Partial<Handoff>) => toHandoffRequest({ ...handoff, ...rest }).from_run_id;
  expect(runOf({ run_id: 'run-123', calling_run_id: 'r' })).toBe('run-123');
  expect(runOf({ calling_run_id: 'r' })).toBe('r');
  expect(runOf({})).toBe(handoff.handoff_id);
  const answer = { ...handoff, phase: 'completed', status: 'completed' } as const;
  expect(toHandoffResponse(answer)?.to_run_id).toBe(handoff.handoff_id);
  expect(toHandoffResponse({ ...answer, target_run_id: 't' })?.to_run_id).toBe('t');
});

test('the schemas refuse fields that the contract does not have', () => {
  const one: ApprovalTicket = {
    ticket_id: 't',
    run_id: 'r',
    agent_slug: 'a',
    tool_name: 'handoff',
    tool_args: {},
    args_hash: 'a'.repeat(64),
    requested_at: '2026-01-01T10:00:00Z',
    expires_at: '2026-01-01T10:30:00Z',
    status: 'pending',
    step_id: null,
    resolved_at: null,
    resolved_by: null,
    decision_reason: null,
    metadata: {},
    response: null,
  };
  expect(ticket(one)).toEqual([]);
  expect(ticket({ ...one, status: 'consumed' })).not.toEqual([]);
  expect(ticket({ ...one, args_hash: 'A'.repeat(64) })).not.toEqual([]);
  expect(request({ ...toHandoffRequest(handoff), extra: 1 })).not.toEqual([]);
  expect(request({ ...toHandoffRequest(handoff), from_agent: '' })).not.toEqual([]);
});
