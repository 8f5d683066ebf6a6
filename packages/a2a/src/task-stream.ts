/**
 * Streams a task: first the task itself, then each change, in order.
 *
 * S1  Everything in the stream is read from the rows of the task, from the beginning. So a reader that joins late gets all of it.
 * S2  Output that an agent has already sent can become void. The next piece of the result then replaces the earlier pieces (`append:
 *     false`).
 * S3  The last piece is marked as the last one, even when its text is empty: some clients discard a result that is never marked complete.
 * S4  The last event has the final state. A question ends the stream too: the client that answers it opens a new stream.
 */
import { type StreamResponse, TaskState } from '@a2a-js/sdk';
import { resultArtifact, resultPart, stateOf, statusOf, textPart, toTask } from '@boxcar/adapters/a2a';
import type { HandoffPart } from '@boxcar/kernel';
import type { AgentDoor } from '@boxcar/runtime';
import type { PublicTask } from '@boxcar/store';

type Payload = NonNullable<StreamResponse['payload']>;

const eventOf = (payload: Payload): StreamResponse => ({ payload });

/** The state of the reader after all events that the stream has sent so far. */
class Told {
  readonly #ids: { readonly taskId: string; readonly contextId: string };
  #isWorking: boolean;
  /** The reader has a result to which pieces can be appended. */
  #hasPieces = false;
  /** The reader has pieces that have become void. */
  #hasVoid = false;

  constructor(task: PublicTask) {
    this.#ids = { taskId: task.handoff_id, contextId: task.conversation };
    this.#isWorking = stateOf(task) === TaskState.TASK_STATE_WORKING;
  }

  *takePart(part: HandoffPart): Generator<StreamResponse> {
    if (part.type === 'text') {
      yield* this.#begin();
      yield this.#piece(textPart(part.text), false);
    } else if (part.type === 'reset') {
      this.#hasVoid ||= this.#hasPieces;
      this.#hasPieces = false;
    } else if (part.type === 'result' && this.#hasPieces) {
      yield this.#piece(textPart(''), true);
    } else if (part.type === 'result') {
      const isEmpty = part.result === null || part.result === '';
      if (!isEmpty || this.#hasVoid) yield this.#piece(resultPart(part.result ?? ''), true);
    }
  }

  status(task: PublicTask): StreamResponse {
    return eventOf({
      $case: 'statusUpdate',
      value: { ...this.#ids, status: statusOf(task), metadata: undefined },
    });
  }

  *#begin(): Generator<StreamResponse> {
    if (this.#isWorking) return;
    this.#isWorking = true;
    const status = {
      state: TaskState.TASK_STATE_WORKING,
      message: undefined,
      timestamp: new Date().toISOString(),
    };
    yield eventOf({ $case: 'statusUpdate', value: { ...this.#ids, status, metadata: undefined } });
  }

  #piece(part: ReturnType<typeof resultPart>, lastChunk: boolean): StreamResponse {
    const append = this.#hasPieces;
    this.#hasPieces = true;
    this.#hasVoid = false;
    const artifact = resultArtifact([part]);
    return eventOf({
      $case: 'artifactUpdate',
      value: { ...this.#ids, artifact, append, lastChunk, metadata: undefined },
    });
  }
}

export interface FollowOptions {
  readonly signal: AbortSignal;
  readonly historyLength: number | undefined;
  /** A question that does not end the stream. */
  readonly asked: PublicTask['question'];
}

/** Ends with the task or with a question; when the signal fires, it ends without an error. */
export async function* followTask(
  door: AgentDoor,
  task: PublicTask,
  { signal, historyLength, asked }: FollowOptions,
): AsyncGenerator<StreamResponse, void> {
  const told = new Told(task);
  yield eventOf({ $case: 'task', value: toTask(task, { historyLength }) });
  if (task.ended_at === null)
    try {
      for await (const part of door.stream(task.handoff_id, { signal, asked })) yield* told.takePart(part);
    } catch (error) {
      if (signal.aborted) return;
      throw error;
    }
  const ended = task.ended_at === null ? await door.get(task.handoff_id) : task;
  if (ended !== undefined) yield told.status(ended);
}
