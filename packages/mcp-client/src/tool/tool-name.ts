/** Names of the tools of MCP servers, as models see them. */
import { createHash } from 'node:crypto';

const LONGEST_NAME = 64;
const HASH_LENGTH = 8;
const LIKE_CHANGED = /_[0-9a-f]{8}$/;

/**
 * The name `server.tool` with the characters `[a-zA-Z0-9_.-]`, at most 64 of them. A name that had to change ends in a short hash of the
 * whole original, so that it is the same in every process. A name that looks like a changed name also gets a hash. Names of servers have
 * no dot, so two tools have the same name only when their hashes are equal.
 */
export function toolNameOf(server: string, tool: string): string {
  const original = `${server}.${tool}`;
  const plain = original.replace(/[^a-zA-Z0-9_.-]/gu, '_');
  if (plain === original && plain.length <= LONGEST_NAME && !LIKE_CHANGED.test(plain)) return plain;
  const hash = createHash('sha256')
    .update(JSON.stringify([server, tool]))
    .digest('hex')
    .slice(0, HASH_LENGTH);
  return `${plain.slice(0, LONGEST_NAME - HASH_LENGTH - 1)}_${hash}`;
}
