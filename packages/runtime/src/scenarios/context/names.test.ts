/** Names at the doors of the runtime. Names that schemas check are tested in the kernel. */
import { expect, test } from 'vitest';
import { harness } from '../../testing/harness.js';

test('no key, status or author may contain direction marks or control characters', async () => {
  await using place = await harness();
  const { runtime } = place;
  await place.profile('p', [{ say: 'done' }]);
  const tape = await runtime.tape('notes');
  const { name: session } = await tape.forkSession('s', { profile: 'p' });
  for (const wrong of ['a\u202eb', 'a\u0007b']) {
    const doors: Record<string, () => Promise<unknown>> = {
      append: () => tape.append([{ kind: 'event', name: 'e' }], { dedupKey: wrong }),
      import: () => runtime.importTape('imported', { main: { lines: () => [] } }, { dedupKey: wrong }),
      fork: () => tape.forkTape({ key: wrong }),
      status: () => runtime.sessions.setStatus(session, wrong),
      author: () =>
        runtime.packer.packContext({
          projectId: 'default',
          sourceAgentId: 'operator',
          toolSuffix: wrong,
          arguments: {},
          handover: { target_profile_config: { profile_name: 'p' } },
        }),
    };
    for (const [door, open] of Object.entries(doors))
      await expect(open(), door).rejects.toMatchObject({
        code: 'bad_request',
        message: expect.stringContaining('must not contain control characters'),
      });
  }
});
