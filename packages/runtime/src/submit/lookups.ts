/** The look-ups of a handler, and the checks that it makes before it continues. */
import { agentIdIn, agentNamesOf, checkDelegation, checkReuse, KernelError, meant } from '@boxcar/kernel';
import {
  byGivenName,
  findAgent,
  findAgents,
  findProfiles,
  findProfileVersion,
  findReachable,
} from '@boxcar/store';
import type { HandlerTools } from '../handler/index.js';
import type { TryContext } from './try-context.js';

/** Maximum profiles that a misspelled name is compared with, and maximum that are listed when none is similar. */
const MAX_SUGGESTED = 1_000;
const MAX_OFFERED = 30;

type LookupTools = Pick<
  HandlerTools,
  'findProfile' | 'findAgent' | 'findAgents' | 'checkDelegation' | 'checkReuse'
>;

/** Its functions are fields, so that a handler can destructure them. */
export class Lookups implements LookupTools {
  readonly #of: TryContext;
  /** The ids of profiles that were read from the rows. */
  readonly profileIds: Set<string>;

  constructor(of: TryContext) {
    this.#of = of;
    this.profileIds = new Set([...of.caller.profiles.values()].map((profile) => profile.profileId));
  }

  get #actor() {
    const { projectId, source } = this.#of.ctx;
    return { projectId, actorId: source.agentId };
  }

  readonly findProfile: HandlerTools['findProfile'] = async (name, version) => {
    const profile =
      version === undefined
        ? (this.#of.caller.profiles.get(name) ??
          (await findProfiles(this.#of.unit.db, this.#of.ctx.projectId, [name])).get(name))
        : await findProfileVersion(this.#of.unit.db, this.#of.ctx.projectId, { name, version });
    if (profile === undefined) {
      const offered = await this.#offerProfiles(name);
      throw new KernelError('not_found', {
        message: `No profile '${name}'${version === undefined ? '' : ` version ${version}`} in this project${offered}`,
        details: {
          profile_name: name,
          offered,
          ...(version === undefined ? {} : { profile_version: version }),
          project_id: this.#of.ctx.projectId,
        },
      });
    }
    this.profileIds.add(profile.profileId);
    return profile;
  };

  /**
   * Ends the sentence about a profile that does not exist: with the probably intended names, or with the profiles that this
   * caller may use.
   */
  async #offerProfiles(name: string): Promise<string> {
    const { source, projectId } = this.#of.ctx;
    const policy = source.isOperator ? { target_profiles: null, target_tags: [] } : source.policy;
    const found = await findReachable(this.#of.unit.db, projectId, {
      policy,
      limit: MAX_SUGGESTED,
      areNamesEnough: true,
    });
    const names = found.map((profile) => profile.name);
    const near = meant(name, names);
    if (near !== '' || names.length === 0 || names.length > MAX_OFFERED) return near || '.';
    return `. There are ${names.join(', ')}.`;
  }

  readonly findAgent: HandlerTools['findAgent'] = async (ref) => {
    const agent = await findAgent(this.#of.unit.db, this.#actor, { id: agentIdIn(ref), name: ref });
    if (agent === undefined)
      throw new KernelError('not_found', {
        message: `No agent '${ref}' in this project.`,
        details: { agent: ref, project_id: this.#of.ctx.projectId },
      });
    this.profileIds.add(agent.profile.profileId);
    return agent;
  };

  readonly checkDelegation: HandlerTools['checkDelegation'] = (target) => {
    checkDelegation(this.#of.ctx.source, target);
  };

  readonly checkReuse: HandlerTools['checkReuse'] = (agent) => {
    checkReuse(this.#of.ctx.source, agent);
  };

  readonly findAgents: HandlerTools['findAgents'] = async (refs) => {
    const ids = refs.map(agentIdIn);
    if (refs.length === 0) return [];
    const found = await findAgents(this.#of.unit.db, this.#actor, {
      ids: ids.filter((id) => id !== undefined),
      names: refs,
    });
    for (const agent of found) this.profileIds.add(agent.profile.profileId);
    const byId = new Map(found.map((agent) => [agent.agentId, agent]));
    const byName = byGivenName(refs, new Map(found.map((agent) => [agent.name, agent])), agentNamesOf);
    return refs.map((ref, index) => {
      const id = ids[index];
      return (id === undefined ? undefined : byId.get(id)) ?? byName.get(ref);
    });
  };
}
