// Makes a fresh clone runnable with only Node: installs with the pinned pnpm through npx, then builds. It uses no dependency. Its output
// and the output of its children go to stderr, so `npm start -s` keeps stdout clean.
import { spawnSync } from 'node:child_process';
import { readFileSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));

const [major = 0, minor = 0] = process.versions.node.split('.').map(Number);
if (major < 20 || (major === 20 && minor < 19)) {
  fail(
    `Boxcar needs Node ${manifest.engines.node}; this is ${process.versions.node}. Install a newer Node and try again.`,
  );
}

if (isStale()) {
  console.error('boxcar: installing dependencies');
  pnpm(
    ['install', '--frozen-lockfile'],
    'the install failed; see the lines above, check that npm can reach its registry',
  );
}
if (!process.argv.includes('--no-build')) {
  pnpm(
    ['exec', 'turbo', 'run', 'build', '--output-logs=errors-only'],
    'the build failed; see the lines above',
  );
}

/** True when nothing is installed, or the lock file is newer than the installation. */
function isStale() {
  const installedAt = modifiedAt(join(root, 'node_modules', '.modules.yaml'));
  return installedAt === 0 || installedAt < modifiedAt(join(root, 'pnpm-lock.yaml'));
}

function modifiedAt(path) {
  return statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? 0;
}

function pnpm(args, complaint) {
  const windows = process.platform === 'win32';
  const result = spawnSync(windows ? 'npx.cmd' : 'npx', ['--yes', manifest.packageManager, ...args], {
    cwd: root,
    shell: windows,
    stdio: ['ignore', 2, 2],
    env: { ...process.env, CI: '1', TURBO_TELEMETRY_DISABLED: '1', npm_config_loglevel: 'error' },
  });
  if (result.error) fail(`cannot start npx (${result.error.message}); it comes with npm`);
  if (result.status !== 0) fail(complaint);
}

function fail(message) {
  console.error(`boxcar: ${message}`);
  process.exit(1);
}
