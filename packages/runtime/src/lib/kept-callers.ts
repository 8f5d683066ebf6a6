/**
 * What was looked up of callers, for their next submissions.
 *
 * K1  Kept is what a write can check again: the operator or an agent that is named by its id, outside of a turn, with its project and the
 *     profiles that were asked for, all of which were found.
 * K2  It is good for keys that the kernel has made: a first try has no first answer under them, and a repeated one looks again.
 * K3  A submission that is refused, by the write or before it, is decided again by what is looked up then.
 */
import type { CallerFacts, CallerRequest } from '@boxcar/store';

/** Beyond these, the oldest are looked up again. */
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
  readonly #kept = new Map<string, CallerFacts>();

  /** @returns What was kept of the caller; undefined: it must be looked up. */
  find(request: CallerRequest): CallerFacts | undefined {
    const kept = isKeepable(request) ? this.#kept.get(nameOf(request)) : undefined;
    return kept && { ...kept, key: request.idempotencyKey };
  }

  /** Keeps what was looked up for a request, in place of what was kept. */
  keep(request: CallerRequest, facts: CallerFacts | undefined): void {
    if (!isKeepable(request)) return;
    const name = nameOf(request);
    this.#kept.delete(name);
    const isWhole =
      facts?.source !== undefined && request.profileNames.every((profile) => facts.profiles.has(profile));
    // What was answered under the key of this request is no fact of its caller.
    if (isWhole) this.#kept.set(name, { ...facts, operation: undefined, unnamed: undefined });
    if (this.#kept.size <= MAX_KEPT) return;
    const [oldest = ''] = this.#kept.keys();
    this.#kept.delete(oldest);
  }
}
