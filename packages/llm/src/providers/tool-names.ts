/** Tool names on the wire: providers take neither our dots nor more than 64 characters, and Gemini no other beginning than a letter or `_`. */
import { sha256 } from '@boxcar/kernel';

const wirePattern = /^[a-zA-Z_][a-zA-Z0-9_-]{0,63}$/;
/** Where a `__` for a dot could not be told from underscores that were there before. */
const ambiguous = /__|_\.|\._|\.\./;

export interface ToolNames {
  toWire(name: string): string;
  /** The name it stands for; one that stands for none is returned as it is: the model made it up. */
  fromWire(wireName: string): string;
}

const hashed = (name: string): string => {
  const legal = name.replaceAll(/[^a-zA-Z0-9_-]/g, '_').replace(/^(?![a-zA-Z_])/, '_');
  return `${legal.slice(0, 51)}_${sha256(name).slice(0, 12)}`;
};

/**
 * One name on the wire for each of `names`. Legal names stay, `tape.handoff` becomes `tape__handoff`, and what would
 * then be ambiguous, too long or taken gets a part of its hash, so that a name is written alike in every step.
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
