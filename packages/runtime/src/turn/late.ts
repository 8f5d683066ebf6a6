/** Results that a worker has for a turn that it no longer holds. They are kept as evidence and applied nowhere. */
import { errorText, type JsonValue, type ModelReply, maskSecrets } from '@boxcar/kernel';
import { type CallSettlement, type Evidence, keepEvidence } from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import { newId, toBody } from '../lib/index.js';
import { usageRow } from '../model/index.js';
import type { HeldTurn } from './held-turn.js';

type Late = Pick<Evidence, 'kind' | 'step' | 'attempt' | 'toolCallId' | 'body' | 'usage'>;

export const lateReply = (
  reply: ModelReply,
  at: { readonly step: number; readonly attempt: number },
): Late => ({
  kind: 'reply',
  ...at,
  toolCallId: null,
  body: toBody({
    text: reply.text.toWellFormed(),
    tool_calls: reply.toolCalls.map(({ name, arguments: given }) => ({
      name: name.toWellFormed(),
      arguments: given.toWellFormed(),
    })),
    finish_reason: reply.finishReason,
  }),
  usage: usageRow(reply.usage),
});

/** The late result of a tool. @param outcome - As in its result card: status with result or error. */
export const lateResult = (
  toolCallId: CallSettlement['toolCallId'],
  step: number,
  outcome: JsonValue,
): Late => ({
  kind: 'result',
  step,
  attempt: null,
  toolCallId,
  body: toBody(maskSecrets(outcome)),
  usage: null,
});

export const lateSettlements = (settlements: readonly CallSettlement[], step: number): readonly Late[] =>
  settlements.map(({ toolCallId, card }) =>
    lateResult(toolCallId, step, JSON.parse(card.contentText) as JsonValue),
  );

/** Never fails: evidence that cannot be kept becomes a line in the log. */
export async function keepLate(
  runtime: Pick<RuntimeCore, 'pool' | 'log'>,
  { turn, holderId }: Pick<HeldTurn, 'turn' | 'holderId'>,
  items: readonly Late[],
): Promise<void> {
  if (items.length === 0) return;
  try {
    await keepEvidence(
      runtime.pool,
      items.map((item) => ({
        ...item,
        id: newId(),
        projectId: turn.projectId,
        turnId: turn.turnId,
        epoch: turn.epoch,
        holderId,
      })),
    );
  } catch (error) {
    runtime.log('warn', 'turn.evidence_lost', {
      turn_id: turn.turnId,
      error: errorText(error),
    });
  }
}
