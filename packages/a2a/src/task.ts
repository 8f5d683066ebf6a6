/** Tasks as the protocol has them, made of rows. */
import {
  type Artifact,
  type Message,
  type Part,
  Role,
  type Task,
  TaskState,
  type TaskStatus,
} from '@a2a-js/sdk';
import { ERROR_CATALOGUE, type HandoffPhase, type JsonValue } from '@boxcar/kernel';
import type { PublicTask } from '@boxcar/store';
import { JSON_TYPE, TEXT_TYPE } from './card.js';
import { DATA_TASK } from './message.js';

const RESULT = 'result';

const STATES: Readonly<Record<HandoffPhase, TaskState>> = {
  pending: TaskState.TASK_STATE_SUBMITTED,
  awaiting_approval: TaskState.TASK_STATE_SUBMITTED,
  queued: TaskState.TASK_STATE_WORKING,
  in_progress: TaskState.TASK_STATE_WORKING,
  waiting_input: TaskState.TASK_STATE_INPUT_REQUIRED,
  completed: TaskState.TASK_STATE_COMPLETED,
  failed: TaskState.TASK_STATE_FAILED,
  timed_out: TaskState.TASK_STATE_FAILED,
  canceled: TaskState.TASK_STATE_CANCELED,
  rejected: TaskState.TASK_STATE_REJECTED,
  rolled_back: TaskState.TASK_STATE_FAILED,
  compensation_failed: TaskState.TASK_STATE_FAILED,
};

export const stateOf = ({ phase }: Pick<PublicTask, 'phase'>): TaskState => STATES[phase];

/** The phases that read as a state. */
export const phasesOfState = (state: TaskState): readonly HandoffPhase[] =>
  (Object.keys(STATES) as HandoffPhase[]).filter((phase) => STATES[phase] === state);

const partOf = (content: NonNullable<Part['content']>, mediaType: string): Part => ({
  content,
  metadata: undefined,
  filename: '',
  mediaType,
});
export const textPart = (text: string): Part => partOf({ $case: 'text', value: text }, TEXT_TYPE);
const dataPart = (value: JsonValue): Part => partOf({ $case: 'data', value }, JSON_TYPE);

export const resultPart = (result: JsonValue): Part =>
  typeof result === 'string' ? textPart(result) : dataPart(result);

/** What a task has made: its result. */
export const resultArtifact = (parts: readonly Part[]): Artifact => ({
  artifactId: RESULT,
  name: RESULT,
  description: '',
  parts: [...parts],
  metadata: undefined,
  extensions: [],
});

const messageIn = (
  { handoff_id: taskId, conversation: contextId }: PublicTask,
  of: Pick<Message, 'messageId' | 'role' | 'parts'>,
): Message => ({ ...of, taskId, contextId, metadata: undefined, extensions: [], referenceTaskIds: [] });

/** What is to say of a state: why it is no result, or what it waits for. */
function wordsOf({ phase, error, turn_id }: PublicTask): string | undefined {
  if (phase === 'awaiting_approval') return 'The task waits for an approval.';
  if (error === null || turn_id === null || phase === 'canceled') return error?.message;
  // What a turn has failed with may name models, addresses and files: it is for the operator.
  return (
    Object.entries(ERROR_CATALOGUE).find(([code]) => code === error.code)?.[1].message ??
    'The agent has failed.'
  );
}

export function statusOf(task: PublicTask): TaskStatus {
  const words = wordsOf(task);
  const id = `${task.handoff_id}/status`;
  return {
    state: stateOf(task),
    message:
      words === undefined
        ? undefined
        : messageIn(task, { messageId: id, role: Role.ROLE_AGENT, parts: [textPart(words)] }),
    timestamp: (task.ended_at ?? task.created_at).toISOString(),
  };
}

/** What was asked, in the words of the row. */
function historyOf(task: PublicTask): readonly Message[] {
  const { payload, message_id: messageId } = task;
  const isWords = task.task !== DATA_TASK || payload === null;
  const parts = [...(isWords ? [textPart(task.task)] : []), ...(payload === null ? [] : [dataPart(payload)])];
  return [messageIn(task, { messageId, role: Role.ROLE_USER, parts })];
}

export interface TaskView {
  /** At most so many messages of its history. */
  readonly historyLength?: number | undefined;
  readonly hasArtifacts?: boolean | undefined;
}

export function toTask(task: PublicTask, { historyLength, hasArtifacts = true }: TaskView = {}): Task {
  const isDone = hasArtifacts && task.phase === 'completed' && task.result !== null;
  return {
    id: task.handoff_id,
    contextId: task.conversation,
    status: statusOf(task),
    artifacts: isDone ? [resultArtifact([resultPart(task.result)])] : [],
    history: historyLength === 0 ? [] : [...historyOf(task)],
    metadata: task.error === null ? undefined : { code: task.error.code },
  };
}
