/**
 * The tool that lists the profiles an agent may reach, when they are too many for a tool description. Source:
 * docs/reference/primitives.md.
 */
import { LIST_PROFILES, shortDescription } from '@boxcar/kernel';
import { findReachable, findTurnPolicy } from '@boxcar/store';
import type pg from 'pg';
import { z } from 'zod';
import type { Tool } from './tool.js';

/** Maximum profiles of one answer, and maximum characters of a description in it. */
const PAGE = 50;
const MAX_DESCRIPTION = 300;

const listProfilesSchema = z.strictObject({
  after: z.string().optional().describe('Continues the list: the next of the previous answer.'),
});

export const listProfilesTool = (pool: pg.Pool): Tool<z.infer<typeof listProfilesSchema>> => ({
  name: LIST_PROFILES,
  description: 'Lists the profiles that you can reach, by name.',
  input: listProfilesSchema,
  isReadOnly: true,
  run: async ({ after }, { projectId, turnId }) => {
    const policy = await findTurnPolicy(pool, projectId, turnId);
    const found = await findReachable(pool, projectId, { policy, limit: PAGE + 1, after });
    const profiles = found.slice(0, PAGE).map(({ name, description }) => {
      const words = shortDescription(description, MAX_DESCRIPTION);
      return words === '' ? { name } : { name, description: words };
    });
    const last = profiles.at(-1);
    return found.length > PAGE && last !== undefined ? { profiles, next: last.name } : { profiles };
  },
});
