import { createHash } from 'node:crypto';
import { expect, test } from 'vitest';
import { normalizeWorkspace, sessionTapeName } from './session-address.js';

const part = (text: string): string => createHash('md5').update(text).digest('hex').slice(0, 16);

test('a workspace has a single spelling, which is found without reading the disk', () => {
  for (const path of ['/srv/demo', '/srv/demo/', '/srv/x/../demo', '/srv//demo/./', '/../srv/demo'])
    expect(normalizeWorkspace(path)).toBe('/srv/demo');
  expect(normalizeWorkspace('/')).toBe('/');
  expect(normalizeWorkspace('/srv/..')).toBe('/');
  expect(normalizeWorkspace('C:\\work\\x\\..\\demo\\')).toBe('C:\\work\\demo');
  expect(normalizeWorkspace('C:/work/demo')).toBe('C:\\work\\demo');
  expect(normalizeWorkspace('C:\\')).toBe('C:\\');
});

test('a relative workspace and a blank session are refused with the names of their fields', () => {
  for (const workspace of ['.', 'demo', '../demo', '~/demo', '', '/a\0b'])
    expect(() => normalizeWorkspace(workspace)).toThrow(
      expect.objectContaining({ code: 'bad_request', details: { field: 'workspace' } }),
    );
  for (const session of ['', ' ', 'a\0', '\ud800'])
    expect(() => sessionTapeName({ workspace: '/srv', session })).toThrow(
      expect.objectContaining({ code: 'bad_request', details: { field: 'session' } }),
    );
});

test('a session has the tape that the original program gives it', () => {
  const name = `${part('/srv/demo')}__${part('telegram:123')}`;
  expect(sessionTapeName({ workspace: '/srv/x/../demo/', session: 'telegram:123' })).toBe(name);
  expect(sessionTapeName({ workspace: '/srv/demo', session: 'é' })).toBe(
    sessionTapeName({ workspace: '/srv/demo', session: 'e\u0301' }),
  );
});
