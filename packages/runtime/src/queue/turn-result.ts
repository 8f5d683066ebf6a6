import type { ErrorBody, JsonValue, TurnId } from '@boxcar/kernel';
import type { TurnState } from '@boxcar/store';
import { deliverableOf } from '../lib/index.js';
import type { TurnEnd } from './turn-watcher.js';

/** The end of a turn in the form that its caller receives. */
export interface TurnResult {
  readonly status: TurnState['status'];
  readonly turn_id: TurnId;
  readonly agent_id: string;
  readonly context_box_id: string;
  readonly output_box_id: string;
  /** The deliverable: text, or the JSON that was submitted. Null while the turn is in progress. */
  readonly result: JsonValue;
  readonly error?: ErrorBody;
}

export const toTurnResult = (state: TurnEnd): TurnResult => ({
  status: state.status,
  turn_id: state.turn_id,
  agent_id: state.agent_id,
  context_box_id: state.context_box_id,
  output_box_id: state.output_box_id,
  result: deliverableOf(state.content),
  ...(state.error === null ? {} : { error: state.error }),
});
