import { expect, test } from 'vitest';
import { readHandoffEnvironment } from './config.js';

test('the first environment variable of the switch wins, a blank value counts as unset, and any other word is refused', () => {
  const isEnabled = (env: Readonly<Record<string, string>>) => readHandoffEnvironment(env).isEnabled;
  expect(isEnabled({})).toBeUndefined();
  expect(isEnabled({ BOXCAR_HANDOFF_ENABLED: ' ', AGDD_HANDOFF_ENABLED: 'true' })).toBe(true);
  expect(isEnabled({ BOXCAR_HANDOFF_ENABLED: 'false', AGDD_HANDOFF_ENABLED: 'true' })).toBe(false);
  for (const name of ['BOXCAR_HANDOFF_ENABLED', 'AGDD_HANDOFF_ENABLED'])
    expect(() => isEnabled({ [name]: 'yes' })).toThrow(`${name}: must be true or false`);
});

test('the files are used under their configured names', () => {
  const env = { BOXCAR_TARGETS_FILE: '/t.yaml', BOXCAR_POLICY_FILE: ' ' };
  expect(readHandoffEnvironment(env)).toMatchObject({ targetsFile: '/t.yaml', policyFile: undefined });
});

test('callbacks need a secret; a blank value counts as unset', () => {
  const webhooks = (env: Readonly<Record<string, string>>) => readHandoffEnvironment(env).webhooks;
  expect(webhooks({ BOXCAR_WEBHOOK_SECRET: ' ', BOXCAR_WEBHOOK_RETRY_SECONDS: '1' })).toBeUndefined();
  expect(
    webhooks({
      BOXCAR_WEBHOOK_SECRET: 's',
      BOXCAR_WEBHOOK_RETRY_SECONDS: '0.5',
      BOXCAR_WEBHOOK_ALLOW_PRIVATE: '10.0.0.0/8, hooks.internal,',
    }),
  ).toEqual({ secret: 's', retrySeconds: 0.5, allowPrivate: ['10.0.0.0/8', 'hooks.internal'] });
});
