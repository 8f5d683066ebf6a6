import { type ProjectId, type ToldProfiles, type ToolSchema, toolsetHash } from '@boxcar/kernel';
import { writeToolset } from '@boxcar/store';
import type pg from 'pg';
import type { RuntimeCore } from '../core/index.js';
import { findTeller } from './toolbox.js';

const MAX_KEPT = 1_000;

/**
 * Keeps the tool lists that steps offer. Each list is written once per process and project, so that a step's row can name its
 * list by hash. Schemas are compared by identity: an unchanged list costs only a look-up.
 */
export class Toolsets {
  readonly #pool: pg.Pool;
  readonly #numbers = new WeakMap<ToolSchema, number>();
  readonly #written = new Map<string, Promise<string>>();
  #next = 0;

  constructor(pool: pg.Pool) {
    this.#pool = pool;
  }

  /** @returns The list's hash, after its row has been written. */
  keep(
    projectId: ProjectId,
    tools: readonly ToolSchema[],
    {
      known,
      told,
      served,
    }: {
      readonly known: Pick<RuntimeCore, 'tools' | 'handlers'>;
      readonly told: ToldProfiles | undefined;
      /** The names of tools that come from MCP servers. */
      readonly served: { has(name: string): boolean };
    },
  ): Promise<string> {
    const key = `${projectId} ${tools.map((tool) => this.#numberOf(tool)).join(' ')}`;
    const before = this.#written.get(key);
    if (before !== undefined) return before;
    if (this.#written.size >= MAX_KEPT) this.#written.clear();
    const hash = toolsetHash(tools);
    const teller = findTeller(
      known,
      tools.map(({ name }) => name),
    );
    const schemas = tools.map((tool) => ({
      ...tool,
      ...(told !== undefined && tool.name === teller ? { profiles: told } : {}),
      source: known.tools.has(tool.name)
        ? ('tool' as const)
        : known.handlers.has(tool.name)
          ? ('primitive' as const)
          : served.has(tool.name)
            ? ('mcp' as const)
            : ('profile' as const),
    }));
    const writing = writeToolset(this.#pool, { projectId, hash, schemas }).then(() => hash);
    this.#written.set(key, writing);
    writing.catch(() => this.#written.delete(key));
    return writing;
  }

  #numberOf(tool: ToolSchema): number {
    const known = this.#numbers.get(tool);
    if (known !== undefined) return known;
    this.#next += 1;
    this.#numbers.set(tool, this.#next);
    return this.#next;
  }
}
