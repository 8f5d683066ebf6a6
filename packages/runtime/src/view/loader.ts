import {
  type BoxId,
  type Field,
  findPrice,
  givenNames,
  isJsonObject,
  KernelError,
  type ModelPrice,
  needsPrice,
  type PriceTable,
  type Profile,
  type ProfileId,
  type ProjectId,
  priceTables,
  profileSchema,
  resultFieldsOf,
} from '@boxcar/kernel';
import {
  type ClaimedTurn,
  expandContexts,
  type KnownTape,
  type LoadedView,
  loadAgentNames,
  loadPricedProfiles,
  loadViews,
  mayBeAgent,
  THIS_BUILD,
} from '@boxcar/store';
import type pg from 'pg';
import type { BuildWatch } from '../lib/index.js';
import { toContextCard } from '../pack/index.js';
import { Toolsets } from '../toolbox/index.js';

const MAX_PROFILES = 500;
const MAX_NAMES = 10_000;

export type ViewedTurn = Pick<ClaimedTurn, 'turnId' | 'contextBoxId' | 'outputBoxId'>;

/** A profile with the price of its model; undefined when no price is known. */
export interface PricedProfile {
  readonly profile: Profile;
  readonly price: ModelPrice | undefined;
}

/** Loads the data that a step needs. Profile versions never change, so they are cached. */
export class TurnLoader {
  readonly #profiles = new Map<ProfileId, Promise<PricedProfile>>();
  /** Names of agents that appear in views, by project and id; undefined: the agent was given no name. */
  readonly #names = new Map<string, string | undefined>();
  readonly #pool: pg.Pool;
  readonly #prices: readonly PriceTable[];
  readonly #builds: BuildWatch | undefined;
  readonly toolsets: Toolsets;

  constructor(pool: pg.Pool, prices: readonly PriceTable[] = [], builds?: BuildWatch) {
    this.#pool = pool;
    this.#prices = prices;
    this.#builds = builds;
    this.toolsets = new Toolsets(pool);
  }

  profile(id: ProfileId): Promise<PricedProfile> {
    const known = this.#profiles.get(id);
    if (known !== undefined) return known;
    if (this.#profiles.size >= MAX_PROFILES) this.#profiles.clear();
    const loading = loadPricedProfiles(this.#pool, [id]).then(async (profiles) => {
      const found = profiles.get(id);
      if (found === undefined)
        throw new KernelError('internal_error', {
          message: `Profile ${id} has no row.`,
          details: { profile_id: id },
        });
      const { profile, prices } = found;
      if (!isJsonObject(profile))
        throw new KernelError('card_damaged', {
          message: `The card of profile ${id} holds no profile.`,
          details: { profile_id: id },
        });
      await this.#checkProfile(profile, id);
      const price = findPrice(profile.model, priceTables(prices, this.#prices));
      // A price may be set at any time, and the turns that wait for it begin at once.
      if (price === undefined && needsPrice(profile.model)) this.#profiles.delete(id);
      return { profile, price };
    });
    this.#profiles.set(id, loading);
    loading.catch(() => this.#profiles.delete(id));
    return loading;
  }

  /**
   * The given names of these agents of a project. Names never change, so they are cached. Deleted agents have no name.
   * Cards may have ids of other projects' agents, which have no name here.
   */
  async names(projectId: ProjectId, ids: ReadonlySet<string>): Promise<ReadonlyMap<string, string>> {
    const keyOf = (id: string): string => `${projectId}/${id}`;
    const agents = [...ids].filter(mayBeAgent);
    const isKnown = (id: string): boolean => this.#names.has(keyOf(id));
    const names = new Map(agents.filter(isKnown).map((id) => [id, this.#names.get(keyOf(id))]));
    const unknown = agents.filter((id) => !names.has(id));
    if (unknown.length > 0) {
      const found = givenNames(await loadAgentNames(this.#pool, projectId, unknown));
      if (this.#names.size + unknown.length > MAX_NAMES) this.#names.clear();
      for (const id of unknown) {
        names.set(id, found.get(id));
        this.#names.set(keyOf(id), found.get(id));
      }
    }
    return new Map([...names].flatMap(([id, name]) => (name === undefined ? [] : [[id, name] as const])));
  }

  /** Kinds of entries and contents that this build can read. */
  get kinds(): ReadonlySet<string> {
    return (this.#builds?.build ?? THIS_BUILD).kinds;
  }

  /**
   * An unknown setting may come from a newer build, if a newer build may be running. Otherwise it is an obsolete
   * setting and is accepted.
   */
  async #checkProfile(profile: Profile, id: ProfileId): Promise<void> {
    const issues = profileSchema.safeParse(profile).error?.issues ?? [];
    const unknown = issues.flatMap((issue) => (issue.code === 'unrecognized_keys' ? issue.keys : []));
    if (unknown.length === 0 || (await this.#builds?.mayBeNewer()) !== true) return;
    throw new KernelError('unsupported_format', {
      message: `This build does not know the setting ${unknown.join(', ')} of the profile.`,
      details: { profile_id: id, keys: unknown },
    });
  }

  /**
   * One view, or the rest of a known view. Views that did not come with their claim are large, so they are read one at
   * a time.
   */
  async view(turn: ViewedTurn, known?: KnownTape): Promise<LoadedView> {
    const tapes = new Map(known === undefined ? [] : [[turn.outputBoxId, known]]);
    const view = (await loadViews(this.#pool, [turn], tapes)).get(turn.turnId);
    if (view === undefined || view.entries.length === 0)
      throw new KernelError('internal_error', {
        message: `Turn ${turn.turnId} has no tape.`,
        details: { turn_id: turn.turnId },
      });
    return view;
  }

  /** The fields that the result of the turn with this context box must have. */
  async resultFields(boxId: BoxId): Promise<readonly Field[] | undefined> {
    const cards = (await expandContexts(this.#pool, [boxId])).get(boxId) ?? [];
    return resultFieldsOf(cards.map(toContextCard));
  }
}
