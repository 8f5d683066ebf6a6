/** Text that Postgres cannot store is refused at every entrance, with an error that says so. */
import { KernelError } from '@boxcar/kernel';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { type Harness, harness } from '../../testing/harness.js';

let h: Harness;
let turnId: string;

beforeAll(async () => {
  h = await harness();
  await h.profile('p', [{ say: 'done' }]);
  await h.runtime.tape('notes');
  const receipt = await h.runtime.submit('launch_principal', { profile_name: 'p', instruction: 'x' });
  turnId = (receipt as { turn_id: string }).turn_id;
});

afterAll(() => h[Symbol.asyncDispose]());

const launch = { profile_name: 'p', instruction: 'x' };

/** Lookups by an id or a name that no row can have are answered as not found. Everything else is refused. */
const REFUSALS = ['bad_request', 'bad_config', 'profile_invalid', 'unknown_primitive', 'not_found'];

/** Each function passes the text to a place where it would reach a column, a comparison or a cast. */
const WAYS: readonly [string, (text: string) => Promise<unknown>][] = [
  ['project', (text) => h.runtime.submit('launch_principal', launch, { projectId: text })],
  ['agent', (text) => h.runtime.submit('launch_principal', launch, { sourceAgentId: text })],
  ['parent turn', (text) => h.runtime.submit('launch_principal', launch, { parentTurnId: text })],
  ['channel', (text) => h.runtime.submit('launch_principal', launch, { channelId: text })],
  ['key', (text) => h.runtime.submit('launch_principal', launch, { idempotencyKey: text })],
  ['traceparent', (text) => h.runtime.submit('launch_principal', launch, { traceparent: text })],
  ['job id', (text) => h.runtime.accept('launch_principal', { ...launch, wait: true }, { doorJobId: text })],
  ['primitive', (text) => h.runtime.submit(text, launch)],
  ['turn', (text) => h.runtime.waitForTurn(text, { timeoutMs: 60_000 })],
  ['project of a wait', (text) => h.runtime.waitForTurn(turnId, { projectId: text, timeoutMs: 60_000 })],
  ['project of a look', (text) => h.runtime.getTurn(turnId, { projectId: text })],
  ['batch', (text) => h.runtime.waitForBatch(text, { timeoutMs: 60_000 })],
  ['turn to explain', (text) => h.runtime.explainStep(text)],
  ['project to explain', (text) => h.runtime.explainStep(turnId, { projectId: text })],
  [
    'project of a profile',
    (text) => h.runtime.applyProfile({ name: 'q', instructions: '', model: 'scripted' }, { projectId: text }),
  ],
  [
    'name of a profile',
    (text) => h.runtime.applyProfile({ name: text, instructions: '', model: 'scripted' }),
  ],
  ['profile', (text) => h.runtime.getProfile(text)],
  ['project of profiles', (text) => h.runtime.listProfiles({ projectId: text })],
  ['tag', (text) => h.runtime.listProfiles({ tag: text })],
  ['profile of several', (text) => h.runtime.findProfileVersions([{ name: text, version: 1 }])],
  ['reference', (text) => h.runtime.resolveTapeRef(text)],
  [
    'reader of a reference',
    (text) => h.runtime.resolveTapeRef('tape://default/notes/anchor/x', { as: text }),
  ],
  ['tape', (text) => h.runtime.tape(text)],
  ['tape that must exist', (text) => h.runtime.tape(text, { create: false })],
  ['project of a tape', (text) => h.runtime.tape('notes', { projectId: text })],
  ['agent of a tape', (text) => h.runtime.tape('notes', { as: text })],
  ['name of an anchor', async (text) => (await h.runtime.tape('notes')).handoff(text)],
  [
    'name of a tool',
    async (text) =>
      h.runtime.registerTool({ name: text, description: 'x', input: z.object({}), run: () => 1 }),
  ],
  ['prefix of models', async (text) => h.runtime.registerModel(text, h.runtime.model)],
  ['target of a worker', async (text) => h.worker({ targets: [text] })],
  ['profile to launch', (text) => h.runtime.submit('launch_principal', { ...launch, profile_name: text })],
  ['agent to cancel', (text) => h.runtime.submit('cancel', { turn_id: text })],
  ['box', (text) => h.runtime.submit('launch_principal', { ...launch, context_box_id: text })],
];

describe.each([
  ['a NUL', 'a\u0000b'],
  ['half a surrogate pair', 'a\ud800b'],
  ['an id with a NUL', '01890000-0000-7000-8000-000000000000\u0000'],
])('%s', (_what, text) => {
  test.each(WAYS)('as %s is refused with that reason', async (_way, send) => {
    const error = await send(text).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(KernelError);
    const { code, message } = error as KernelError;
    expect(REFUSALS).toContain(code);
    // The error names the field of the caller, not a statement.
    expect(message).not.toMatch(/Postgres/);
  });
});
