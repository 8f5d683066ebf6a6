/** Converts answers of the runtime to answers of the tools for sessions. */
import type { JsonObject, JsonValue } from '@boxcar/kernel';
import type {
  CloseAnswer,
  ContextPageAnswer,
  HandoffRequestAnswer,
  PackageAnswer,
  PackageMoveAnswer,
  RegisterAnswer,
  SessionAnswer,
  SessionRefusal,
  SummaryAnswer,
  UpdateAnswer,
  WrittenAnswer,
} from '@boxcar/runtime';
import { ToolFailure } from '../tool/index.js';
import { toHandoffAnswer } from './handoff-answer.js';

const headOf = ({ id, session_key, status }: SessionAnswer): JsonObject => ({ id, session_key, status });

const entryOf = (entry: WrittenAnswer): JsonObject => ({ ...entry });

/** The refusals for an archived session, by the requested action. */
const ARCHIVED = {
  update: 'Cannot add context to archived session',
  other: 'Cannot update archived session',
} as const;

/** A session that does not exist, or is no longer active. */
function toRefusal(refusal: SessionRefusal, asked: keyof typeof ARCHIVED = 'other'): ToolFailure {
  if (refusal.outcome === 'not_found')
    return new ToolFailure({
      error: 'Session not found',
      error_code: 'SESSION_NOT_FOUND',
      rest: { session_key: refusal.session_key },
    });
  const { session_key, status, is_archived } = refusal.session;
  return new ToolFailure({
    error: is_archived ? ARCHIVED[asked] : 'Session is not active',
    error_code: status === 'expired' ? 'SESSION_EXPIRED' : 'SESSION_NOT_ACTIVE',
    rest: { session_key, current_status: status },
  });
}

export function toRegistered(answer: RegisterAnswer, args: JsonObject): JsonObject {
  switch (answer.outcome) {
    case 'registered': {
      const { session } = answer;
      return {
        success: true,
        message: 'Session registered successfully',
        session: {
          ...headOf(session),
          agent_from: session.agent_from,
          created_at: session.created_at,
          metadata: (args.metadata as JsonValue | undefined) ?? {},
          retention_policy: session.retention_policy,
          expires_at: session.expires_at,
          ...(session.continues === null ? {} : { continues: session.continues }),
        },
      };
    }
    case 'exists':
      throw new ToolFailure({
        error: 'Session already exists',
        error_code: 'SESSION_EXISTS',
        rest: { session_key: args.session_key ?? null, ...existing(answer.session) },
      });
    default:
      throw toRefusal(answer);
  }
}

/** Shows nothing about a session that the client may not read. */
const existing = (session: SessionAnswer | null): JsonObject =>
  session === null
    ? {}
    : {
        existing_session: {
          id: session.id,
          status: session.status,
          agent_from: session.agent_from,
          created_at: session.created_at,
        },
      };

/** @param isBatch - Whether several entries were sent in a list. */
export function toUpdated(answer: UpdateAnswer, isBatch: boolean): JsonObject {
  if (answer.outcome !== 'updated') throw toRefusal(answer, 'update');
  const last = answer.entries.at(-1);
  return {
    success: true,
    message: 'Context updated successfully',
    context_entry: last === undefined ? {} : entryOf(last),
    ...(isBatch ? { context_entries: answer.entries.map(entryOf) } : {}),
    session: headOf(answer.session),
  };
}

export function toClosed(answer: CloseAnswer): JsonObject {
  if (answer.outcome !== 'closed') throw toRefusal(answer);
  return { success: true, message: 'Session closed successfully', session: headOf(answer.session) };
}

export function toContextPage(answer: ContextPageAnswer): JsonObject {
  if (answer.outcome !== 'found') throw toRefusal(answer);
  const { session, entries, has_more, next_cursor } = answer;
  return {
    success: true,
    session_key: session.session_key,
    entries: entries.map((entry) => ({ ...entry })),
    has_more,
    next_cursor,
  };
}

export function toSummary(answer: SummaryAnswer): JsonObject {
  if (answer.outcome !== 'found') throw toRefusal(answer);
  const { session, summary, key_points, participants, generated_at } = answer;
  const { session_key, status, context_entries, counts } = session;
  return {
    success: true,
    session_key,
    summary,
    key_points,
    participants,
    status,
    context_entries,
    counts: { ...counts },
    generated_at,
  };
}

export function toRequested(answer: HandoffRequestAnswer): JsonObject {
  if (answer.outcome === 'not_found' || answer.outcome === 'not_active') throw toRefusal(answer);
  return toHandoffAnswer(answer);
}

/** Positions on the tape are internal: a client reads the session by its key. */
const packageOf = ({ phase, tape_box_id: _box, head: _head, ...told }: PackageAnswer): JsonObject => ({
  ...told,
  status: phase,
});

export function toMoved(answer: PackageMoveAnswer): JsonObject {
  switch (answer.outcome) {
    case 'not_found':
      throw new ToolFailure({
        error: 'Handoff not found',
        error_code: 'HANDOFF_NOT_FOUND',
        rest: { handoff_id: answer.handoff_id },
      });
    case 'not_possible': {
      const { handoff_id, phase } = answer.package;
      throw new ToolFailure({
        error: answer.why,
        error_code: 'HANDOFF_NOT_POSSIBLE',
        rest: { handoff_id, current_status: phase },
      });
    }
    default:
      return {
        success: true,
        message: `Handoff ${answer.outcome} successfully`,
        handoff: packageOf(answer.package),
      };
  }
}
