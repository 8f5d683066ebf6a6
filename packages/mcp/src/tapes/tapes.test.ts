/** Tools of tapes, with the rights of the client. */
import type { JsonObject } from '@boxcar/kernel';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { McpClientScope } from '../client-scope.js';
import { openStage, type Stage } from '../testing/stage.js';

let stage: Stage;

beforeAll(async () => {
  stage = await openStage({ works: false });
  await stage.profile('idle', [{ say: 'done' }], { worker_target: 'nowhere' });
  for (const name of ['ada', 'bob']) await stage.agent(name, 'idle');
});
afterAll(() => stage[Symbol.asyncDispose]());

async function call(name: string, args: JsonObject, rest: Partial<McpClientScope> = {}) {
  await using connection = await stage.connect(rest);
  return await connection.call(name, args);
}

test('an agent adds anchors to, describes, lists and searches its own tape', async () => {
  const as = 'ada';
  const handoff = { name: 'phase-1', summary: 'The pantograph is drawn.', idempotency_key: 'one' };
  const first = await call('tape_handoff', handoff, { as });
  expect(first.body).toEqual({ success: true, message: 'anchor added: phase-1' });
  // The same key gives the same anchor.
  expect((await call('tape_handoff', handoff, { as })).body).toEqual(first.body);
  expect((await call('tape_info', {}, { as })).body).toMatchObject({
    success: true,
    tape: { last_anchor: 'phase-1' },
  });
  const { body } = await call('tape_anchors', {}, { as });
  expect(body).toMatchObject({ anchors: expect.any(Array), next: null });
  expect((body.anchors as JsonObject[]).filter(({ name }) => name === 'phase-1')).toMatchObject([
    { state: { summary: 'The pantograph is drawn.' } },
  ]);
  const found = await call('tape_search', { query: 'pantograph', kinds: ['anchor'] }, { as });
  expect(found.body).toMatchObject({ is_cut: false, matches: [{ kind: 'anchor', match: 'exact' }] });
});

test('the operator names the tape, and a tape that does not exist is not made', async () => {
  expect((await call('tape_info', {})).body).toMatchObject({
    error_code: 'VALIDATION_ERROR',
    details: { field: 'arguments.tape' },
  });
  expect((await call('tape_info', { tape: 'nothing-of-this-name' })).body).toMatchObject({
    error_code: 'NOT_FOUND',
  });
});

test('answers of a search are limited', async () => {
  const tape = await stage.opened.runtime.tape('long');
  const messages = Array.from({ length: 120 }, (_, index) => ({
    kind: 'message' as const,
    content: `crane ${index} ${'x'.repeat(10_000)}`,
  }));
  await tape.append(messages);
  const { body } = await call('tape_search', { tape: 'long', query: 'crane', limit: 500 });
  expect(body.is_cut).toBe(true);
  expect((body.matches as unknown[]).length).toBeGreaterThan(10);
  expect(JSON.stringify(body).length).toBeLessThan(400_000);
});

describe('another agent', () => {
  test('reads nothing of a tape without a grant, and writes nothing', async () => {
    const { boxId } = await stage.opened.runtime.tape({ agent: 'ada' });
    for (const tool of ['tape_info', 'tape_anchors', 'tape_handoff', 'tape_fork'])
      expect([tool, (await call(tool, { tape: boxId }, { as: 'bob' })).isError]).toEqual([tool, true]);
    await stage.opened.runtime.submit('grant_box', { box_id: boxId, grantee: 'bob', mode: 'read' });
    expect((await call('tape_info', { tape: boxId }, { as: 'bob' })).isError).toBe(false);
    expect((await call('tape_handoff', { tape: boxId, name: 'x' }, { as: 'bob' })).body).toMatchObject({
      error_code: 'BOX_NOT_AUTHORIZED',
    });
  });
});

describe('a fork by a tool', () => {
  test('can be a separate tape', async () => {
    await stage.opened.runtime.tape('notes');
    const { body } = await call('tape_fork', { tape: 'notes' });
    expect(body).toMatchObject({ success: true, fork_id: expect.any(String), box_id: expect.any(String) });
    expect((await call('tape_info', { tape: String(body.box_id) })).isError).toBe(false);
  });

  test('can be a session with an agent of its own', async () => {
    await call('tape_handoff', { name: 'phase-2' }, { as: 'ada' });
    const request = { session: 'scout', from_anchor: 'phase-2', next_steps: 'Look around' };
    expect((await call('tape_fork', request, { as: 'ada' })).body).toMatchObject({ session: 'scout' });
    expect((await call('tape_fork', request, { as: 'ada' })).body).toMatchObject({
      error_code: 'AGENT_EXISTS',
    });
  });

  test('without a session has nothing of a session', async () => {
    expect((await call('tape_fork', { tape: 'notes', next_steps: 'Go' })).body).toMatchObject({
      error_code: 'VALIDATION_ERROR',
    });
  });
});
