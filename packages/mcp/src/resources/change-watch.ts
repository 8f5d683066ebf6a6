/**
 * Tells of changes of resources, whatever process has made them.
 *
 * W1  One look at the rows serves all followers of a process: one statement, four times a second while somebody follows, none otherwise.
 * W2  A mark of the rows only says where to look. A follower is told when the resource has changed as it sees it, with its rights of that
 *     moment. So nobody is told of what it may not read.
 * W3  A look that fails is made up for: the next one reads every resource again.
 * W4  What time alone changes (a session expires, a grant ends) and what is removed is found within half a minute.
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
  /** Undefined: the client does not see it any more. */
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

  /** How many are told. */
  get size(): number {
    return this.#followers.size;
  }

  /**
   * Tells of each change from now on, until the result is called.
   *
   * @returns Undefined: the client does not see such a resource.
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
        // Once for each time that the database is away.
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
      // The next look reads it again if the rows have changed since.
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

  /** W2. */
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

/** The one of a runtime. */
export function changeWatchOf(runtime: Runtime): ChangeWatch {
  const known = watches.get(runtime) ?? new ChangeWatch(runtime);
  watches.set(runtime, known);
  return known;
}
