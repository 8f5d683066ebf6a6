import { describe, expect, it } from 'vitest';
import { RETENTION_POLICIES, sessionStateOf, summarizeSession } from './sessions.js';

const WRITTEN = new Date('2026-01-01T00:00:00Z');
const after = (hours: number): Date => new Date(WRITTEN.getTime() + hours * 3_600_000);
const active = { status: 'active', retentionPolicy: 'standard', lastWriteAt: WRITTEN } as const;

describe('the state of a session at a given time', () => {
  it.each([
    [1.99, 'active', false, false],
    [2, 'active', true, false],
    [23.99, 'active', true, false],
    [24, 'expired', false, false],
    [30 * 24, 'expired', false, true],
  ] as const)('%s hours after its last write is %s', (hours, status, isDormant, isArchived) => {
    expect(sessionStateOf(active, after(hours))).toEqual({
      status,
      isDormant,
      isArchived,
      expiresAt: after(24),
    });
  });

  it('of a session that has ended is neither dormant nor expired, and becomes archived in time', () => {
    const ended = { ...active, status: 'completed' } as const;
    expect(sessionStateOf(ended, after(25))).toEqual({
      status: 'completed',
      isDormant: false,
      isArchived: false,
      expiresAt: null,
    });
    expect(sessionStateOf(ended, after(30 * 24)).isArchived).toBe(true);
  });

  it('follows the times of its policy', () => {
    const ends = RETENTION_POLICIES.map((retentionPolicy) =>
      sessionStateOf({ ...active, retentionPolicy }, WRITTEN).expiresAt?.getTime(),
    );
    expect(ends).toEqual([24, 72, 4].map((hours) => after(hours).getTime()));
  });
});

describe('the summary of a session', () => {
  const facts = {
    sessionKey: 's-1',
    agentFrom: 'ada',
    agentTo: null,
    status: 'active',
    counts: { message: 2, file: 1, tool_call: 0, system: 1 },
    createdAt: WRITTEN,
    lastWriteAt: after(0.5),
    firstMessage: 'Hello.',
    lastMessage: '😀'.repeat(101),
    lastAction: 'session_registered',
    fileTypes: [],
    tools: [],
  } as const;

  it('has the counts of all four types and the status', () => {
    expect(summarizeSession(facts).summary).toBe(
      "Session 's-1' initiated by ada. Total of 4 context entries over 30 minutes. Current status: active. Context includes: 2 messages, 1 files, 0 tool calls, 1 system events.",
    );
  });

  it('names the agent that received the session', () => {
    const { summary, participants } = summarizeSession({ ...facts, agentTo: 'bob' });
    expect(summary).toMatch(/^Session 's-1' initiated by ada with handoff requested to bob\. /);
    expect(participants).toEqual(['ada', 'bob']);
  });

  it('has the first and the last message as key points, cut after 100 whole characters', () => {
    expect(summarizeSession(facts).keyPoints).toEqual([
      'System: session_registered',
      '2 messages exchanged',
      'First message: Hello.',
      `Last message: ${'😀'.repeat(100)}...`,
      '1 file operations',
    ]);
  });

  it('names the types of files and tools', () => {
    const { keyPoints } = summarizeSession({
      ...facts,
      counts: { message: 0, file: 2, tool_call: 3, system: 1 },
      fileTypes: ['.md', '.ts'],
      tools: ['grep'],
      firstMessage: null,
      lastAction: null,
    });
    expect(keyPoints).toEqual([
      '2 file operations',
      'File types: .md, .ts',
      '3 tool calls',
      'Tools used: grep',
    ]);
  });

  it('contains nothing of erased messages, and does not list a single message twice', () => {
    const { keyPoints } = summarizeSession({
      ...facts,
      counts: { message: 1, file: 0, tool_call: 0, system: 1 },
      firstMessage: null,
      lastAction: null,
    });
    expect(keyPoints).toEqual(['1 messages exchanged']);
  });
});
