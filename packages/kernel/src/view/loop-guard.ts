/**
 * When two calls count as the same: same profile, same tool, same canonical arguments, and same information known to
 * the caller. Source: docs/reference/budgets.md, "Loop guard".
 *
 * L1  A turn's information is its context without the parent line, and the results of its other calls. The turn's own
 *     words are not news, and neither is a success of the very same call: a loop looks like that.
 * L2  News is a set: the same answer a second time adds nothing.
 * L3  Content that a compaction has left out may be requested again: the compaction itself counts as news.
 * L4  A failure of the same call, or of the work it waited for, is news once, so that the call can be tried again. An
 *     answer of the guard itself is never news.
 */

import { canonicalJson, isJsonObject, type JsonValue, sha256 } from '../base/index.js';
import type { TapeEntry } from '../tape/index.js';
import { isFailedWork } from '../turn/index.js';
import { readCompaction } from './compaction.js';
import type { ContextCard } from './context.js';

export interface GuardedCall {
  readonly name: string;
  readonly arguments: JsonValue;
}

const keyOf = (call: GuardedCall): string => canonicalJson([call.name, call.arguments]);

/**
 * The hash of a context. Inherited cards count by id, which represents their content; packed arguments count by
 * content.
 */
export function hashContext(cards: readonly ContextCard[]): string {
  const parts = cards.flatMap(({ card, rule }): JsonValue[] => {
    if (rule === 'parent') return [];
    return [rule === 'inherited' ? card.id : [card.type, card.content as unknown as JsonValue]];
  });
  return sha256(canonicalJson(parts));
}

interface News {
  /** The call that brought the news; undefined when it came from outside. */
  readonly key: string | undefined;
  readonly isFailure: boolean;
  readonly hash: string;
}

const ID = /[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/g;

/** Hashes the content of an answer. Ids are masked, because they were generated for this answer. */
function hashResult(content: JsonValue): { hash: string; isFailure: boolean; isOwn: boolean } {
  const { status = null, result = null, error = null } = isJsonObject(content) ? content : {};
  const code = isJsonObject(error) ? [error.code ?? null, error.message ?? null] : null;
  return {
    hash: sha256(canonicalJson([status, result, code]).replace(ID, '#')),
    isFailure: status !== 'success' || isFailedWork(result),
    isOwn: isJsonObject(error) && error.code === 'loop_detected',
  };
}

/** The news that one turn has received so far, from the entries of its view. */
export class TurnNews {
  readonly #known = new Map<string, News | undefined>();

  /** The news in the turn's own entries. Each card is hashed only once. */
  read(entries: readonly TapeEntry[], turnId: string): readonly News[] {
    const calls = new Map<string, string>();
    const news: News[] = [];
    for (const { card, kind, turnId: author } of entries) {
      if (card === null || author !== turnId) continue;
      const content = card.content as unknown as JsonValue;
      if (kind === 'tool_call' && isJsonObject(content) && typeof content.tool_call_id === 'string')
        calls.set(
          content.tool_call_id,
          keyOf({ name: String(content.name), arguments: content.arguments ?? null }),
        );
      if (kind === 'anchor' && readCompaction(card) !== undefined)
        news.push({ key: undefined, isFailure: false, hash: sha256(card.id) });
      if (kind !== 'tool_result') continue;
      if (!this.#known.has(card.id)) {
        const { hash, isFailure, isOwn } = hashResult(content);
        const key = calls.get(card.toolCallId ?? '');
        this.#known.set(card.id, isOwn ? undefined : { key, isFailure, hash });
      }
      const item = this.#known.get(card.id);
      if (item !== undefined) news.push(item);
    }
    return news;
  }
}

/** The hash that identifies a repeated call. */
export function hashCall(
  call: GuardedCall,
  of: { readonly profile: string; readonly contextHash: string; readonly news: readonly News[] },
): string {
  const key = keyOf(call);
  const learnt = new Set(
    of.news.filter((item) => item.key !== key || item.isFailure).map(({ hash }) => hash),
  );
  return sha256(canonicalJson([of.profile, key, of.contextHash, [...learnt].sort()]));
}
