import { BOOTSTRAP_ANCHOR } from '@boxcar/kernel';

/** The event of the bootstrap, as JSON. */
export const BOOTSTRAP_EVENT = JSON.stringify({
  name: 'handoff',
  data: { name: BOOTSTRAP_ANCHOR, state: { owner: 'human' } },
});

/**
 * SQL for the two entries `e` at the beginning of each tape: an anchor, and an event with this payload. Source: docs/reference/tape.md.
 */
export const bootstrapEntries = (event = `'${BOOTSTRAP_EVENT}'`): string => `
  (
    values
      (1, 'anchor', null, '${BOOTSTRAP_ANCHOR}'),
      (2, 'event', ${event}, null)
  ) as e(position, kind, payload, anchor_name)`;
