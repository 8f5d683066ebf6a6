/** The text of a refusal contains the caller's own name for the field, the allowed values, and the probably intended value. */
import { KernelError } from '@boxcar/kernel';
import { beforeEach, describe, expect, test } from 'vitest';
import { newId } from '../lib/new-id.js';
import { type Harness, harness } from '../testing/harness.js';

let h: Harness;

beforeEach(async () => {
  h = await harness();
  for (const name of ['writer', 'reviewer'])
    await h.runtime.applyProfile({ name, instructions: 'Help.', model: 'scripted', script: [{ say: 'ok' }] });
  return () => h[Symbol.asyncDispose]();
});

async function refusalOf(primitive: string, args: unknown, options = {}): Promise<KernelError> {
  const error: unknown = await h.runtime.submit(primitive, args, options).then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  if (error instanceof KernelError) return error;
  throw new Error(`${primitive} was not refused`);
}

describe('a refusal names the field as the caller wrote it:', () => {
  const box = newId<'box'>();
  test.each([
    [
      'launch_principal',
      { profile_name: 'writer', instruction: 'x', context_box_id: box },
      'arguments.context_box_id',
    ],
    [
      'launch_principal',
      { profile_name: 'writer', instruction: 'x', context_box_id: [box] },
      'arguments.context_box_id',
    ],
    [
      'launch_principal',
      { profile_name: 'writer', instruction: 'x', context_box_id: ['a'] },
      'arguments.context_box_id.0',
    ],
    [
      'ask_expert',
      { expert_profile: 'writer', question: 'x', context_box_id: box },
      'arguments.context_box_id',
    ],
    [
      'delegate_async',
      { target_strategy: 'new', target_ref: 'writer', instruction: 'x', context_box_id: box },
      'arguments.context_box_id',
    ],
    [
      'fork_join',
      { tasks: [{ target_strategy: 'new', target_ref: 'writer', instruction: 'x', context_box_id: box }] },
      'arguments.tasks.0.context_box_id',
    ],
    ['launch_principal', { profile_name: 'nobody', instruction: 'x' }, 'arguments.profile_name'],
    ['ask_expert', { expert_profile: 'nobody', question: 'x' }, 'arguments.expert_profile'],
    ['ask_expert', { expert_profile: 'writer', question: ',tape.info' }, 'arguments.question'],
    [
      'delegate_async',
      { target_strategy: 'reuse', target_ref: 'nobody', instruction: 'x' },
      'arguments.target_ref',
    ],
    ['context_handoff', { target_ref: 'nobody', reason: 'x', summary: 'x' }, 'arguments.target_ref'],
  ])('%s %j', async (primitive, args, field) => {
    const error = await refusalOf(primitive, args);
    expect(error.details.field).toBe(field);
    expect(error.message).toMatch(new RegExp(`^${field.replaceAll('.', '\\.')}: `));
    expect(error.message).not.toContain('input_box_ids');
  });
});

describe('a refusal suggests a similar known name', () => {
  test('for profiles, and lists the profiles when none is similar', async () => {
    const near = await refusalOf('launch_principal', { profile_name: 'reviwer', instruction: 'x' });
    expect(near.message).toContain("No profile 'reviwer' in this project; did you mean 'reviewer'?");
    const far = await refusalOf('ask_expert', { expert_profile: 'zzzzz', question: 'x' });
    expect(far.message).toContain("No profile 'zzzzz' in this project. There are reviewer, writer.");
    const handoff = await refusalOf('context_handoff', {
      target_ref: 'profile:writr',
      reason: 'x',
      summary: 'x',
    });
    expect(handoff.message).toContain("did you mean 'writer'?");
    const agent = await refusalOf('provision_agent', { action: 'create', profile_name: 'Writer' });
    expect(agent.message).toContain("did you mean 'writer'?");
  });

  test('for primitives and arguments', async () => {
    const primitive = await refusalOf('fork-join', { tasks: [] });
    expect(primitive.message).toContain("; did you mean 'fork_join'?");
    const argument = await refusalOf('launch_principal', { profile: 'writer', instruktion: 'x' });
    expect(argument.message).toContain('arguments.profile_name: is missing; it must be a string.');
    expect(argument.message).toContain("'instruktion' (did you mean 'instruction'?)");
  });

  test('but never a profile that the caller may not reach', async () => {
    await h.runtime.applyProfile({
      name: 'boss',
      instructions: 'Help.',
      model: 'scripted',
      script: [{ say: 'ok' }],
      delegation_policy: { target_profiles: ['writer'] },
    });
    await h.runtime.submit('provision_agent', { action: 'create', agent_id: 'ann', profile_name: 'boss' });
    const asAnn = { sourceAgentId: 'ann' };
    const unknown = await refusalOf('launch_principal', { profile_name: 'revi', instruction: 'x' }, asAnn);
    expect(unknown.message).toContain('There are writer.');
    expect(unknown.message).not.toContain('reviewer');
    const denied = await refusalOf('launch_principal', { profile_name: 'reviewer', instruction: 'x' }, asAnn);
    expect(denied.code).toBe('delegation_denied');
    expect(denied.message).toContain('It may reach writer.');
  });
});
