// Packs every published package into one folder, for `npm install ./*.tgz`.
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { readScriptArguments } from './script-arguments.mjs';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const { packageManager } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
const USAGE = `Usage: npm run tarballs [-- <folder>]

Packs the packages that a program needs, as npm installs them. Default folder: tarballs, in the root.`;
const [given = 'tarballs'] = readScriptArguments(USAGE, { maxPositionals: 1 }).positionals;
const folder = resolve(root, given);
const windows = process.platform === 'win32';
console.error('boxcar: packing');
// The list of the packed files is long, so it is printed only when something fails.
const { status, stdout, stderr } = spawnSync(
  windows ? 'npx.cmd' : 'npx',
  [
    ...['--yes', packageManager, '--recursive', '--filter', './packages/*', '--filter', '!@boxcar/testkit'],
    ...['pack', '--pack-destination', folder],
  ],
  { cwd: root, shell: windows, stdio: ['ignore', 'pipe', 'pipe'], encoding: 'utf8', maxBuffer: 64 << 20 },
);
if (status === 0) {
  console.log(`packed into ${folder}; install them in your project: npm install ${join(folder, '*.tgz')}`);
} else {
  process.stderr.write(`${stdout ?? ''}${stderr ?? ''}`);
}
process.exitCode = status ?? 1;
