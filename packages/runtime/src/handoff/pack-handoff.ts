/** The context box of a handoff: task, context and payload as cards, in this order, followed by the cards of the named boxes. */
import {
  type BoxId,
  CARD_TYPES,
  type CardId,
  type HandoffArguments,
  type Handover,
  type JsonObject,
  type JsonValue,
  KernelError,
} from '@boxcar/kernel';
import type { KernelTools } from '../handler/index.js';
import type { HandedSession } from './handed-session.js';
import { type Asked, isOfChain } from './handoff-request.js';

export interface PackedCards {
  readonly contextBoxId: BoxId;
  readonly taskCardId: CardId;
  readonly contextCardId: CardId | null;
  readonly payloadCardId: CardId | null;
}

/**
 * The packed parts of a request. A payload that is neither an object nor an array is wrapped, because a JSON card holds an object or an
 * array.
 */
interface Words {
  readonly context: JsonObject | undefined;
  readonly payload: JsonValue | undefined;
  readonly isWrapped: boolean;
}

function wordsOf({ context, payload }: HandoffArguments): Words {
  const isWrapped = typeof payload !== 'object';
  return {
    context: context !== undefined && Object.keys(context).length > 0 ? context : undefined,
    payload: payload === undefined || payload === null ? undefined : isWrapped ? { payload } : payload,
    isWrapped,
  };
}

function handoverOf({ context, payload, isWrapped }: Words, hasParent: boolean): Handover {
  const rule = (arg_key: string, as_card_type: string, card_metadata: JsonObject = {}) => ({
    arg_key,
    as_card_type,
    card_metadata,
  });
  return {
    context_packing_config: {
      pack_arguments: [
        rule('task', CARD_TYPES.instruction),
        ...(context === undefined ? [] : [rule('context', 'handoff_context')]),
        ...(payload === undefined
          ? []
          : [rule('payload', 'handoff_payload', isWrapped ? { wrapped: true } : {})]),
      ],
      inherit_context: { include_boxes_from_args: ['context_box_id'], include_parent: hasParent },
    },
  };
}

export async function packHandoff(
  tools: KernelTools,
  asked: Asked,
  {
    workerTarget,
    session,
  }: { readonly workerTarget: string | null; readonly session: HandedSession | undefined },
): Promise<PackedCards> {
  const { ctx, toolCallId } = tools;
  const { input } = asked;
  const words = wordsOf(input);
  const { context, payload } = words;
  const boxIds = input.context_box_id;
  // The turn of an agent gets a pointer to the caller's box. A platform outside could not follow it, and a turn of a function or a chain
  // has no use for it.
  const hasParent = workerTarget === null && toolCallId !== undefined && !isOfChain(asked);
  const [packed] = await tools.packer.packResolved([
    {
      projectId: ctx.projectId,
      actorId: ctx.source.agentId,
      toolSuffix: ctx.primitive,
      arguments: {
        task: input.task,
        ...(context === undefined ? {} : { context }),
        ...(payload === undefined ? {} : { payload }),
        ...(boxIds === undefined ? {} : { context_box_id: [boxIds].flat() }),
      },
      handover: handoverOf(words, hasParent),
      access: 'actor',
      ...(session === undefined ? {} : { extra: session.inherited }),
    },
  ]);
  const ids = [...(packed?.attachedCardIds ?? [])];
  const taskCardId = ids.shift();
  if (packed === undefined || taskCardId === undefined)
    throw new KernelError('internal_error', { message: 'Packing a handoff gave no card.' });
  return {
    contextBoxId: packed.contextBoxId,
    taskCardId,
    contextCardId: (context === undefined ? undefined : ids.shift()) ?? null,
    payloadCardId: (payload === undefined ? undefined : ids.shift()) ?? null,
  };
}
