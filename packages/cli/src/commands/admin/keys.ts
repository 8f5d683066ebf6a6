/** `boxcar keys create|ls|revoke|rotate`. */
import { toLine } from '@boxcar/host/base';
import { settingSchemas } from '@boxcar/host/config';
import { SCOPES, type Scope } from '@boxcar/kernel';
import { type CreatedKey, createKey, type Key, listKeys, revokeKey, rotateKey } from '@boxcar/runtime';
import type { Command } from 'commander';
import { z } from 'zod';
import { collect, EXIT, flag, helpOf, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { readId } from '../../input/id-argument.js';
import { wrongUsage } from '../../input/usage.js';
import { openReader } from '../../reader.js';
import { shortIds } from '../../text/short-ids.js';
import { countOf, formatFields, formatShortDuration, formatTable } from '../../text/text.js';

const SCOPE_LIST = SCOPES.join(', ');

interface CreateFlags {
  readonly scope?: readonly Scope[];
  readonly agent?: string;
  readonly name?: string;
  readonly expires?: number;
  readonly project?: string;
}

/** Shows a new key with its text, which is never shown again. */
function answerMade(context: Context, made: CreatedKey): void {
  const { key_id, key, scopes, project, agent, expires_at } = made;
  context.answer(
    {
      key_id,
      key,
      scopes,
      project,
      ...(agent === null ? {} : { agent }),
      ...(expires_at === null ? {} : { expires_at }),
    },
    () =>
      formatFields([
        ['key', key],
        ['key_id', key_id],
        ['project', project],
        ...(agent === null ? [] : [['agent', toLine(agent)] as const]),
        ['scopes', scopes.join(', ')],
        ['expires', expires_at === null ? 'never' : expires_at.toISOString()],
      ]),
  );
  context.note('the key is shown only once: keep it where only its user can read it');
}

/** `boxcar keys create`. */
async function runCreate(context: Context, flags: CreateFlags): Promise<number> {
  const { scope: scopes, agent, name, expires: lifetimeMs, project } = flags;
  if (scopes === undefined)
    throw wrongUsage(`give the rights of the key: --scope, one of ${SCOPE_LIST}`, 'scope');
  await using reader = await openReader(context.config, context.log('warn'));
  const projectId = project ?? context.config.project;
  answerMade(context, await createKey(reader.pool, { scopes, projectId, agent, name, lifetimeMs }));
  return EXIT.success;
}

interface ListFlags {
  readonly all?: boolean;
  readonly limit?: number;
  readonly cursor?: string;
  readonly project?: string;
}

const since = (at: Date | null): string =>
  at === null ? 'never' : `${formatShortDuration(Math.max(Date.now() - at.getTime(), 0))} ago`;

/** The end of the key's validity. */
function endOf({ status, expires_at, revoked_at }: Key): string {
  if (status !== 'usable') return status;
  const ends = [expires_at, revoked_at].flatMap((at) => (at === null ? [] : [at.getTime()]));
  return ends.length === 0 ? '' : `in ${formatShortDuration(Math.max(Math.min(...ends) - Date.now(), 0))}`;
}

/** `boxcar keys ls`. */
async function runList(context: Context, { all, limit, cursor, project }: ListFlags): Promise<number> {
  await using reader = await openReader(context.config, context.log('warn'));
  const page = await listKeys(reader.pool, {
    projectId: project ?? context.config.project,
    all,
    limit,
    cursor,
  });
  const short = shortIds(page.keys.map(({ key_id }) => key_id));
  context.answer(page, () =>
    page.keys.length === 0
      ? 'no keys'
      : formatTable(
          [
            { title: 'key' },
            { title: 'name', max: 20 },
            { title: 'ends in' },
            { title: 'agent', max: 20 },
            { title: 'used', align: 'right' },
            { title: 'end', align: 'right' },
            { title: 'scopes' },
          ],
          page.keys.map((key) => [
            short.get(key.key_id) ?? key.key_id,
            key.name,
            `…${key.hint}`,
            key.agent ?? '',
            since(key.last_used_at),
            endOf(key),
            key.scopes.join(', '),
          ]),
        ),
  );
  if (page.next_cursor !== null)
    context.note(`${countOf(page.keys.length, 'key')} shown; the next: --cursor ${page.next_cursor}`);
  return EXIT.success;
}

interface EndFlags {
  readonly project?: string;
  readonly grace?: number;
}

/** `boxcar keys revoke`. */
async function runRevoke(context: Context, ref: string, { project }: EndFlags): Promise<number> {
  await using reader = await openReader(context.config, context.log('warn'));
  const key = await revokeKey(reader.pool, ref, { projectId: project ?? context.config.project });
  context.answer(key, () => `${key.key_id}  revoked ${key.revoked_at?.toISOString() ?? ''}`);
  return EXIT.success;
}

/** `boxcar keys rotate`. */
async function runRotate(context: Context, ref: string, { project, grace = 0 }: EndFlags): Promise<number> {
  await using reader = await openReader(context.config, context.log('warn'));
  const options = { projectId: project ?? context.config.project, graceMs: grace * 1000 };
  answerMade(context, await rotateKey(reader.pool, ref, options));
  return EXIT.success;
}

const KEY = 'id of a key, or at least the first 8 digits of it';

export function addKeys(program: Command, run: Run): void {
  const keys = program.command('keys').addHelpText(
    'after',
    helpOf({
      examples: ['boxcar keys create --scope approvals:read --scope approvals:write', 'boxcar keys ls'],
    }),
  );
  keys
    .command('create')
    .description('Makes a key for the HTTP server, and shows it once.')
    .option('--scope <scope>', 'a right of the key, repeatable', collect(flag(z.enum(SCOPES))))
    .option('--agent <name>', 'the key acts as this agent, by id or name')
    .option('--name <text>', 'display name (default: key)')
    .option('--expires <age>', 'when it ends: 12h, 30d or 8w (default: never)', flag(settingSchemas.age))
    .option('--project <name>', 'project, by id or name')
    .addHelpText(
      'after',
      helpOf({
        remarks: `Scopes: ${SCOPE_LIST}.\n\nA key has access to its own project only. Only its sha256 is stored.`,
        examples: [
          'boxcar keys create --scope approvals:read --scope approvals:write',
          'boxcar keys create --scope a2a:call --name partner --expires 30d --json',
        ],
      }),
    )
    .action((flags: CreateFlags) => run((context) => runCreate(context, flags)));
  keys
    .command('ls')
    .description('Lists the valid keys of a project, newest first.')
    .option('--all', 'ended keys too')
    .option('--limit <n>', 'rows at most (default: 50)', flag(settingSchemas.pageSize))
    .option('--cursor <cursor>', 'next_cursor of the page before')
    .option('--project <name>', 'project, by id or name')
    .addHelpText('after', helpOf({ examples: ['boxcar keys ls', 'boxcar keys ls --all --json'] }))
    .action((flags: ListFlags) => run((context) => runList(context, flags)));
  keys
    .command('revoke')
    .description('Ends a key at once: the next request with it is refused.')
    .argument('<key>', KEY, readId)
    .option('--project <name>', 'project, by id or name')
    .addHelpText('after', helpOf({ examples: ['boxcar keys revoke 0198c1f2'] }))
    .action((ref: string, flags: EndFlags) => run((context) => runRevoke(context, ref, flags)));
  keys
    .command('rotate')
    .description('Replaces a key by a new key with the same rights.')
    .argument('<key>', KEY, readId)
    .option(
      '--grace <seconds>',
      'how long the old key may still be used (default: 0)',
      flag(settingSchemas.graceSeconds),
    )
    .option('--project <name>', 'project, by id or name')
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'The new key has the project, agent, name, scopes and lifetime of the old key. A key can be rotated once.',
        examples: ['boxcar keys rotate 0198c1f2 --grace 3600'],
      }),
    )
    .action((ref: string, flags: EndFlags) => run((context) => runRotate(context, ref, flags)));
}
