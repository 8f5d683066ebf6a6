/**
 * Reports changes of resources, made by any process.
 *
 * W1  One query serves all followers of a process: one statement, four times a second while there are followers, else none.
 * W2  A mark of the rows only shows where to look. A follower is notified when the resource has changed as the follower sees it, with its
 *     current rights. So no follower learns about a resource that it may not read.
 * W3  After a failed query, the next one reads every resource again.
 * W4  Changes by time alone (a session expires, a grant ends) and removals are found within half a minute.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { errorText } from '@boxcar/kernel';
import type { Runtime } from '@boxcar/runtime';
import { type Followed, readMarks } from '@boxcar/store/report';
import type { McpClientScope } from '../client-scope.js';
import { observeResource } from './observe.js';

const LOOK_MS = 250;
const READ_AGAIN_MS = 30_000;

interface Follower {
  readonly scope: McpClientScope;
  readonly uri: string;
  readonly tell: () => void;
  followed: Followed | null;
  /** Undefined: the client can no longer see it. */
  version: string | undefined;
  mark: string | undefined;
  readAt: number;
}

const nameOf = (followed: Followed): string => JSON.stringify(followed);

export class ChangeWatch {
  readonly #runtime: Pick<Runtime, 'pool' | 'log'>;
  readonly #followers = new Set<Follower>();
  #isLooking = false;
  #hasFailed = false;

  constructor(runtime: Pick<Runtime, 'pool' | 'log'>) {
    this.#runtime = runtime;
  }

  /** The number of followers. */
  get size(): number {
    return this.#followers.size;
  }

  /**
   * Reports each change from now on, until the returned function is called.
   *
   * @returns Undefined: the client cannot see such a resource.
   */
  async follow(scope: McpClientScope, uri: string, tell: () => void): Promise<(() => void) | undefined> {
    const seen = await observeResource(scope, uri);
    if (seen === undefined) return undefined;
    const follower: Follower = {
      ...{ scope, uri, tell, mark: undefined, readAt: performance.now() },
      ...seen,
    };
    this.#followers.add(follower);
    if (!this.#isLooking) void this.#look();
    return () => void this.#followers.delete(follower);
  }

  async #look(): Promise<void> {
    this.#isLooking = true;
    while (this.#followers.size > 0) {
      try {
        await this.#lookOnce();
        this.#hasFailed = false;
      } catch (error) {
        // Logged once for each outage of the database.
        if (!this.#hasFailed) this.#runtime.log('warn', 'mcp.changes_not_read', { error: errorText(error) });
        this.#hasFailed = true;
      }
      await delay(LOOK_MS, undefined, { ref: false });
    }
    this.#isLooking = false;
  }

  async #lookOnce(): Promise<void> {
    const followers = [...this.#followers];
    const marks = await this.#readMarks(followers);
    const isMadeUp = this.#hasFailed;
    for (const follower of followers) {
      const mark = follower.followed === null ? '' : (marks.get(nameOf(follower.followed)) ?? '');
      const isDue = performance.now() - follower.readAt >= READ_AGAIN_MS;
      if (mark === follower.mark && !isDue && !isMadeUp) continue;
      await this.#read(follower);
      // If the rows have changed since, the next query reads the resource again.
      follower.mark = mark;
    }
  }

  async #readMarks(followers: readonly Follower[]): Promise<ReadonlyMap<string, string>> {
    const named = new Map(
      followers.flatMap(({ followed }) => (followed === null ? [] : [[nameOf(followed), followed] as const])),
    );
    if (named.size === 0) return new Map();
    const marks = await readMarks(this.#runtime.pool, [...named.values()]);
    return new Map([...named.keys()].map((name, index) => [name, marks[index] ?? '']));
  }

  /** See W2. */
  async #read(follower: Follower): Promise<void> {
    const seen = await observeResource(follower.scope, follower.uri);
    follower.readAt = performance.now();
    const hasChanged = seen?.version !== follower.version;
    follower.version = seen?.version;
    if (seen !== undefined) follower.followed = seen.followed;
    if (hasChanged && this.#followers.has(follower)) follower.tell();
  }
}

const watches = new WeakMap<Runtime, ChangeWatch>();

/** The change watch of a runtime. */
export function changeWatchOf(runtime: Runtime): ChangeWatch {
  const known = watches.get(runtime) ?? new ChangeWatch(runtime);
  watches.set(runtime, known);
  return known;
}
