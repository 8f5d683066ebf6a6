/** Takes the place of a model for the turn of a chain: decides the next move from the rows. */
import {
  type ChainCall,
  type Model,
  ModelError,
  type ModelReply,
  nextMove,
  type TurnId,
} from '@boxcar/kernel';
import {
  type ChainMoveRow,
  type ChainRow,
  type ChainStep,
  findChainOfTurn,
  isServerTrouble,
  retryTransient,
} from '@boxcar/store';
import type pg from 'pg';
import { CHAIN_TOOL } from '../core/index.js';
import { hopsOf, stepOf } from './chain-primitives.js';

/** The end of a move: the end of its handoff or, if there is no handoff, the end of the call that should have made it. */
function endOf(
  { status, error }: ChainMoveRow,
  step: ChainStep | undefined,
): Pick<ChainCall, 'status' | 'error'> {
  if (status === 'pending') return { status, error };
  if (step === undefined) return { status: status === 'success' ? status : 'failed', error };
  return { status: step.phase === 'completed' ? 'success' : 'failed', error: step.error };
}

/** The moves that concern a hop. */
const movesOf = (chain: ChainRow): readonly ChainCall[] =>
  chain.moves.flatMap((move) => {
    const { hop, undo } = move.arguments;
    if (typeof hop !== 'number') return [];
    const isUndo = undo === true;
    return [{ hop, isUndo, ...endOf(move, stepOf(chain, hop, isUndo ? 'compensate' : 'handoff')) }];
  });

const replyOf = (id: string, move: object): ModelReply => ({
  text: '',
  toolCalls: [{ id, name: CHAIN_TOOL, arguments: JSON.stringify(move) }],
  usage: { inputTokens: 0, outputTokens: 0 },
  finishReason: 'tool_calls',
});

/** @throws ModelError `chain_failed` after all completed hops are undone, or cannot be undone. */
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

/** An unavailable database does not fail the chain: the turn tries again, as it does when a provider is unavailable. */
async function load(pool: pg.Pool, turnId: TurnId): Promise<ChainRow | undefined> {
  try {
    return await retryTransient(() => findChainOfTurn(pool, turnId));
  } catch (error) {
    if (!isServerTrouble(error)) throw error;
    throw new ModelError('model_unavailable', 'The rows of the chain cannot be read now.', {
      canRetry: true,
      cause: error,
    });
  }
}

export function chainModel(pool: pg.Pool): Model {
  return {
    async generate({ turn }, { signal }) {
      signal.throwIfAborted();
      const chain = await load(pool, turn.turnId as TurnId);
      if (chain === undefined) throw new ModelError('model_unknown', 'This turn drives no chain.');
      return decide(chain);
    },
  };
}
