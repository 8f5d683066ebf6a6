// Installs the server of Google's Agent Development Kit for the test that uses it. It is large, and its packages need overrides that the
// workspace must not have, so it gets a separate folder. A folder with a finished installation is left unchanged.
import { spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { readScriptArguments } from './script-arguments.mjs';

const fixture = fileURLToPath(new URL('../packages/adapters/src/fixtures/adk', import.meta.url));
const { positionals } = readScriptArguments(
  `Usage: node scripts/install-adk.mjs <folder>

Installs the ADK into the folder (about 280 MB). Tests find it by BOXCAR_ADK_DIR=<folder>.`,
  { maxPositionals: 1 },
);
const [given] = positionals;
if (given === undefined) {
  console.error('name the folder to install into; see --help');
  process.exit(2);
}
const folder = resolve(given);
const manifest = (place) => join(place, 'package.json');
const isSame =
  existsSync(manifest(folder)) &&
  readFileSync(manifest(folder), 'utf8') === readFileSync(manifest(fixture), 'utf8');
if (!isSame || !existsSync(join(folder, 'node_modules', '.bin', 'adk'))) {
  mkdirSync(folder, { recursive: true });
  cpSync(manifest(fixture), manifest(folder));
  const install = [
    'install',
    '--no-audit',
    '--no-fund',
    '--ignore-scripts',
    '--prefer-offline',
    '--loglevel=error',
  ];
  const { status } = spawnSync('npm', install, { cwd: folder, stdio: ['ignore', 2, 2] });
  process.exitCode = status ?? 1;
}
