/** Questions of a handoff and their replies, for a terminal. */
import { toPlain } from '@boxcar/host/base';
import type { HandoffMessage } from '@boxcar/kernel';
import { formatShortDuration } from './text.js';

function headOf({ seq, type, state, replies_to, by, expires_at, created_at }: HandoffMessage): string {
  if (type === 'reply')
    return `${seq}  reply to ${replies_to} by ${toPlain(by ?? '')}, ${created_at.toISOString()}`;
  const left =
    state === 'open' && expires_at !== null
      ? `, ${formatShortDuration(Math.max(expires_at.getTime() - Date.now(), 0))} left`
      : '';
  return `${seq}  question, ${state}${left}, ${created_at.toISOString()}`;
}

const bodyOf = ({ text }: HandoffMessage): string =>
  toPlain(text ?? '(erased)')
    .split('\n')
    .map((line) => `   ${line}`)
    .join('\n');

export const describeMessages = (messages: readonly HandoffMessage[]): string =>
  messages.length === 0
    ? 'no questions'
    : messages.map((message) => `${headOf(message)}\n${bodyOf(message)}`).join('\n');
