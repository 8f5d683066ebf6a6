/** The contract that every adapter must fulfill, for agents of this installation. */
import { requestFor, textCard } from '@boxcar/adapters/testing';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { failureOf } from '../testing/failure-of.js';
import { type Harness, harness } from '../testing/harness.js';
import { AGDDHandoffAdapter, NativeHandoffAdapter } from './native-adapter.js';

let h: Harness;
beforeEach(async () => {
  h = await harness({ connections: 8 });
});
afterEach(() => h[Symbol.asyncDispose]());

const options = (rest: object = {}) => ({
  signal: new AbortController().signal,
  attempt: 1,
  idempotencyKey: 'key',
  ...rest,
});
const request = (rest: object = {}) => ({
  ...requestFor({ platform: 'agdd' }, { cards: [] }),
  target_agent: 'helper',
  ...rest,
});

test('the adapter has the names of its platform, in upper and lower case, and needs no argument; without a runtime an execution fails', async () => {
  const adapter = new AGDDHandoffAdapter();
  for (const name of ['agdd', 'AGDD', 'native', 'Boxcar', 'magsag'])
    expect(adapter.supportsPlatform(name)).toBe(true);
  for (const name of ['openai', '', 'agdd2']) expect(adapter.supportsPlatform(name)).toBe(false);
  expect(await failureOf(adapter.executeHandoff(request(), options()))).toMatchObject({ code: 'bad_config' });
});

test('the deliverable is the result, every card is sent, and the same key does it once', async () => {
  await h.profile('helper', [{ say: 'helped' }]);
  await h.worker();
  const adapter = new NativeHandoffAdapter({ runtime: h.runtime });
  const [card] = await cardIds();
  const ids: string[] = [];
  const run = () =>
    adapter.executeHandoff(
      request({ cards: [{ ...textCard(String(card), 'a note') }] }),
      options({ onRemoteId: (id: string) => ids.push(id) }),
    );
  const first = await run();
  expect(first).toMatchObject({
    result: 'helped',
    remote_id: ids[0],
    loss: { sent_cards: [card], lost: [] },
  });
  expect((await run()).remote_id).toBe(first.remote_id);
  expect(await h.rows('select from boxcar.turns')).toHaveLength(1);
});

test.each([
  ['profile:helper', 'of the profile'],
  ['agent:helper', 'of the agent'],
  ['helper', 'of the profile'],
])('the target %s is the turn %s', async (target_agent, answer) => {
  await h.profile('helper', [{ say: 'of the profile' }]);
  await h.profile('other', [{ say: 'of the agent' }]);
  await h.runtime.submit('provision_agent', { action: 'ensure', agent_id: 'helper', profile_name: 'other' });
  await h.worker();
  const adapter = new NativeHandoffAdapter({ runtime: h.runtime });
  expect(await adapter.executeHandoff(request({ target_agent }), options())).toMatchObject({
    result: answer,
  });
});

test('an abort ends the call at once, and the platform can be told to stop', async () => {
  await h.profile('helper', [{ say: 'never' }]);
  const adapter = new NativeHandoffAdapter({ runtime: h.runtime });
  const controller = new AbortController();
  let remoteId = '';
  const running = adapter.executeHandoff(
    request(),
    options({
      signal: controller.signal,
      onRemoteId: (id: string) => {
        remoteId = id;
        controller.abort(new Error('enough'));
      },
    }),
  );
  await expect(running).rejects.toThrow('enough');
  expect(await adapter.cancel(request(), { remoteId, signal: new AbortController().signal })).toBe(true);
  expect(await h.rows('select status from boxcar.turns')).toEqual([{ status: 'canceled' }]);
});

test('a turn that fails fails the execution with its cause', async () => {
  await h.profile('helper', [{ fail: { status: 400, message: 'no paper' } }]);
  await h.worker();
  const adapter = new NativeHandoffAdapter({ runtime: h.runtime });
  const error = await failureOf(adapter.executeHandoff(request(), options()));
  expect(error).toMatchObject({ code: 'platform_failed', details: { turn_id: expect.any(String) } });
});

async function cardIds(): Promise<string[]> {
  const boxId = await h.runtime.packer.createBox({
    projectId: 'default',
    sourceAgentId: 'operator',
    cards: [{ type: 'note', content: { kind: 'text', text: 'a note' } }],
  });
  return (
    await h.rows<{ id: string }>('select unnest(card_ids) as id from boxcar.boxes where id = $1', [boxId])
  ).map(({ id }) => id);
}
