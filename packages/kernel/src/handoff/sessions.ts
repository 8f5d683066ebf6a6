/**
 * Sessions of clients that hand their context on: their lifetimes, and the content of their summaries.
 *
 * S1  Times count from the last accepted write. The policy and the current time then decide whether a session is
 *     expired, dormant or archived: no background job is needed.
 * S2  A session accepts writes while it is active. Completed and canceled sessions keep their status; only an active
 *     session expires.
 * S3  A summary consists of counts and of the first and last entries, however long the session is.
 * Rule: docs/reference/handoff-sessions.md.
 */
import type { Id } from '../base/index.js';

export type HandoffSessionId = Id<'handoff_session'>;

export const CONTEXT_TYPES = ['message', 'file', 'tool_call', 'system'] as const;
export type ContextType = (typeof CONTEXT_TYPES)[number];

export const SESSION_STATUSES = ['active', 'completed', 'expired', 'cancelled'] as const;
export type SessionStatus = (typeof SESSION_STATUSES)[number];
/** Expired is never stored (S1). */
export type StoredSessionStatus = Exclude<SessionStatus, 'expired'>;

interface Retention {
  readonly dormantHours: number;
  readonly activeHours: number;
  readonly archivedHours: number;
}

const DAY = 24;

/** Hours since the last write. */
export const RETENTION = {
  standard: { dormantHours: 2, activeHours: DAY, archivedHours: 30 * DAY },
  extended: { dormantHours: 6, activeHours: 3 * DAY, archivedHours: 90 * DAY },
  short: { dormantHours: 1, activeHours: 4, archivedHours: 7 * DAY },
} as const satisfies Readonly<Record<string, Retention>>;
export type RetentionPolicy = keyof typeof RETENTION;
export const RETENTION_POLICIES = Object.keys(RETENTION) as readonly RetentionPolicy[];

export interface SessionTimes {
  readonly status: StoredSessionStatus;
  readonly retentionPolicy: RetentionPolicy;
  readonly lastWriteAt: Date;
}

export interface SessionState {
  readonly status: SessionStatus;
  /** Active, but without a write for the policy's `dormantHours`. */
  readonly isDormant: boolean;
  /** No write for the policy's `archivedHours`, whatever the session's status. */
  readonly isArchived: boolean;
  /** Null when the session was completed or canceled. */
  readonly expiresAt: Date | null;
}

const HOUR_MS = 3_600_000;

/** The state of a session at a moment (S1, S2). */
export function sessionStateOf(
  { status, retentionPolicy, lastWriteAt }: SessionTimes,
  now: Date,
): SessionState {
  const { dormantHours, activeHours, archivedHours } = RETENTION[retentionPolicy];
  const after = (hours: number): Date => new Date(lastWriteAt.getTime() + hours * HOUR_MS);
  const isActive = status === 'active' && now < after(activeHours);
  return {
    status: status === 'active' && !isActive ? 'expired' : status,
    isDormant: isActive && now >= after(dormantHours),
    isArchived: now >= after(archivedHours),
    expiresAt: status === 'active' ? after(activeHours) : null,
  };
}

/** The number of context entries of each type. */
export type ContextCounts = Readonly<Record<ContextType, number>>;

export const totalOf = (counts: ContextCounts): number =>
  CONTEXT_TYPES.reduce((sum, type) => sum + counts[type], 0);

export interface SummaryFacts {
  readonly sessionKey: string;
  readonly agentFrom: string;
  /** Null when the session was not handed to another agent. */
  readonly agentTo: string | null;
  readonly status: SessionStatus;
  readonly counts: ContextCounts;
  readonly createdAt: Date;
  readonly lastWriteAt: Date;
  /** Null when there is no message, or its text was erased. */
  readonly firstMessage: string | null;
  readonly lastMessage: string | null;
  /** The action that the last system entry states; null when it states none. */
  readonly lastAction: string | null;
  /** File name extensions of the newest files; `tools` holds the names of the newest tools. */
  readonly fileTypes: readonly string[];
  readonly tools: readonly string[];
}

export interface SessionSummary {
  readonly summary: string;
  readonly keyPoints: readonly string[];
  readonly participants: readonly string[];
}

const MINUTE_MS = 60_000;
const PREVIEW = 100;

/** The text is cut between characters, never within one. */
function previewOf(text: string): string {
  const start = [...text.slice(0, 2 * PREVIEW + 2)].slice(0, PREVIEW).join('');
  return start.length < text.length ? `${start}...` : start;
}

/** The same facts give the same text (S3). */
export function summarizeSession(facts: SummaryFacts): SessionSummary {
  const { agentFrom, agentTo, counts } = facts;
  const minutes = Math.round((facts.lastWriteAt.getTime() - facts.createdAt.getTime()) / MINUTE_MS);
  const kinds = [
    `${counts.message} messages`,
    `${counts.file} files`,
    `${counts.tool_call} tool calls`,
    `${counts.system} system events`,
  ];
  const summary =
    `Session '${facts.sessionKey}' initiated by ${agentFrom}${agentTo === null ? '' : ` with handoff requested to ${agentTo}`}. ` +
    `Total of ${totalOf(counts)} context entries${minutes > 0 ? ` over ${minutes} minutes` : ''}. ` +
    `Current status: ${facts.status}. Context includes: ${kinds.join(', ')}.`;
  const keyPoints = [
    facts.lastAction && `System: ${facts.lastAction}`,
    counts.message > 0 && `${counts.message} messages exchanged`,
    facts.firstMessage !== null && `First message: ${previewOf(facts.firstMessage)}`,
    counts.message > 1 && facts.lastMessage !== null && `Last message: ${previewOf(facts.lastMessage)}`,
    counts.file > 0 && `${counts.file} file operations`,
    facts.fileTypes.length > 0 && `File types: ${facts.fileTypes.join(', ')}`,
    counts.tool_call > 0 && `${counts.tool_call} tool calls`,
    facts.tools.length > 0 && `Tools used: ${facts.tools.join(', ')}`,
  ].filter((point): point is string => typeof point === 'string' && point !== '');
  return {
    summary,
    keyPoints,
    participants: [...new Set([agentFrom, ...(agentTo === null ? [] : [agentTo])])],
  };
}
