/**
 * The sources of an older build, run with the libraries that are installed here. `migrations/previous-build` names its commit: the newest
 * commit that landed with an older schema than this checkout's. `scripts/previous-build.mjs` checks the commit;
 * docs/reference/operations.md, "Two builds at once", describes when the file is updated and by whom.
 */
import { execFile, execFileSync } from 'node:child_process';
import {
  cpSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  symlinkSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const exec = promisify(execFile);
const ROOT = realpathSync(join(import.meta.dirname, '../../../..'));
const PARTS = ['packages', 'migrations', 'package.json'];

export interface PreviousBuild extends Disposable {
  readonly commit: string;
  readonly migrationsDir: string;
  /** Copies a program of these tests into the older build, so that it runs with the code of that build. */
  place(program: URL): string;
}

const commit = readFileSync(join(ROOT, 'migrations', 'previous-build'), 'utf8').trim();

/** The reason why there is no older build here. Undefined when this checkout is a clone that has its commit. */
export function findMissingBuild(): string | undefined {
  try {
    execFileSync('git', ['-C', ROOT, 'cat-file', '-e', `${commit}^{commit}`], { stdio: 'ignore' });
    return undefined;
  } catch {
    return `this checkout has no commit ${commit} (migrations/previous-build): clone it with its history`;
  }
}

/** @throws Error when this checkout is not a clone that has the commit. */
export async function openPreviousBuild(): Promise<PreviousBuild> {
  const folder = realpathSync(mkdtempSync(join(tmpdir(), 'boxcar-previous-')));
  const archive = join(folder, 'sources.tar');
  await exec('git', ['-C', ROOT, 'archive', `--output=${archive}`, commit, ...PARTS]);
  await exec('tar', ['-xf', archive, '-C', folder]);
  linkModules(join(ROOT, 'node_modules'), join(folder, 'node_modules'), folder);
  for (const name of readdirSync(join(folder, 'packages')))
    linkModules(
      join(ROOT, 'packages', name, 'node_modules'),
      join(folder, 'packages', name, 'node_modules'),
      folder,
    );
  return {
    commit,
    migrationsDir: join(folder, 'migrations'),
    place: (program) => {
      const path = join(folder, relative(ROOT, fileURLToPath(program)));
      cpSync(program, path);
      return path;
    },
    [Symbol.dispose]: () => rmSync(folder, { recursive: true, force: true }),
  };
}

/** Links each library as it is installed here. Packages of the workspace are those of the older build. */
function linkModules(from: string, to: string, folder: string): void {
  mkdirSync(to, { recursive: true });
  for (const entry of readdirSync(from)) {
    if (entry.startsWith('.')) continue;
    if (entry.startsWith('@')) {
      linkModules(join(from, entry), join(to, entry), folder);
      continue;
    }
    const real = realpathSync(join(from, entry));
    const isOurs = real.startsWith(join(ROOT, 'packages'));
    symlinkSync(isOurs ? join(folder, 'packages', basename(real)) : real, join(to, entry));
  }
}
