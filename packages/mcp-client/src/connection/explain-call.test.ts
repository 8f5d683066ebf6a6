import { KernelError } from '@boxcar/kernel';
import { expect, test } from 'vitest';
import { explainCall, isRefusedSession } from './explain-call.js';

const failure = (members: object): Error => Object.assign(new Error('its words'), members);

test.each<[string, object, string]>([
  ['an error of JSON-RPC', { code: -32602 }, 'tool_failed'],
  ['an invalid result', { code: 'INVALID_RESULT' }, 'tool_failed'],
  ['a refused request', { code: 'CLIENT_HTTP_NOT_IMPLEMENTED', status: 422 }, 'tool_failed'],
  ['a refused connection', { code: 'ECONNREFUSED' }, 'tool_server_unavailable'],
  ['an address that is not allowed', { code: 'ADDRESS_REFUSED' }, 'tool_server_unavailable'],
  ['a key that is refused', { code: 'CLIENT_HTTP_AUTHENTICATION', status: 401 }, 'tool_server_unavailable'],
  ['an error of the server', { code: 'CLIENT_HTTP_NOT_IMPLEMENTED', status: 500 }, 'outcome_unknown'],
  ['the end of the connection', { code: 'CONNECTION_CLOSED' }, 'outcome_unknown'],
  ['a reset', { code: 'ECONNRESET' }, 'outcome_unknown'],
  ['anything else', {}, 'outcome_unknown'],
])('%s is explained as %s', (_what, members, code) => {
  expect(explainCall('s', 's.t', failure(members)).code).toBe(code);
});

test('an error with a code keeps it, and a thrown value need not be an error', () => {
  const known = new KernelError('tool_failed');
  expect(explainCall('s', 's.t', known)).toBe(known);
  expect(explainCall('s', 's.t', 'words').code).toBe('outcome_unknown');
});

test.each<[string, object, boolean]>([
  ['404', { status: 404 }, true],
  ['400 with such a message', { status: 400, message: 'Bad Request: No valid session ID provided' }, true],
  ['400', { status: 400 }, false],
  ['500', { status: 500 }, false],
  ['401', { status: 401 }, false],
])(
  'the status %s shows correctly whether the server does not know the session and has not begun the call',
  (_what, members, isRefused) => {
    expect(isRefusedSession(failure(members))).toBe(isRefused);
  },
);
