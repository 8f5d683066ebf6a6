import { readFile } from 'node:fs/promises';
import { resolve } from 'node:path';
import { text as readText } from 'node:stream/consumers';
import { KernelError } from '@boxcar/kernel';
import { type AppliedProfile, loadPlugins } from '@boxcar/runtime';
import type { Context } from '../context.js';
import { readProfiles } from '../profile-files.js';
import { openStack } from '../stack.js';
import { formatTable } from '../text.js';

export interface ApplyFlags {
  readonly file: readonly string[];
  readonly project?: string;
  readonly plugin?: readonly string[];
}

async function readFiles(names: readonly string[]): Promise<{ name: string; text: string }[]> {
  const files: { name: string; text: string }[] = [];
  for (const name of names) {
    try {
      files.push(
        name === '-'
          ? { name: 'stdin', text: await readText(process.stdin) }
          : { name, text: await readFile(name, 'utf8') },
      );
    } catch (error) {
      throw new KernelError('bad_request', {
        message: `--file ${name}: ${error instanceof Error ? error.message : String(error)}.`,
        details: { field: 'file', file: name },
        cause: error,
      });
    }
  }
  return files;
}

/** `boxcar profiles apply`: all profiles of all files, or none when one of them is wrong. */
export async function applyProfiles(context: Context, flags: ApplyFlags): Promise<number> {
  const { config } = context;
  const files = await readFiles(flags.file);
  await using stack = await openStack(config, { log: context.log('warn') });
  const { runtime } = stack;
  await loadPlugins(
    runtime,
    (flags.plugin ?? config.plugins).map((path) => resolve(path)),
  );
  const read = readProfiles(files, (profile) => runtime.model.checkProfile?.(profile));
  const applied: AppliedProfile[] = [];
  for (const { profile } of read)
    applied.push(await runtime.applyProfile(profile, { projectId: flags.project ?? config.project }));
  context.answer({ profiles: applied }, () =>
    formatTable(
      [{ title: 'profile', max: 50 }, { title: 'version', align: 'right' }, { title: '' }],
      applied.map(({ name, version, changed }) => [name, String(version), changed ? 'changed' : 'unchanged']),
    ),
  );
  return 0;
}
