/**
 * Caches facts about callers for their next submissions.
 *
 * K1  Facts are kept only when a write can verify them: the caller is the operator or an agent that is named by its id, it is not
 *     a turn, and all profiles that the submission names were found.
 * K2  Kept facts serve submissions under keys that the kernel has made: a first try has no earlier answer under such a key, and a
 *     repeated try looks the caller up again.
 * K3  If a submission is refused, by the write or before it, the caller is looked up and the submission is decided again.
 */
import type { CallerFacts, CallerRequest } from '@boxcar/store';
import { RecentMap } from './recent-map.js';

const MAX_KEPT = 1_000;

const isKeepable = ({
  idempotencyKey,
  sourceAgentId,
  sourceAgentName,
  parentTurnId,
}: CallerRequest): boolean =>
  idempotencyKey.startsWith('auto:') &&
  parentTurnId === undefined &&
  (sourceAgentName === undefined || sourceAgentId !== undefined);

const nameOf = ({ project, sourceAgentId, profileNames }: CallerRequest): string =>
  JSON.stringify([project, sourceAgentId, profileNames]);

export class KeptCallers {
  readonly #kept = new RecentMap<string, CallerFacts>(MAX_KEPT);

  /** @returns The kept facts about the caller; undefined when it must be looked up. */
  find(request: CallerRequest): CallerFacts | undefined {
    const kept = isKeepable(request) ? this.#kept.get(nameOf(request)) : undefined;
    return kept && { ...kept, key: request.idempotencyKey };
  }

  /** Keeps the facts that were looked up for a request. They replace earlier facts. */
  keep(request: CallerRequest, facts: CallerFacts | undefined): void {
    if (!isKeepable(request)) return;
    const name = nameOf(request);
    this.#kept.delete(name);
    const isWhole =
      facts?.source !== undefined && request.profileNames.every((profile) => facts.profiles.has(profile));
    // The answer under the key of this request is not a fact about its caller.
    if (isWhole) this.#kept.set(name, { ...facts, operation: undefined, unnamed: undefined });
  }
}
