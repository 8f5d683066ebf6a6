/**
 * `submit_result` as the only call of an answer: its call, its result and the end of the turn are one commit. No I/O.
 */
import {
  checkResult,
  type EndRule,
  type Field,
  isJsonObject,
  type JsonValue,
  KernelError,
  MAX_CARD_BYTES,
  type Profile,
  sanitizeJson,
  submitResultSchema,
} from '@boxcar/kernel';
import type { CallSettlement, ClaimedTurn, NewToolCall } from '@boxcar/store';
import { mayWait } from '../approval/index.js';
import type { RuntimeCore } from '../core/index.js';
import { toSettlement } from '../end/index.js';
import { deliverableContent } from '../lib/index.js';
import { parseGiven } from '../tool/index.js';

/** The rules for the end of the turn. */
interface Bound {
  readonly endRule: EndRule;
  readonly resultFields: readonly Field[] | undefined;
}

export interface CallEnding {
  readonly row: NewToolCall;
  readonly result: CallSettlement;
  readonly deliverable: JsonValue;
  readonly isSanitized: boolean;
}

/** Undefined: the call must run like any other call, which determines its result. */
export function readEnding(
  runtime: RuntimeCore,
  turn: Pick<ClaimedTurn, 'turnId' | 'projectId' | 'agentId'>,
  {
    written,
    bound,
    profile,
  }: {
    readonly written: readonly { readonly row: NewToolCall }[];
    readonly bound: Bound;
    readonly profile: Profile;
  },
): CallEnding | undefined {
  const [only] = written;
  if (only === undefined || written.length > 1) return undefined;
  const { row } = only;
  if (row.name !== 'submit_result' || row.route !== 'primitive' || mayWait(runtime, profile, row.name))
    return undefined;
  const deliverable = readDeliverable(row.arguments, bound, runtime.limits.maxCardBytes);
  if (deliverable === undefined) return undefined;
  const { turnId, projectId, agentId } = turn;
  const call = { toolCallId: row.id, turnId, name: row.name, projectId };
  const outcome = { status: 'success', result: { status: 'accepted' } } as const;
  const result = toSettlement(call, outcome, { authorId: agentId, maxBytes: runtime.limits.maxCardBytes });
  return {
    row: { ...row, answer: { status: result.status, cardId: result.card.id } },
    result,
    deliverable: deliverable.value,
    isSanitized: deliverable.isChanged,
  };
}

function readDeliverable(
  args: JsonValue,
  { resultFields, endRule }: Bound,
  maxBytes: number = MAX_CARD_BYTES,
): ReturnType<typeof sanitizeJson> | undefined {
  const { must_end_with: names } = endRule;
  if (!isJsonObject(args) || (names.length > 0 && !names.includes('submit_result'))) return undefined;
  const { parsed } = parseGiven(submitResultSchema, args);
  if (!parsed.success) return undefined;
  const clean = sanitizeJson(parsed.data.result);
  try {
    checkResult(clean.value, resultFields);
  } catch (error) {
    if (error instanceof KernelError) return undefined;
    throw error;
  }
  const bytes = Buffer.byteLength(JSON.stringify(deliverableContent(clean.value)));
  return bytes > maxBytes ? undefined : clean;
}
