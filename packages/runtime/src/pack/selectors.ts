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
  /**
   * Only letters, digits, _ . -, at most 64 characters. A turn keeps the version of its first step, so a changed function needs a
   * new version.
   */
  readonly version: string | number;
  readonly select: Select;
  /** How long one call may take, in milliseconds; the call blocks the process for that time. Default and maximum: 5,000. */
  readonly timeoutMs?: number;
}

interface Registered {
  readonly ref: SelectorRef;
  readonly select: Select;
  readonly timeoutMs: number;
}

/** Half of a worker's default lease: the worker's heartbeats wait during a call. */
const MAX_TIMEOUT_MS = 5_000;

const box: { run: () => unknown } = { run: () => undefined };
const boxContext = createContext(box);
const script = new Script('run()');

/** Runs a synchronous function, and interrupts it when it takes longer than `timeoutMs`. */
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

/** Describes the error of a selector. The selector made the thrown value, so the value may have no readable text. */
function saysThrown(error: unknown, timeoutMs: number): string {
  try {
    if (isTimeout(error)) return `it took longer than ${timeoutMs} ms`;
    // `errorText` is not used here: a value that cannot be read has its own message below.
    return `it threw: ${(error instanceof Error ? error.message : String(error)).replace(/\.$/, '')}`;
  } catch {
    return 'it threw a value without words';
  }
}

export class Selectors {
  /** The versions of each name, in the order in which they were registered. */
  readonly #known = new Map<string, Map<string, Registered>>();

  /**
   * @throws KernelError `bad_request` for a name, version or function that is not valid, `conflict` when another function is
   * registered under the same name and version.
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

  /** All registered selectors, in the form that a worker announces: the versions of each name. */
  get announced(): Readonly<Record<string, readonly string[]>> {
    return Object.fromEntries([...this.#known].map(([name, versions]) => [name, [...versions.keys()]]));
  }

  get refs(): readonly SelectorRef[] {
    return [...this.#known.values()].flatMap((versions) => [...versions.values()].map(({ ref }) => ref));
  }

  /** The given version; without a version, the version that was registered last. */
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
   * Applies a selector to a view. The selector gets copies.
   *
   * @throws KernelError `selector_failed` when it throws, takes too long or does not return a valid prompt; `selector_unknown`
   * when it is not registered here.
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
        // Getters and the like in the returned value are code of the selector too, so the copy is made within the time limit.
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

/** The error for a selector that is missing. With `version` null, any version would be accepted. */
export function selectorUnknown(
  { name, version }: { readonly name: string; readonly version: string | null },
  what: string,
): KernelError {
  return new KernelError('selector_unknown', {
    message: `${version === null ? `Selector '${name}'` : nameSelector({ name, version })} ${what}.`,
    details: { selector: name, ...(version === null ? {} : { selector_version: version }) },
  });
}
