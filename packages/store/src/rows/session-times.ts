import { RETENTION, RETENTION_POLICIES } from '@boxcar/kernel';

/**
 * SQL of the time at which a session `s` expires unless there is another write before. It must agree with `sessionStateOf` of the
 * kernel.
 */
export const sessionExpiry = (s: string): string =>
  `(${s}.last_write_at + case ${s}.retention_policy ${RETENTION_POLICIES.map(
    (policy) => `when '${policy}' then interval '${RETENTION[policy].activeHours} hours'`,
  ).join(' ')} end)`;
