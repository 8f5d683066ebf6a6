/** Tools that a profile names but that do not exist. Source: docs/reference/profiles.md. */
import { type JsonValue, KernelError } from '@boxcar/kernel';
import { beforeEach, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { type Harness, harness } from '../testing/harness.js';

let h: Harness;
beforeEach(async () => {
  h = await harness();
  return () => h[Symbol.asyncDispose]();
});

const OK: JsonValue[] = [{ say: 'ok' }];
const apply = async (rest: object) =>
  (await h.runtime.applyProfile({ name: 'a', instructions: '', model: 'scripted', script: OK, ...rest }))
    .findings ?? [];

async function play(name: string) {
  const { turn_id: turnId } = (await h.runtime.submit('launch_principal', {
    profile_name: name,
    instruction: 'go',
  })) as { turn_id: string };
  return h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });
}

describe('a finding when a profile is applied', () => {
  test('reports an unknown tool, with a similar known name', async () => {
    h.runtime.registerTool({ name: 'look', description: 'Looks.', input: z.strictObject({}), run: () => 1 });
    const render = { name: 'render', description: 'Renders.', target: 'r', parameters: { type: 'object' } };
    const findings = await apply({ tools: ['look', 'fork_join', render, 'fork_jion', 'zzz'] });
    expect(findings).toEqual([
      { tool: 'fork_jion', message: expect.stringMatching(/has this name.*; did you mean 'fork_join'\?$/) },
      { tool: 'zzz', message: expect.stringMatching(/load a plugin that registers it in each worker$/) },
    ]);
  });

  test('reports a tool that ends the turn and is not listed', async () => {
    const findings = await apply({ tools: ['collect'], must_end_with: ['submit_result', 'collect'] });
    expect(findings).toEqual([
      { tool: 'submit_result', message: 'must_end_with names it, and tools does not list it' },
    ]);
    expect(await apply({ tools: ['submit_result'], must_end_with: ['submit_result'] })).toEqual([]);
  });

  test('reports a name in requires_approval that no call can have, since it guards nothing', async () => {
    const message = expect.stringMatching(/^requires_approval names it, and the profile has no such tool/);
    expect(await apply({ tools: ['collect'], requires_approval: ['colect', '*', 'submit_result'] })).toEqual([
      { tool: 'colect', message },
      { tool: '*', message },
    ]);
    expect(await apply({ tools: ['collect'], requires_approval: ['collect'] })).toEqual([]);
  });

  test('reports missing target_profiles with the possible values', async () => {
    const error: unknown = await apply({ delegation_policy: {} }).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(KernelError);
    expect((error as KernelError).message).toContain(
      'delegation_policy.target_profiles: is missing; it must be a list of names of profiles, null for every profile, or [] for none.',
    );
    await expect(apply({ delegation_policy: { target_profiles: 'all' } })).rejects.toThrow(
      'target_profiles: must be a list of names of profiles, null for every profile, or [] for none.',
    );
    expect(await apply({ delegation_policy: { target_profiles: null } })).toEqual([]);
  });
});

describe('a turn whose worker lacks a tool', () => {
  test('reports so to the model that calls it, and in explain', async () => {
    await h.profile('a', [{ calls: [{ tool: 'gone' }, { tool: 'colect' }] }, { say: 'ok' }], {
      tools: ['collect', 'gone'],
    });
    await h.worker();
    const { status, turn_id } = await play('a');
    expect(status).toBe('success');
    const rows = await h.rows<{ content: { error: { code: string; message: string } } }>(
      `select c.content from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id
       where k.turn_id = $1 order by k.ordinal`,
      [turn_id],
    );
    const [gone, misspelt] = rows.map(({ content }) => content.error);
    expect(gone).toMatchObject({
      code: 'tool_unknown',
      message: expect.stringContaining('boxcar worker --plugin'),
    });
    expect(gone?.message).toContain("The profile lists 'gone', but this worker has no tool or primitive");
    expect(misspelt?.message).toContain("There is no tool 'colect'; did you mean 'collect'?");
    const explained = await h.runtime.explainStep(turn_id, { step: 1 });
    expect(explained.missing_tools).toEqual(['gone']);
  });

  test('fails at once when no tool could end it, and not when one tool could', async () => {
    const ends: JsonValue[] = [{ calls: [{ tool: 'submit_result', arguments: { result: 1 } }] }];
    await h.profile('none', ends, { must_end_with: ['gone', 'lost'] });
    await h.profile('one', ends, { must_end_with: ['gone', 'submit_result'] });
    await h.worker();
    const failed = await play('none');
    expect(failed.status).toBe('failed');
    expect(failed.error?.code).toBe('tool_unknown');
    expect(failed.error?.message).toContain(
      'The turn must end with a call of gone or lost, but this worker has no',
    );
    expect((await play('one')).status).toBe('success');
  });
});
