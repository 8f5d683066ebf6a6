import {
  type BoxId,
  type ContextCard,
  KernelError,
  type Profile,
  type ProfileId,
  resultFieldsOf,
  type TurnId,
  type ViewRows,
} from '@boxcar/kernel';
import {
  type ClaimedTurn,
  type ExpandedCard,
  expandContexts,
  type LoadedView,
  loadProfiles,
  loadViews,
} from '@boxcar/store';
import type pg from 'pg';
import { Batcher } from '../batcher.js';

const MAX_PROFILES = 500;

/** Loads what a step needs. Profile versions never change, so they are kept. */
export class TurnLoader {
  readonly #profiles = new Map<ProfileId, Promise<Profile>>();
  readonly #pool: pg.Pool;
  readonly #views: Batcher<ClaimedTurn, Omit<ViewRows, 'turn' | 'profile'>>;

  constructor(pool: pg.Pool) {
    this.#pool = pool;
    this.#views = new Batcher(
      async (turns) => {
        const views = await loadViews(pool, turns);
        return turns.map((turn) => toRows(views.get(turn.turnId), turn.turnId));
      },
      { maxItems: 32, maxInFlight: 2 },
    );
  }

  profile(id: ProfileId): Promise<Profile> {
    const known = this.#profiles.get(id);
    if (known !== undefined) return known;
    if (this.#profiles.size >= MAX_PROFILES) this.#profiles.clear();
    const loading = loadProfiles(this.#pool, [id]).then((profiles) => {
      const profile = profiles.get(id);
      if (profile === undefined)
        throw new KernelError('internal_error', {
          message: `Profile ${id} has no row.`,
          details: { profile_id: id },
        });
      return profile;
    });
    this.#profiles.set(id, loading);
    loading.catch(() => this.#profiles.delete(id));
    return loading;
  }

  view(turn: ClaimedTurn): Promise<Omit<ViewRows, 'turn' | 'profile'>> {
    return this.#views.add(turn);
  }

  /** Do result fields bind the turn of this context box? */
  async hasResultFields(boxId: BoxId): Promise<boolean> {
    const cards = (await expandContexts(this.#pool, [boxId])).get(boxId) ?? [];
    return resultFieldsOf(cards.map(toContextCard)) !== undefined;
  }
}

const RULES: Readonly<Record<ExpandedCard['rule'], ContextCard['rule']>> = {
  pack_arguments: 'argument',
  parent: 'parent',
  inherit: 'inherited',
  create_box: 'inherited',
  snapshot: 'inherited',
};

const toContextCard = ({ card, rule, native }: ExpandedCard): ContextCard => ({
  card,
  rule: RULES[rule],
  ...(native ? { native: true } : {}),
});

function toRows(view: LoadedView | undefined, turnId: TurnId): Omit<ViewRows, 'turn' | 'profile'> {
  if (view === undefined)
    throw new KernelError('internal_error', {
      message: `Turn ${turnId} has no tape.`,
      details: { turn_id: turnId },
    });
  return {
    entries: view.entries,
    lastAnchorPosition: view.lastAnchorPosition,
    contexts: new Map([...view.contexts].map(([boxId, cards]) => [boxId, cards.map(toContextCard)])),
  };
}
