import { expect, test } from 'vitest';
import { tapeName } from './tape.js';

// The output of Python for `md5(workspace.encode()).hexdigest()[:16] + '__' + md5(session.encode()).hexdigest()[:16]`.
test.each([
  ['/home/ada/project', 'cli:default', 'fef792033db68705__77537854809202ce'],
  ['/srv/Büro', 'telegram:123', '00cae4631d36bebf__efa59dbded1445b1'],
  ['', '', 'd41d8cd98f00b204__d41d8cd98f00b204'],
])(
  'the tape of workspace %j and session %j has the name that the original program gives it',
  (workspace, session, name) => {
    expect(tapeName(workspace, session)).toBe(name);
  },
);
