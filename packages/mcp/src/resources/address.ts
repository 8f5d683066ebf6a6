/** Parses resource URIs. The parts are percent-decoded here; a URI in none of these forms names no resource. */

export type Address =
  | { readonly kind: 'sessions'; readonly cursor: string | undefined }
  | { readonly kind: 'agent_sessions'; readonly agent: string; readonly cursor: string | undefined }
  | { readonly kind: 'context'; readonly sessionKey: string; readonly cursor: string | undefined }
  | { readonly kind: 'summary'; readonly sessionKey: string }
  | { readonly kind: 'health' }
  | { readonly kind: 'metrics' }
  /** The reference in the form of docs/reference/tape.md, without the cursor. */
  | { readonly kind: 'tape'; readonly ref: string; readonly cursor: string | undefined }
  | { readonly kind: 'run'; readonly runId: string; readonly cursor: string | undefined }
  | { readonly kind: 'turn_context'; readonly turnId: string; readonly cursor: string | undefined };

/** Every session key, name or reference fits. */
const MAX_LENGTH = 16_384;

function decode(part: string): string | undefined {
  try {
    const decoded = decodeURIComponent(part);
    return decoded !== '' && decoded.isWellFormed() && !decoded.includes('\u0000') ? decoded : undefined;
  } catch {
    return undefined;
  }
}

interface Parts {
  readonly path: readonly string[];
  readonly query: ReadonlyMap<string, string>;
}

/** Undefined: a name occurs twice, or a part is not percent-encoded UTF-8. */
function readQuery(text: string): ReadonlyMap<string, string> | undefined {
  const query = new Map<string, string>();
  for (const pair of text === '' ? [] : text.split('&')) {
    const [name = '', ...rest] = pair.split('=');
    const value = decode(rest.join('='));
    if (value === undefined || query.has(name)) return undefined;
    query.set(name, value);
  }
  return query;
}

function split(text: string, names: readonly string[]): Parts | undefined {
  const at = text.indexOf('?');
  const query = readQuery(at < 0 ? '' : text.slice(at + 1));
  if (query === undefined || [...query.keys()].some((name) => !names.includes(name))) return undefined;
  const path = (at < 0 ? text : text.slice(0, at)).split('/').map(decode);
  return path.every((part) => part !== undefined) ? { path, query } : undefined;
}

function readHandoff(text: string): Address | undefined {
  const { path, query } = split(text, ['cursor']) ?? { path: [], query: new Map<string, string>() };
  const cursor = query.get('cursor');
  const [kind, name, rest] = path;
  const isPlain = cursor === undefined;
  if (kind === 'sessions' && path.length === 1) return { kind, cursor };
  if ((kind === 'health' || kind === 'metrics') && path.length === 1 && isPlain) return { kind };
  if (name === undefined) return undefined;
  if (kind === 'context' && path.length === 2) return { kind, sessionKey: name, cursor };
  if (kind === 'summary' && path.length === 2 && isPlain) return { kind, sessionKey: name };
  if (kind === 'agents' && rest === 'sessions' && path.length === 3)
    return { kind: 'agent_sessions', agent: name, cursor };
  return undefined;
}

function readBoxcar(text: string): Address | undefined {
  const { path, query } = split(text, ['cursor']) ?? { path: [], query: new Map<string, string>() };
  const cursor = query.get('cursor');
  const [kind, id, rest] = path;
  if (id === undefined) return undefined;
  if (kind === 'runs' && path.length === 2) return { kind: 'run', runId: id, cursor };
  if (kind === 'turns' && rest === 'context' && path.length === 3)
    return { kind: 'turn_context', turnId: id, cursor };
  return undefined;
}

/** Only the cursor is removed here; anchor names and tapes are decoded with the reference. */
function readTape(uri: string): Address | undefined {
  const at = uri.indexOf('?');
  const query = readQuery(at < 0 ? '' : uri.slice(at + 1));
  if (query === undefined) return undefined;
  const cursor = query.get('cursor');
  const rest = [...query].filter(([name]) => name !== 'cursor');
  const bounds = rest.map(([name, value]) => `${name}=${value}`).join('&');
  return {
    kind: 'tape',
    ref: `${at < 0 ? uri : uri.slice(0, at)}${bounds === '' ? '' : `?${bounds}`}`,
    cursor,
  };
}

/** Undefined: the URI names no resource of this server. */
export function parseAddress(uri: string): Address | undefined {
  if (uri.length > MAX_LENGTH || uri.includes('#')) return undefined;
  if (uri.startsWith('tape://')) return readTape(uri);
  if (uri.startsWith('handoff://')) return readHandoff(uri.slice('handoff://'.length));
  if (uri.startsWith('boxcar://')) return readBoxcar(uri.slice('boxcar://'.length));
  return undefined;
}
