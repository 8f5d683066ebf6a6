/** Push notifications in the form of each protocol version. Rule: docs/reference/a2a.md, "Push notifications". */
import { StreamResponse } from '@a2a-js/sdk';
import { V03PushNotificationSerializer } from '@a2a-js/sdk/compat/v0_3/server';
import { type TaskRecord, toTask } from './task.js';

const TOKEN_HEADER = 'x-a2a-notification-token';
const CONTENT_TYPE = 'application/a2a+json';

/** The receiver of a notification. */
export interface Notified {
  readonly token: string | null;
  readonly scheme: string | null;
  readonly credentials: string | null;
  /** `0.3`; any other value means the newest protocol. */
  readonly version: string;
}

export interface Notification {
  readonly body: string;
  readonly headers: Readonly<Record<string, string>>;
}

/** Builds the notification that reports the state of a task. */
export function notificationOf(record: TaskRecord, to: Notified): Notification {
  const task = toTask(record);
  const event: StreamResponse = { payload: { $case: 'task', value: task } };
  const { body, contentType } =
    to.version === '0.3'
      ? new V03PushNotificationSerializer().serialize(event, task)
      : { body: JSON.stringify(StreamResponse.toJSON(event)), contentType: CONTENT_TYPE };
  return {
    body,
    headers: {
      'content-type': contentType,
      ...(to.token === null ? {} : { [TOKEN_HEADER]: to.token }),
      ...(to.scheme === null || to.credentials === null
        ? {}
        : { authorization: `${to.scheme} ${to.credentials}` }),
    },
  };
}
