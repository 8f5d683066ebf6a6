/** References to a place on a tape: `tape://{workspace}/{tape}/entry/{position}` and `…/anchor/{name}`, with `?head=`. */

export interface TapeRef {
  readonly workspace: string;
  readonly tape: string;
  readonly target:
    | { readonly kind: 'entry'; readonly position: number }
    /** The latest anchor of the name, of those up to `head`. */
    | { readonly kind: 'anchor'; readonly name: string };
  /** Nothing behind this position is meant; null: the head at the time of reading. */
  readonly head: number | null;
}

/** @throws KernelError `bad_request` saying what is wrong; `path` names the field it stood in. */
export function parseTapeRef(_text: string, _path = 'tape_ref'): TapeRef {
  throw new Error('not yet');
}

/** Percent-encoded so that parsing gives the same reference, whatever characters the names hold. */
export function formatTapeRef(_ref: TapeRef): string {
  throw new Error('not yet');
}
