import { RETENTION, RETENTION_POLICIES } from '@boxcar/kernel';

/** SQL of when a session `s` expires, unless it is written to before. The same as `sessionStateOf` of the kernel says. */
export const sessionExpiry = (s: string): string =>
  `(${s}.last_write_at + case ${s}.retention_policy ${RETENTION_POLICIES.map(
    (policy) => `when '${policy}' then interval '${RETENTION[policy].activeHours} hours'`,
  ).join(' ')} end)`;
