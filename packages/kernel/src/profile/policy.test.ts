import { describe, expect, test } from 'vitest';
import { KernelError } from '../base/errors.js';
import { checkDelegation, mayDelegate } from './policy.js';
import { delegationPolicySchema } from './profile.js';

const target = { profileName: 'expert', tags: ['code', 'fast'] };
const policy = (input: unknown) => delegationPolicySchema.parse(input);

describe('who may be reached', () => {
  test.each([
    ['no policy reaches nobody', undefined, false],
    ['null reaches every profile', policy({ target_profiles: null }), true],
    ['an empty list reaches none', policy({ target_profiles: [] }), false],
    ['a name reaches its profile', policy({ target_profiles: ['other', 'expert'] }), true],
    ['other names do not', policy({ target_profiles: ['other'] }), false],
    ['names are exact: case', policy({ target_profiles: ['Expert'] }), false],
    ['names are exact: no prefix', policy({ target_profiles: ['exp', 'expert-2'] }), false],
    ['one common tag is enough', policy({ target_profiles: null, target_tags: ['slow', 'code'] }), true],
    ['without a common tag nobody', policy({ target_profiles: null, target_tags: ['slow'] }), false],
    [
      'tags are asked besides the name',
      policy({ target_profiles: ['expert'], target_tags: ['slow'] }),
      false,
    ],
    ['a tag does not replace the name', policy({ target_profiles: [], target_tags: ['code'] }), false],
    ['an empty list of tags asks for none', policy({ target_profiles: ['expert'], target_tags: [] }), true],
  ])('%s', (_rule, given, expected) => {
    expect(mayDelegate(given, target)).toBe(expected);
  });

  test('a target without tags is not reached by tags', () => {
    expect(
      mayDelegate(policy({ target_profiles: null, target_tags: ['code'] }), { ...target, tags: [] }),
    ).toBe(false);
  });
});

describe('a refusal', () => {
  const caller = { agentId: 'agent-1', isOperator: false, policy: undefined };

  test('names caller, target and policy', () => {
    const refused = () => checkDelegation(caller, target);
    expect(refused).toThrow(KernelError);
    try {
      refused();
    } catch (error) {
      expect(error).toMatchObject({
        code: 'delegation_denied',
        details: { source_agent_id: 'agent-1', target_profile: 'expert', delegation_policy: null },
      });
    }
  });

  test('never meets the operator', () => {
    expect(() => checkDelegation({ ...caller, isOperator: true }, target)).not.toThrow();
  });
});
