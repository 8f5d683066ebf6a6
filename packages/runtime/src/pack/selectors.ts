/** The selectors of a process: code that makes the prompts of turns. Source: docs/reference/views.md, "Selectors". */
import { createContext, Script } from 'node:vm';
import {
  checkDuration,
  KernelError,
  nameSelector,
  SELECTOR_NAME,
  type Select,
  type SelectorRef,
  selectorEntries,
  selectorFailed,
  selectView,
  type View,
  type ViewRows,
} from '@boxcar/kernel';

export interface Selector {
  /** Letters, digits, _ . - only, 64 at most. A turn keeps the version of its first step; a changed function needs a new one. */
  readonly version: string | number;
  readonly select: Select;
  /** How long one call may take, in milliseconds; it holds up the process meanwhile. Default and most: 5,000. */
  readonly timeoutMs?: number;
}

interface Registered {
  readonly ref: SelectorRef;
  readonly select: Select;
  readonly timeoutMs: number;
}

/** Half of a worker's lease by default: its heartbeats wait meanwhile. */
const MAX_TIMEOUT_MS = 5_000;

const box: { run: () => unknown } = { run: () => undefined };
const boxContext = createContext(box);
const script = new Script('run()');

/** Runs a synchronous function; one that takes longer is ended where it is. */
function runLimited<T>(run: () => T, timeoutMs: number): T {
  box.run = run;
  try {
    return script.runInContext(boxContext, { timeout: timeoutMs }) as T;
  } finally {
    box.run = () => undefined;
  }
}

const isTimeout = (error: unknown): boolean =>
  typeof error === 'object' &&
  error !== null &&
  'code' in error &&
  error.code === 'ERR_SCRIPT_EXECUTION_TIMEOUT';
const isPromise = (value: unknown): boolean =>
  typeof value === 'object' && value !== null && 'then' in value && typeof value.then === 'function';

/** What is wrong with a selector that threw this. A thrown value is the selector's too, and need not have words. */
function saysThrown(error: unknown, timeoutMs: number): string {
  try {
    if (isTimeout(error)) return `it took longer than ${timeoutMs} ms`;
    // Not `errorText`: a value that cannot be read is said in words of its own.
    return `it threw: ${(error instanceof Error ? error.message : String(error)).replace(/\.$/, '')}`;
  } catch {
    return 'it threw a value without words';
  }
}

export class Selectors {
  /** By name, the versions in the order in which they were registered. */
  readonly #known = new Map<string, Map<string, Registered>>();

  /**
   * @throws KernelError `bad_request` for a name, version or function that is not valid, `conflict` for another function under a name
   *   and version that are taken.
   */
  add(name: string, { version: given, select, timeoutMs = MAX_TIMEOUT_MS }: Selector): void {
    const version = typeof given === 'number' ? String(given) : given;
    const refuse = (code: 'bad_request' | 'conflict', message: string): never => {
      throw new KernelError(code, { message, details: { selector: name, selector_version: version } });
    };
    const rule = 'letters, digits, _ . - only, 64 at most';
    if (typeof name !== 'string' || !SELECTOR_NAME.test(name))
      refuse('bad_request', `'${String(name).slice(0, 80)}' is not a name of a selector: ${rule}.`);
    if (typeof version !== 'string' || !SELECTOR_NAME.test(version))
      refuse('bad_request', `Selector '${name}': version: must be a text or a number: ${rule}.`);
    if (typeof select !== 'function')
      refuse('bad_request', `Selector '${name}': select: must be a function.`);
    checkDuration(timeoutMs, `Selector '${name}': timeoutMs`);
    if (timeoutMs > MAX_TIMEOUT_MS)
      refuse('bad_request', `Selector '${name}': timeoutMs: must be at most ${MAX_TIMEOUT_MS}.`);
    const versions = this.#known.get(name) ?? new Map<string, Registered>();
    const known = versions.get(version);
    if (known !== undefined && known.select !== select)
      refuse(
        'conflict',
        `Selector '${name}' is registered already in version '${version}' with another function; give the new one a new version.`,
      );
    if (known !== undefined) return;
    versions.set(version, { ref: { name, version }, select, timeoutMs });
    this.#known.set(name, versions);
  }

  has(name: string): boolean {
    return this.#known.has(name);
  }

  get names(): readonly string[] {
    return [...this.#known.keys()];
  }

  /** All that are registered, as a worker announces them: the versions of each name. */
  get announced(): Readonly<Record<string, readonly string[]>> {
    return Object.fromEntries([...this.#known].map(([name, versions]) => [name, [...versions.keys()]]));
  }

  get refs(): readonly SelectorRef[] {
    return [...this.#known.values()].flatMap((versions) => [...versions.values()].map(({ ref }) => ref));
  }

  /** The version given, else the one that was registered last. */
  find({
    name,
    version,
  }: {
    readonly name: string;
    readonly version: string | null;
  }): SelectorRef | undefined {
    return this.#find(name, version)?.ref;
  }

  #find(name: string, version: string | null): Registered | undefined {
    const versions = this.#known.get(name);
    return version === null ? [...(versions?.values() ?? [])].at(-1) : versions?.get(version);
  }

  /**
   * The view as a selector makes it. The selector gets copies.
   *
   * @throws KernelError `selector_failed` when it throws, takes too long or returns what is not a valid prompt; `selector_unknown` when
   *   it is not registered here.
   */
  apply(view: View, rows: ViewRows, ref: SelectorRef): View {
    const registered = this.#find(ref.name, ref.version);
    if (registered === undefined) throw selectorUnknown(ref, 'is not registered in this process');
    const { select, timeoutMs } = registered;
    const entries = structuredClone(selectorEntries(view, rows));
    let returned: { readonly messages: unknown } | 'promise';
    try {
      returned = runLimited(() => {
        const made: unknown = select(entries);
        // Getters of what it returns, and the like, are its code too.
        if (!isPromise(made)) return { messages: structuredClone(made) };
        if (made instanceof Promise) made.then(undefined, () => undefined);
        return 'promise';
      }, timeoutMs);
    } catch (error) {
      throw selectorFailed(ref, saysThrown(error, timeoutMs), { cause: error });
    }
    if (returned === 'promise')
      throw selectorFailed(ref, 'it returned a promise; a selector must be synchronous');
    return selectView(view, ref, returned.messages);
  }
}

/** A selector that somebody lacks. `version` null: any version would do. */
export function selectorUnknown(
  { name, version }: { readonly name: string; readonly version: string | null },
  what: string,
): KernelError {
  return new KernelError('selector_unknown', {
    message: `${version === null ? `Selector '${name}'` : nameSelector({ name, version })} ${what}.`,
    details: { selector: name, ...(version === null ? {} : { selector_version: version }) },
  });
}
