/**
 * Sessions of clients that hand their context on: their lifetimes, and what a summary says of them.
 *
 * S1  Times count from the last accepted write. Whether a session is expired, dormant or archived follows from it, the policy and the
 *     time of the question: nothing has to run for that.
 * S2  A session is written to while it is active. Completed and canceled ones stay what they are; only an active one expires.
 * S3  A summary is made of counts and of the first and last entries, however long the session is.
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
  /** Active, and not written to for some time. */
  readonly isDormant: boolean;
  /** Not written to for very long, however it has ended. */
  readonly isArchived: boolean;
  /** Null: it has been completed or canceled. */
  readonly expiresAt: Date | null;
}

const HOUR_MS = 3_600_000;

/** What a session is at a moment (S1, S2). */
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

/** How many context entries of each type there are. */
export type ContextCounts = Readonly<Record<ContextType, number>>;

export const totalOf = (counts: ContextCounts): number =>
  CONTEXT_TYPES.reduce((sum, type) => sum + counts[type], 0);

export interface SummaryFacts {
  readonly sessionKey: string;
  readonly agentFrom: string;
  /** Null: it was handed to nobody. */
  readonly agentTo: string | null;
  readonly status: SessionStatus;
  readonly counts: ContextCounts;
  readonly createdAt: Date;
  readonly lastWriteAt: Date;
  /** Null: there is none, or its words were erased. */
  readonly firstMessage: string | null;
  readonly lastMessage: string | null;
  /** What the last system entry says was done; null: it does not say. */
  readonly lastAction: string | null;
  /** Endings of the names that the newest files have, and names of the newest tools. */
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

/** Cut between characters, never within one. */
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
