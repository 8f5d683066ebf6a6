import { randomBytes } from 'node:crypto';
import type { TestDatabase } from './database.js';
import { closeAtEnd } from './lifecycle.js';

export interface TestRole extends AsyncDisposable {
  readonly name: string;
  /** The database as this role. */
  readonly url: string;
  /** Drops the role. The end of the file does this too. */
  close(): Promise<void>;
}

let count = 0;

/** A role that owns nothing and has only the rights of `public`, until a test grants it more. */
export async function testRole(database: TestDatabase): Promise<TestRole> {
  count += 1;
  const name = `${database.name}_role_${count}`;
  const password = randomBytes(16).toString('hex');
  await database.pool.query(`create role ${name} login password '${password}'`);
  const url = new URL(database.url);
  url.username = name;
  url.password = password;
  const close = closeAtEnd(async () => {
    await database.pool.query(`drop owned by ${name}; drop role ${name}`);
  });
  return { name, url: url.href, close, [Symbol.asyncDispose]: close };
}
