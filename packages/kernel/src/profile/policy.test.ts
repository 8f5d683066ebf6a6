import { describe, expect, test } from 'vitest';
import { KernelError } from '../base/errors.js';
import { checkDelegation, mayDelegate } from './policy.js';
import { delegationPolicySchema } from './profile.js';

const target = { profileName: 'expert', tags: ['code', 'fast'] };
const policy = (input: unknown) => delegationPolicySchema.parse(input);

describe('the policy of a profile', () => {
  test.each([
    ['reaches no profile when it is undefined', undefined, false],
    ['reaches every profile when its list is null', policy({ target_profiles: null }), true],
    ['reaches no profile when its list is empty', policy({ target_profiles: [] }), false],
    ['reaches a profile that it names', policy({ target_profiles: ['other', 'expert'] }), true],
    ['does not reach profiles that it does not name', policy({ target_profiles: ['other'] }), false],
    ['compares names exactly: the case counts', policy({ target_profiles: ['Expert'] }), false],
    [
      'compares names exactly: a prefix does not count',
      policy({ target_profiles: ['exp', 'expert-2'] }),
      false,
    ],
    [
      'is satisfied by a single common tag',
      policy({ target_profiles: null, target_tags: ['slow', 'code'] }),
      true,
    ],
    [
      'reaches no profile without a common tag',
      policy({ target_profiles: null, target_tags: ['slow'] }),
      false,
    ],
    [
      'requires the tags in addition to the name',
      policy({ target_profiles: ['expert'], target_tags: ['slow'] }),
      false,
    ],
    [
      'does not accept a tag in place of the name',
      policy({ target_profiles: [], target_tags: ['code'] }),
      false,
    ],
    [
      'requires no tag when its list of tags is empty',
      policy({ target_profiles: ['expert'], target_tags: [] }),
      true,
    ],
  ])('%s', (_rule, given, expected) => {
    expect(mayDelegate(given, target)).toBe(expected);
  });

  test('a profile without tags is not reached through tags', () => {
    expect(
      mayDelegate(policy({ target_profiles: null, target_tags: ['code'] }), { ...target, tags: [] }),
    ).toBe(false);
  });
});

describe('a refusal', () => {
  const caller = { agentId: 'agent-1', isOperator: false, policy: undefined };

  test('names the caller, the target and the policy', () => {
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

  test('never affects the operator', () => {
    expect(() => checkDelegation({ ...caller, isOperator: true }, target)).not.toThrow();
  });
});
