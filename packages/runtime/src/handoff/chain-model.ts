/** Decides for the turn of a chain what a model decides for that of an agent: its next move, from the rows. */
import {
  type ChainCall,
  type Model,
  ModelError,
  type ModelReply,
  nextMove,
  type TurnId,
} from '@boxcar/kernel';
import { type ChainRow, findChainOfTurn } from '@boxcar/store';
import type pg from 'pg';
import { hopsOf, stepOf } from './chain-primitives.js';
import { CHAIN_TOOL } from './handoff-profile.js';

/** The moves that concern a hop. */
export const movesOf = ({ moves }: ChainRow): readonly ChainCall[] =>
  moves.flatMap(({ arguments: { hop, undo }, status, error }) =>
    typeof hop === 'number'
      ? [
          {
            hop,
            isUndo: undo === true,
            status: status === 'success' || status === 'pending' ? status : ('failed' as const),
            error,
          },
        ]
      : [],
  );

const replyOf = (id: string, move: object): ModelReply => ({
  text: '',
  toolCalls: [{ id, name: CHAIN_TOOL, arguments: JSON.stringify(move) }],
  usage: { inputTokens: 0, outputTokens: 0 },
  finishReason: 'tool_calls',
});

/** @throws ModelError `chain_failed` once everything that was done is undone, or cannot be. */
function decide(chain: ChainRow): ModelReply {
  const hops = hopsOf(chain);
  const move = nextMove(hops, movesOf(chain));
  switch (move.kind) {
    case 'hop':
      return move.isUndo
        ? replyOf(`undo-${move.hop}`, { hop: move.hop, undo: true })
        : replyOf(`hop-${move.hop}`, { hop: move.hop });
    case 'end':
      return replyOf('end', {});
    case 'failed': {
      const { hop, phase, error } = move;
      const target = hops[hop - 1]?.target_agent ?? '';
      throw new ModelError(
        'chain_failed',
        `Hop ${hop} of ${hops.length} (${target}) failed: ${error?.message ?? 'no error'}`,
        {
          details: {
            handoff_id: chain.handoff_id,
            phase,
            hop,
            failed_handoff_id: stepOf(chain, hop)?.handoff_id ?? null,
            code: error?.code ?? null,
          },
        },
      );
    }
    default:
      return move satisfies never;
  }
}

export function chainModel(pool: pg.Pool): Model {
  return {
    async generate({ turn }, { signal }) {
      signal.throwIfAborted();
      const chain = await findChainOfTurn(pool, turn.turnId as TurnId);
      if (chain === undefined) throw new ModelError('model_unknown', 'This turn drives no chain.');
      return decide(chain);
    },
  };
}
