/**
 * Tool names on the wire: providers accept neither dots nor more than 64 characters, and Gemini requires a letter or `_` at the
 * beginning.
 */
import { sha256 } from '@boxcar/kernel';

const wirePattern = /^[a-zA-Z_][a-zA-Z0-9_-]{0,63}$/;
/** Names in which a `__` for a dot could not be distinguished from underscores of the original. */
const ambiguous = /__|_\.|\._|\.\./;

export interface ToolNames {
  toWire(name: string): string;
  /** The original name. A wire name without an original is returned unchanged: the model made it up. */
  fromWire(wireName: string): string;
}

const hashed = (name: string): string => {
  const legal = name.replaceAll(/[^a-zA-Z0-9_-]/g, '_').replace(/^(?![a-zA-Z_])/, '_');
  return `${legal.slice(0, 51)}_${sha256(name).slice(0, 12)}`;
};

/**
 * One wire name for each of `names`. Legal names stay, `tape.handoff` becomes `tape__handoff`. A name that would then be ambiguous, too
 * long or taken gets a part of its hash, so that it is the same in every step.
 */
export function mapToolNames(names: Iterable<string>): ToolNames {
  const all = new Set(names);
  const wireNames = new Map<string, string>();
  for (const name of all) {
    const readable = name.replaceAll('.', '__');
    const isFree = readable === name || !all.has(readable);
    const isReadable = wirePattern.test(readable) && (readable === name || !ambiguous.test(name));
    wireNames.set(name, isReadable && isFree ? readable : hashed(name));
  }
  const originals = new Map([...wireNames].map(([name, wireName]) => [wireName, name]));
  return {
    toWire: (name) => wireNames.get(name) ?? hashed(name),
    fromWire: (wireName) => originals.get(wireName) ?? wireName,
  };
}
