/** Tasks of public agents in the form of the protocol, built from database rows. */
import {
  type Artifact,
  type Message,
  type Part,
  Role,
  type Task,
  TaskState,
  type TaskStatus,
} from '@a2a-js/sdk';

import { ERROR_CATALOGUE, type Handoff, type HandoffPhase, type JsonValue } from '@boxcar/kernel';

export const TEXT_TYPE = 'text/plain';
export const JSON_TYPE = 'application/json';

/** The task text for a message that has data and no text. */
export const DATA_TASK = 'Do what the data of this message asks for.';

/** The row of a task. */
export interface TaskRecord
  extends Pick<
    Handoff,
    'handoff_id' | 'phase' | 'task' | 'payload' | 'result' | 'error' | 'turn_id' | 'created_at' | 'ended_at'
  > {
  readonly conversation: string;
  readonly message_id: string;
  /** The open question of the task; null: there is none. */
  readonly question: {
    readonly handoff_id: string;
    readonly seq: number;
    /** Null after erasure. */
    readonly text: string | null;
    readonly asked_at: Date;
  } | null;
}

const RESULT = 'result';
const ERASED_QUESTION = '(erased)';

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

export const stateOf = ({ phase }: Pick<TaskRecord, 'phase'>): TaskState => STATES[phase];

/** The handoff phases that are shown as a given state. */
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

/** The result of a task. */
export const resultArtifact = (parts: readonly Part[]): Artifact => ({
  artifactId: RESULT,
  name: RESULT,
  description: '',
  parts: [...parts],
  metadata: undefined,
  extensions: [],
});

const messageIn = (
  { handoff_id: taskId, conversation: contextId }: TaskRecord,
  of: Pick<Message, 'messageId' | 'role' | 'parts'>,
): Message => ({ ...of, taskId, contextId, metadata: undefined, extensions: [], referenceTaskIds: [] });

/** The message of a state: the reason of a missing result, or the event that the task waits for. */
function wordsOf({ phase, error, turn_id, question }: TaskRecord): string | undefined {
  if (question !== null) return question.text ?? ERASED_QUESTION;
  if (phase === 'awaiting_approval') return 'The task waits for an approval.';
  if (error === null || turn_id === null || phase === 'canceled') return error?.message;
  // The error of a failed turn may name models, addresses and files; only the operator may see it.
  return (
    Object.entries(ERROR_CATALOGUE).find(([code]) => code === error.code)?.[1].message ??
    'The agent has failed.'
  );
}

export function statusOf(task: TaskRecord): TaskStatus {
  const { question } = task;
  const words = wordsOf(task);
  // Each question is a separate message.
  const id = question === null ? `${task.handoff_id}/status` : `${question.handoff_id}/${question.seq}`;
  return {
    state: stateOf(task),
    message:
      words === undefined
        ? undefined
        : messageIn(task, { messageId: id, role: Role.ROLE_AGENT, parts: [textPart(words)] }),
    timestamp: (task.ended_at ?? question?.asked_at ?? task.created_at).toISOString(),
  };
}

/** The request of the task, as the row has it. */
function historyOf(task: TaskRecord): readonly Message[] {
  const { payload, message_id: messageId } = task;
  const isWords = task.task !== DATA_TASK || payload === null;
  const parts = [...(isWords ? [textPart(task.task)] : []), ...(payload === null ? [] : [dataPart(payload)])];
  return [messageIn(task, { messageId, role: Role.ROLE_USER, parts })];
}

export interface TaskView {
  /** The maximum number of messages of its history. */
  readonly historyLength?: number | undefined;
  readonly hasArtifacts?: boolean | undefined;
}

export function toTask(task: TaskRecord, { historyLength, hasArtifacts = true }: TaskView = {}): Task {
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
