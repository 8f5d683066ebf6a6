/** The profiles that an agent may reach, by its delegation policy. */
import type { DelegationPolicy, ProjectId, TurnId } from '@boxcar/kernel';
import { type Queryable, run, statement } from '../db/index.js';
import type { Row } from '../schema/index.js';

/** A profile as it is described to agents. */
export interface ReachableProfile {
  readonly name: string;
  readonly description: string | null;
}

// Filtered before their cards are read, because a card contains a whole profile, including its instructions.
const FIND_REACHABLE = statement(`
  select /* reach.find_reachable */
    f.name,
    case when $4::int > 0 then left(c.content->'data'->>'description', $4::int) end as description
  from (
    select f.name, f.card_id
    from boxcar.profiles f
    where f.project_id = $1
      and f.is_current
      and ($2::text[] is null or f.name = any ($2))
      and (cardinality($3::text[]) = 0 or f.tags && $3)
      and ($5::text is null or f.name collate "C" > $5)
    order by f.name collate "C"
    limit $6
  ) f
  join boxcar.cards c on c.id = f.card_id
  order by f.name collate "C"`);

/** The limit for a description, which may be long. */
const MAX_DESCRIPTION = 1_000;

/** The current profiles of a project that a policy allows, sorted by the bytes of their names. One statement. */
export async function findReachable(
  db: Queryable,
  projectId: ProjectId,
  options: {
    /** Undefined: no profile can be reached. */
    readonly policy: DelegationPolicy | undefined;
    readonly limit: number;
    /** Only names after this one. */
    readonly after?: string | undefined;
    /** Leaves out the descriptions. */
    readonly areNamesEnough?: boolean;
  },
): Promise<readonly ReachableProfile[]> {
  const { policy, limit, after, areNamesEnough = false } = options;
  if (policy === undefined || policy.target_profiles?.length === 0) return [];
  return run<Row<'profiles', 'name'> & { description: string | null }>(db, FIND_REACHABLE, [
    projectId,
    policy.target_profiles,
    policy.target_tags,
    areNamesEnough ? 0 : MAX_DESCRIPTION,
    after ?? null,
    limit,
  ]);
}

const TURN_POLICY = statement(`
  select /* reach.turn_policy */ c.content->'data'->'delegation_policy' as policy
  from boxcar.turns t
  join boxcar.profiles f on f.id = t.profile_id
  join boxcar.cards c on c.id = f.card_id
  where t.id = $1 and t.project_id = $2`);

/** The delegation policy under which a turn runs; undefined without a policy. */
export async function findTurnPolicy(
  db: Queryable,
  projectId: ProjectId,
  turnId: TurnId,
): Promise<DelegationPolicy | undefined> {
  const [row] = await run<{ policy: DelegationPolicy | null }>(db, TURN_POLICY, [turnId, projectId]);
  return row?.policy ?? undefined;
}
