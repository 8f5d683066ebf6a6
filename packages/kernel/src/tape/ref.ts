/** References to a place on a tape: `tape://{workspace}/{tape}/entry/{position}` and `…/anchor/{name}`, with `?head=`. */
import { KernelError } from '../base/index.js';

export interface TapeRef {
  readonly workspace: string;
  readonly tape: string;
  readonly target:
    | { readonly kind: 'entry'; readonly position: number }
    /** The latest anchor of this name up to `head`. */
    | { readonly kind: 'anchor'; readonly name: string };
  /** Later positions are ignored; null means the head at the time of reading. */
  readonly head: number | null;
}

const SCHEME = 'tape://';
/**
 * Workspace, tape, kind of target, target. The first `/entry/` or `/anchor/` after the workspace separates tape and
 * target.
 */
const PARTS = /^([^/]+)\/(.+?)\/(entry|anchor)\/(.+)$/s;
const POSITION = /^[1-9]\d*$/;
/** The largest value of a position column. */
const MAX_POSITION = 2 ** 31 - 1;
const SHAPE = 'tape://{workspace}/{tape}/entry/{position} or tape://{workspace}/{tape}/anchor/{name}';

const shorten = (text: string, length = 80): string => text.slice(0, length).toWellFormed();

/**
 * @param path - The name of the field in the error.
 * @throws KernelError `bad_request` stating the problem.
 */
export function parseTapeRef(text: string, path = 'tape_ref'): TapeRef {
  const refuse = (why: string): never => {
    throw new KernelError('bad_request', {
      message: `${path}: ${why}.`,
      details: { field: path, tape_ref: shorten(text, 500) },
    });
  };
  const decode = (part: string): string => {
    let decoded: string;
    try {
      decoded = decodeURIComponent(part);
    } catch {
      return refuse(`'${shorten(part)}' is not percent-encoded UTF-8`);
    }
    if (decoded.includes('\u0000') || !decoded.isWellFormed())
      return refuse('holds a NUL character or a lone surrogate');
    return decoded;
  };
  const toPosition = (part: string, what: string): number => {
    const position = POSITION.test(part) ? Number(part) : 0;
    return position >= 1 && position <= MAX_POSITION
      ? position
      : refuse(`${what} '${shorten(part)}' is not a position; a position is a positive integer`);
  };

  if (!text.startsWith(SCHEME)) return refuse(`is not a tape reference; its form is ${SHAPE}`);
  const [address = '', ...queries] = text.slice(SCHEME.length).split('?');
  const parts = PARTS.exec(address);
  if (parts === null) return refuse(`is not a tape reference; its form is ${SHAPE}`);
  const [, workspace = '', tape = '', kind, target = ''] = parts;
  const query = queries.length === 0 ? null : queries.join('?');
  if (query !== null && !query.startsWith('head='))
    return refuse(`'?${shorten(query)}' is not of the form ?head={position}`);
  const head = query === null ? null : toPosition(query.slice('head='.length), 'head');
  const place: TapeRef['target'] =
    kind === 'entry'
      ? { kind: 'entry', position: toPosition(target, 'entry') }
      : { kind: 'anchor', name: decode(target) };
  if (place.kind === 'entry' && head !== null && place.position > head)
    return refuse(`entry ${place.position} is after head ${head}`);
  return { workspace: decode(workspace), tape: decode(tape), target: place, head };
}

/** A colon stays readable, because tape names contain colons (`telegram:123`). */
const encode = (part: string): string => encodeURIComponent(part).replaceAll('%3A', ':');

/** Names are percent-encoded, so that parsing gives the same reference, whatever characters they contain. */
export function formatTapeRef({ workspace, tape, target, head }: TapeRef): string {
  const place = target.kind === 'entry' ? String(target.position) : encode(target.name);
  const bound = head === null ? '' : `?head=${head}`;
  return `${SCHEME}${encode(workspace)}/${encode(tape)}/${target.kind}/${place}${bound}`;
}
