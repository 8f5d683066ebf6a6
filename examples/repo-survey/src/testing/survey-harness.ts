import { cp, mkdir, mkdtemp, realpath, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Model } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { createWorker, InProcessDoorbell, Runtime } from '@boxcar/runtime';
import { testDatabase } from '@boxcar/testkit';

/** A runtime with one worker, on a separate database. */
export async function openTestRuntime(
  model: Model = createModelRouter(),
): Promise<AsyncDisposable & { readonly runtime: Runtime; readonly url: string }> {
  const database = await testDatabase();
  const runtime = new Runtime({
    pool: database.pool,
    directUrl: database.url,
    doorbell: new InProcessDoorbell(),
    model,
  });
  const worker = await createWorker(runtime, { sweepMs: 200 });
  return {
    runtime,
    url: database.url,
    [Symbol.asyncDispose]: async () => {
      await worker.close({ graceMs: 1_000 });
      await runtime.close();
      await database.close();
    },
  };
}

export const SECRET = 'the secret outside';

export interface TestTree extends AsyncDisposable {
  /** A copy of the fixture with content that git cannot store: links, ignored folders, files to skip. */
  readonly root: string;
  /** A folder next to the root that no tool may read. */
  readonly outside: string;
}

const FIXTURE = fileURLToPath(new URL('../../fixtures/small-tree', import.meta.url));

export async function copyFixture(): Promise<TestTree> {
  const base = await realpath(await mkdtemp(join(tmpdir(), 'boxcar-survey-')));
  const root = join(base, 'tree');
  // Its name begins like the root's name: a check of path prefixes would accept it.
  const outside = join(base, 'tree-outside');
  await cp(FIXTURE, root, { recursive: true });
  await mkdir(outside);
  await writeFile(join(outside, 'secret.ts'), `export const secret = '${SECRET}'; // TODO: hide\n`);
  await symlink(outside, join(root, 'link-to-folder'));
  await symlink(join(outside, 'secret.ts'), join(root, 'src', 'link-to-file.ts'));
  await symlink(join(root, 'docs'), join(root, 'link-inside'));
  await symlink(root, join(root, 'src', 'deep', 'loop'));
  for (const folder of ['node_modules/left-pad', '.git', 'src/dist']) {
    await mkdir(join(root, folder), { recursive: true });
    await writeFile(
      join(root, folder, 'index.js'),
      `export const ignored = '${SECRET}'; // TODO: not ours\n`,
    );
  }
  await writeFile(join(root, 'docs', 'picture.png'), Buffer.from([0x89, 0x50, 0x4e, 0x47, 0, 1, 2, 10]));
  await writeFile(join(root, 'docs', 'huge.txt'), 'x'.repeat(2 * 1024 * 1024 + 1));
  await writeFile(join(root, 'docs', 'übersicht.md'), '# Übersicht\r\n\r\nzwei\r\n');
  return { root, outside, [Symbol.asyncDispose]: () => rm(base, { recursive: true, force: true }) };
}
