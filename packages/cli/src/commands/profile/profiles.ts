import { resolve } from 'node:path';
import { toPlain } from '@boxcar/host/base';
import { openStack, type Stack } from '@boxcar/host/open';
import { canonicalJson, type JsonObject, KernelError } from '@boxcar/kernel';
import { loadPlugins, type ProfileFinding, type ProfileRef, type ProfileVersion } from '@boxcar/runtime';
import type { ProfileLine } from '@boxcar/store';
import type { Command } from 'commander';
import { collect, EXIT, helpOf, notBlank, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { wrongUsage } from '../../input/usage.js';
import { countOf, formatFields, formatTable } from '../../text/text.js';
import { type ProfileText, type ReadProfile, readProfiles, readTexts } from './profile-files.js';
import { diffProfiles, type ProfileSide, toYaml } from './profile-yaml.js';

interface ProjectFlags {
  readonly project?: string;
}

interface FileFlags extends ProjectFlags {
  readonly plugin?: readonly string[];
}

interface ApplyFlags extends FileFlags {
  readonly file: readonly string[];
  readonly dryRun?: boolean;
}

const projectOf = (context: Context, flags: ProjectFlags): { readonly projectId: string } => ({
  projectId: flags.project ?? context.config.project,
});

/** Data in the form of the database and of a diff: a parsed profile has no functions and no undefined values. */
const toData = (profile: object): JsonObject => JSON.parse(JSON.stringify(profile));

/** `name`, `name@7` or `name@current`. */
function parseRef(text: string): ProfileRef {
  const [, name = text, version = 'current'] = /^(.+)@(\d+|current)$/s.exec(text) ?? [];
  return { name, version: version === 'current' ? undefined : Number(version) };
}

const labelOf = ({ name, version }: ProfileVersion): string => `${name}@${version}`;
const dateOf = (date: Date): string => date.toISOString().slice(0, 10);

async function parseWithPlugins(
  context: Context,
  stack: Stack,
  of: { readonly texts: readonly ProfileText[]; readonly flags: FileFlags },
): Promise<readonly ReadProfile[]> {
  await loadPlugins(
    stack.runtime,
    (of.flags.plugin ?? context.config.plugins).map((path) => resolve(path)),
  );
  return readProfiles(of.texts, (profile) => void stack.runtime.checkProfile(profile));
}

/** `boxcar profiles apply`: applies all profiles of all files, or none when any profile is not valid. */
async function applyProfiles(context: Context, flags: ApplyFlags): Promise<number> {
  const texts = await readTexts(flags.file);
  await using stack = await openStack(context.config, { log: context.log('warn') });
  const read = await parseWithPlugins(context, stack, { texts, flags });
  // Awaited here, because the stack is closed when this function returns.
  if (flags.dryRun === true)
    return await previewApply(context, stack, { read, ...projectOf(context, flags) });
  const applied = await stack.runtime.applyProfiles(
    read.map(({ profile }) => profile),
    projectOf(context, flags),
  );
  context.answer({ profiles: applied }, () =>
    [
      formatTable(
        [{ title: 'profile', max: 50 }, { title: 'version', align: 'right' }, { title: '' }],
        applied.map(({ name, version, change }) => [name, String(version), change]),
      ),
      ...applied.flatMap(describeFindings),
    ].join('\n'),
  );
  return EXIT.success;
}

/** One warning per finding, with its profile. */
export const describeFindings = (of: {
  readonly name: string;
  readonly findings?: readonly ProfileFinding[];
}): readonly string[] =>
  (of.findings ?? []).map((finding) =>
    toPlain(
      `warning: ${of.name}: ${'tool' in finding ? `tool ${finding.tool}: ` : 'selector' in finding ? `selector ${finding.selector}: ` : ''}${finding.message}`,
    ),
  );

/** Shows the effect of applying; writes nothing. */
async function previewApply(
  context: Context,
  { runtime }: Stack,
  of: { readonly read: readonly ReadProfile[]; readonly projectId: string },
): Promise<number> {
  const names = of.read.map(({ profile }) => ({ name: profile.name }));
  const found = await runtime.findProfileVersions(names, { projectId: of.projectId });
  const current = new Map(found.map((version) => [version.name, version]));
  const findings = new Map<string, readonly ProfileFinding[]>();
  for (const { profile } of of.read) findings.set(profile.name, await runtime.findProfileFindings(profile));
  const plan = of.read.map(({ profile, file }) => {
    const now = current.get(profile.name);
    const next = toData(profile);
    const isSame = now !== undefined && canonicalJson(now.profile) === canonicalJson(next);
    const from: ProfileSide = {
      label: now === undefined ? 'nothing' : labelOf(now),
      profile: now?.profile ?? null,
    };
    const found = findings.get(profile.name) ?? [];
    return {
      name: profile.name,
      file,
      ...(found.length === 0 ? {} : { findings: found }),
      change: now === undefined ? 'new' : isSame ? 'unchanged' : 'changed',
      current_version: now?.version ?? null,
      version: isSame ? now.version : (now?.latest_version ?? 0) + 1,
      diff: isSame ? '' : diffProfiles(from, { label: file, profile: next }),
    };
  });
  context.answer({ dry_run: true, profiles: plan }, () =>
    [
      formatTable(
        [{ title: 'profile', max: 50 }, { title: 'version', align: 'right' }, { title: 'would be' }],
        plan.map(({ name, version, change }) => [name, String(version), change]),
      ),
      ...plan.flatMap(describeFindings),
      ...plan.flatMap(({ change, diff }) => (change === 'changed' ? ['', toPlain(diff)] : [])),
    ].join('\n'),
  );
  return EXIT.success;
}

function describeList(lines: readonly ProfileLine[]): string {
  if (lines.length === 0) return 'no profiles';
  const behind = lines.reduce((sum, line) => sum + line.agents_behind, 0);
  const table = formatTable(
    [
      { title: 'profile', max: 22 },
      { title: 'version', align: 'right' },
      { title: 'model', max: 16 },
      { title: 'tags', max: 11 },
      { title: 'agents', align: 'right' },
      { title: 'applied' },
    ],
    lines.map((line) => [
      line.name,
      String(line.version),
      line.model,
      line.tags.join(','),
      String(line.agents),
      dateOf(line.applied_at),
    ]),
  );
  if (behind === 0) return table;
  return `${table}\n\n${countOf(behind, 'agent')} of older versions; provision_agent moves one with profile_version.`;
}

/** `boxcar profiles ls`. */
async function listProfiles(
  context: Context,
  flags: ProjectFlags & { readonly tag?: string },
): Promise<number> {
  await using stack = await openStack(context.config, { log: context.log('warn') });
  const lines = await stack.runtime.listProfiles({ ...projectOf(context, flags), tag: flags.tag });
  context.answer({ profiles: lines }, () => describeList(lines));
  return EXIT.success;
}

function describeProfile(found: ProfileVersion): string {
  const state = found.is_current ? 'current' : `newest is ${found.latest_version}`;
  return `${formatFields([
    ['profile', labelOf(found)],
    ['version', `${found.version} (${state})`],
    ['applied', found.applied_at.toISOString()],
    ['box', found.profile_box_id],
  ])}\n\n${toYaml(found.profile).trimEnd()}`;
}

/** `boxcar profiles show`: a version as stored, in a form that can be applied again. */
async function showProfile(
  context: Context,
  ref: string,
  flags: ProjectFlags & { readonly yaml?: boolean },
): Promise<number> {
  if (flags.yaml === true && context.isJson)
    throw wrongUsage('show: give --yaml or --json, not both', 'yaml');
  await using stack = await openStack(context.config, { log: context.log('warn') });
  const { name, version } = parseRef(ref);
  const found = await stack.runtime.getProfile(name, { ...projectOf(context, flags), version });
  context.answer(found, () =>
    flags.yaml === true ? toYaml(found.profile).trimEnd() : describeProfile(found),
  );
  return EXIT.success;
}

interface DiffFlags extends FileFlags {
  readonly file?: string;
}

/** Both sides of a comparison: two versions, or a version and the profile with its name in a file. */
async function readSides(
  context: Context,
  stack: Stack,
  of: {
    readonly from: string;
    readonly to: string | undefined;
    readonly flags: DiffFlags;
    /** The file, when there is one. */
    readonly texts: readonly ProfileText[];
  },
): Promise<readonly [ProfileSide, ProfileSide]> {
  const { flags } = of;
  const scope = projectOf(context, flags);
  const get = async ({ name, version }: ProfileRef): Promise<ProfileVersion> =>
    stack.runtime.getProfile(name, { ...scope, version });
  const side = (found: ProfileVersion): ProfileSide => ({ label: labelOf(found), profile: found.profile });
  const from = parseRef(of.from);
  if (flags.file !== undefined) {
    const stored = await get(from);
    const read = await parseWithPlugins(context, stack, { texts: of.texts, flags });
    const profile = read.find((one) => one.profile.name === stored.name)?.profile;
    if (profile === undefined)
      throw new KernelError('not_found', {
        message: `${flags.file} holds no profile '${stored.name}'.`,
        details: { file: flags.file, profile_name: stored.name },
      });
    return [side(stored), { label: flags.file, profile: toData(profile) }];
  }
  if (of.to !== undefined) return [side(await get(from)), side(await get(parseRef(of.to)))];
  const current = await get({ name: from.name });
  if (from.version !== undefined) return [side(await get(from)), side(current)];
  if (current.version === 1)
    throw new KernelError('not_found', {
      message: `Profile '${current.name}' has only version 1; name what to compare it with.`,
      details: { profile_name: current.name, profile_version: 1 },
    });
  return [side(await get({ name: from.name, version: current.version - 1 })), side(current)];
}

/** `boxcar profiles diff`: exits with 0 when both are equal, with 3 when not. */
async function diffVersions(
  context: Context,
  from: string,
  to: string | undefined,
  flags: DiffFlags,
): Promise<number> {
  if (to !== undefined && flags.file !== undefined)
    throw wrongUsage('diff: give a second version or --file, not both', 'file');
  const texts = await readTexts(flags.file === undefined ? [] : [flags.file]);
  await using stack = await openStack(context.config, { log: context.log('warn') });
  const [before, after] = await readSides(context, stack, { from, to, flags, texts });
  const isSame = canonicalJson(before.profile) === canonicalJson(after.profile);
  const diff = isSame ? '' : diffProfiles(before, after);
  context.answer({ same: isSame, from: before.label, to: after.label, diff }, () =>
    isSame ? `${before.label} and ${after.label} are the same.` : toPlain(diff),
  );
  return isSame ? EXIT.success : EXIT.negative;
}

const PROJECT = ['--project <name>', 'project, by id or name'] as const;
const PLUGIN = ['--plugin <file>', 'a module that registers what the profiles use, repeatable'] as const;

export function addProfiles(program: Command, run: Run): void {
  const profiles = program.command('profiles').addHelpText(
    'after',
    helpOf({
      examples: [
        'boxcar profiles apply -f profiles.yaml',
        'boxcar profiles ls',
        'boxcar profiles diff writer',
      ],
      negative: 'diff: the versions differ',
    }),
  );
  profiles
    .command('apply')
    .description('Applies the profiles of YAML or JSON files: a new version of each changed profile.')
    .requiredOption('-f, --file <file...>', 'one or more files, each with one or more documents; - is stdin')
    .option('--dry-run', 'only show the changes that would be made')
    .option(...PROJECT)
    .option(...PLUGIN, collect(notBlank))
    .addHelpText(
      'after',
      helpOf({
        remarks: 'Applies all profiles of all files, or none if any of them is not valid.',
        examples: [
          'boxcar profiles apply -f profiles.yaml',
          'boxcar profiles apply -f a.yaml b.yaml --plugin ./tools.js',
          'boxcar profiles apply -f profiles.yaml --dry-run',
          'cat profiles.yaml | boxcar profiles apply -f -',
        ],
      }),
    )
    .action((flags: ApplyFlags) => run((context) => applyProfiles(context, flags)));
  profiles
    .command('ls')
    .description('Lists the current profiles: version, model, tags, agents, last change.')
    .option('--tag <tag>', 'only profiles with this tag')
    .option(...PROJECT)
    .addHelpText(
      'after',
      helpOf({
        examples: ['boxcar profiles ls', "boxcar profiles ls --tag code --json | jq '.profiles[].name'"],
      }),
    )
    .action((flags: ProjectFlags & { tag?: string }) => run((context) => listProfiles(context, flags)));
  profiles
    .command('show')
    .description('Shows a profile as it is stored.')
    .argument('<profile>', 'its name, or name@version')
    .option('--yaml', 'only the YAML, which can be applied again')
    .option(...PROJECT)
    .addHelpText(
      'after',
      helpOf({
        examples: [
          'boxcar profiles show reviewer',
          'boxcar profiles show reviewer@2 --yaml > reviewer.yaml',
          'boxcar profiles show reviewer@2 --yaml | boxcar profiles apply -f -',
        ],
      }),
    )
    .action((ref: string, flags: ProjectFlags & { yaml?: boolean }) =>
      run((context) => showProfile(context, ref, flags)),
    );
  profiles
    .command('diff')
    .description('Shows the differences between two versions of a profile, or a version and a file.')
    .argument('<profile>', 'name, or name@version; alone: the version before and the current one')
    .argument('[other]', 'name, or name@version; default: the current version')
    .option('-f, --file <file>', 'compare with the profile of this name in a file; - is stdin')
    .option(...PROJECT)
    .option(...PLUGIN, collect(notBlank))
    .addHelpText(
      'after',
      helpOf({
        examples: [
          'boxcar profiles diff reviewer',
          'boxcar profiles diff reviewer@1 reviewer@3',
          'boxcar profiles diff reviewer -f profiles.yaml',
        ],
        negative: 'the versions differ',
      }),
    )
    .action((from: string, to: string | undefined, flags: DiffFlags) =>
      run((context) => diffVersions(context, from, to, flags)),
    );
}
