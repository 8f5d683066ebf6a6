/** Questions that are asked while a handoff runs, and their replies. Rule: docs/reference/handoff.md, "Questions". */
import {
  buildCard,
  type HandoffId,
  type HandoffMessage,
  isCleanText,
  KernelError,
  type ProjectId,
  parseInput,
} from '@boxcar/kernel';
import { loadHandoffMessages, type ReplyPlace, writeReply } from '@boxcar/store';
import { z } from 'zod';
import type { RuntimeCore } from '../core/index.js';
import { newId } from '../lib/index.js';
import { loadHandoff } from './hand-off.js';

export interface ReplyOptions {
  /** The number of the question. Default: the oldest open one. */
  readonly question?: number | undefined;
  /** The author of the reply, for the log. Default `operator`. */
  readonly by?: string | undefined;
}

/** A reply with the key of its message. */
export interface KeyedReply extends ReplyOptions {
  readonly projectId: ProjectId;
  readonly text: string;
  /** Replies with the same key are the same reply. */
  readonly key?: string | undefined;
}

const cleanText = z
  .string()
  .refine((text) => text.trim() !== '', 'must not be blank')
  .refine(isCleanText, 'must be without NUL characters and lone surrogates');

const replySchema = z.strictObject({
  text: cleanText,
  question: z
    .int()
    .min(1)
    .max(2 ** 31 - 1)
    .optional(),
  by: cleanText.max(200).default('operator'),
});

/** All messages of a handoff, in order. @throws KernelError `not_found`. */
export async function messagesOf(
  runtime: Pick<RuntimeCore, 'pool'>,
  handoffId: HandoffId,
  projectId: ProjectId,
): Promise<readonly HandoffMessage[]> {
  const found = await loadHandoffMessages(runtime.pool, { handoffId, projectId });
  if (found.length === 0) await loadHandoff(runtime, handoffId, projectId);
  return found;
}

/**
 * Replies to a question, once. Resolves with the messages after the reply.
 *
 * @throws KernelError `not_found`; `question_closed`: no question is open, or the named question was already answered, is late, or has no
 *   waiting asker anymore;
 *   `bad_request`, `payload_too_large`.
 */
export async function replyTo(
  runtime: Pick<RuntimeCore, 'pool' | 'log' | 'limits'>,
  handoffId: HandoffId,
  { projectId, text, key, ...options }: KeyedReply,
): Promise<readonly HandoffMessage[]> {
  const parsed = parseInput(replySchema, { text, ...options }, 'reply');
  const { question, by } = parsed;
  const card = buildCard(
    {
      type: 'handoff_reply',
      role: null,
      content: { kind: 'text', text: parsed.text },
      metadata: {},
      authorId: by,
    },
    { id: newId<'card'>(), projectId },
    runtime.limits.maxCardBytes,
  );
  const logged = await writeReply(
    runtime.pool,
    { handoffId, projectId, question, card, author: by, key },
    (place) => judge(place, { handoffId, question }),
  );
  // The second of two simultaneous replies finds the question closed.
  if (logged.length === 0)
    throw closed(`The question of handoff ${handoffId} was answered meanwhile.`, { handoff_id: handoffId });
  for (const { type, handoff_id, data } of logged) runtime.log('info', type, { handoff_id, ...data });
  return messagesOf(runtime, handoffId, projectId);
}

const closed = (message: string, details: KernelError['details']): KernelError =>
  new KernelError('question_closed', { message, details });

/** @returns The number of the question to answer. */
function judge(
  place: ReplyPlace | undefined,
  { handoffId, question }: { readonly handoffId: HandoffId; readonly question: number | undefined },
): number {
  const details = { handoff_id: handoffId, ...(question === undefined ? {} : { question }) };
  if (place === undefined)
    throw new KernelError('not_found', { message: `No handoff ${handoffId} in this project.`, details });
  if (place.question === null && question !== undefined)
    throw new KernelError('not_found', {
      message: `Handoff ${handoffId} has no question ${question}.`,
      details,
    });
  const why =
    place.question === null
      ? `No question of handoff ${handoffId} is open.`
      : place.has_ended
        ? `Handoff ${handoffId} has ended.`
        : place.is_closed === true || place.is_late === true
          ? `Question ${place.question} of handoff ${handoffId} was answered, its time is over, or no function waits for its reply now.`
          : undefined;
  if (why !== undefined) throw closed(why, details);
  return place.question as number;
}
