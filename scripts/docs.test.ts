/** Checks of the pages that do not need the program: their names, links and lists match the sources. */
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, normalize } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { parse } from 'yaml';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const read = (path: string): string => readFileSync(join(root, path), 'utf8');
const LEFT_OUT = new Set(['node_modules', 'dist', '.git', '.turbo', 'wire']);

function filesBelow(folder: string): string[] {
  return readdirSync(join(root, folder), { withFileTypes: true }).flatMap((entry) => {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) return LEFT_OUT.has(entry.name) ? [] : filesBelow(path);
    return entry.isFile() ? [path] : [];
  });
}

const files = [
  'packages',
  'services',
  'examples',
  'bench',
  'scripts',
  'migrations',
  'docs',
  '.ci',
  '.github',
].flatMap(filesBelow);
/** The history of decisions mentions names that no longer exist. */
const isOfDecisions = (path: string): boolean => /^docs\/decisions(\.md$|\/)/.test(path);
const pages = [
  'README.md',
  'CONTRIBUTING.md',
  'CHANGELOG.md',
  'SECURITY.md',
  ...files.filter((path) => path.endsWith('.md')),
].filter((path) => !isOfDecisions(path));
/** Tests are included, since they also contain the names of refused values. */
const source = files
  .filter(
    (path) => /\.(ts|mjs|js|sql|json|ya?ml)$|^\.ci|Dockerfile$/.test(path) && !path.endsWith('.test.ts'),
  )
  .concat('package.json', 'docker-compose.yml')
  .map(read)
  .concat(files)
  .join('\n')
  .replaceAll('\\n', ' ');
const words = new Set(source.match(/\w+/g));

/** Names of other programs and standards, of tests, and of examples. */
const FOREIGN = new Set([
  ...'_interval _count transaction_timeout TEMPORARY trimEvents psql createdb require_auth __md5 SuppressedError'.split(
    ' ',
  ),
  ...'allowJs deprecated readOnly writeOnly contentEncoding contentMediaType'.split(' '),
  ...['SCENES', 'SEED', 'SHOP'],
  ...'reviews_first migrtion clerk main_'.split(' '),
  ...'asyncio to_thread describe_numbers'.split(' '),
  ...'full_handoff Claude refund region abc etc xternal'.split(' '),
  ...'claude_desktop_config codeium windsurf mcp_config vscode LOGNAME TERM'.split(' '),
]);

const schema = read('migrations/schema.sql');
const columns = new Map(
  [...schema.matchAll(/create (?:unlogged )?table boxcar\.(\w+) \(([\s\S]*?)\n\)/gi)].map(
    ([, table = '', body = '']) => [
      table,
      new Set([...body.matchAll(/^\s+(\w+) /gm)].map(([, name]) => name)),
    ],
  ),
);
/** The prefixes of log events. `runtime.…` is also the object. */
const eventPrefixes = new Set(
  [...source.matchAll(/\blog\(\s*'\w+',\s*'([a-z_]+)\./g)].map(([, prefix = '']) => prefix),
);
eventPrefixes.delete('runtime');
const isSaid = (name: string): boolean =>
  source.includes(`'${name}'`) || source.includes(`"${name}"`) || columns.has(name.split('.')[0] ?? '');

const code = (text: string): readonly string[] =>
  [...withoutBlocks(text).matchAll(/`([^`\n]+)`/g)].map(([, inner = '']) => inner);

/** Names of tables, columns and queues in pictures. */
const drawn = (text: string): readonly string[] =>
  [...text.matchAll(/```mermaid\n([\s\S]*?)```/g)].flatMap(
    ([, picture = '']) => picture.match(/\b[a-z]+(?:_[a-z]+)+\b|\bboxcar-[a-z]+(?:-[a-z]+)*/g) ?? [],
  );

const withoutBlocks = (text: string): string => text.replace(/```[\s\S]*?```/g, '');

describe.each(pages)('%s', (page) => {
  const text = read(page);

  it('uses no name in code format that is in no source', () => {
    const names = code(text).flatMap(
      (inner) => inner.match(/--[a-z][a-z-]+|(?<![\w-])[A-Za-z_]{3,}(?![\w…])/g) ?? [],
    );
    const unknown = names.filter((name) =>
      name.startsWith('--') ? !source.includes(name) : !words.has(name) && !FOREIGN.has(name),
    );
    unknown.push(...drawn(text).filter((name) => !source.includes(name)));
    expect([...new Set(unknown)]).toEqual([]);
  });

  const dotted = code(text).filter(
    (inner) => /^[a-z_]+\.[a-z_]+$/.test(inner) && !/\.(ts|mjs|js|ya?ml|json|md|env)$/.test(inner),
  );

  it('uses tables and columns that the schema has', () => {
    const unknown = dotted.filter((name) => {
      const [table = '', column = ''] = name.split('.');
      if (table === 'boxcar') return !schema.includes(`boxcar.${column}`);
      return columns.has(table) && columns.get(table)?.has(column) !== true && !source.includes(`'${name}'`);
    });
    expect(unknown).toEqual([]);
  });

  it('uses events that are logged or reported', () => {
    expect(dotted.filter((name) => eventPrefixes.has(name.split('.')[0] ?? '') && !isSaid(name))).toEqual([]);
  });

  it('uses files of packages that exist', () => {
    const paths = code(text).filter((inner) => /^packages\/\w+\/src\/[\w./-]+\.ts$/.test(inner));
    expect(paths.filter((path) => !files.includes(path))).toEqual([]);
  });

  it('links to files and headings that exist', () => {
    const broken = [...withoutBlocks(text).matchAll(/\]\(([^)\s]+)\)/g)]
      .map(([, link = '']) => link)
      .filter((link) => !/^https?:/.test(link) && !leads(page, link));
    expect(broken).toEqual([]);
  });
});

/** The anchor that GitHub makes from a heading. */
const anchorOf = (heading: string): string =>
  heading
    .trim()
    .toLowerCase()
    .replace(/[^\p{L}\p{N}_ -]/gu, '')
    .replaceAll(' ', '-');

function leads(page: string, link: string): boolean {
  const [path = '', anchor] = link.split('#');
  const target = path === '' ? page : normalize(join(dirname(page), path));
  if (!target.endsWith('.md'))
    return (
      files.some((file) => file === target || file.startsWith(`${target.replace(/\/$/, '')}/`)) ||
      readsRoot(target)
    );
  if (!pages.includes(target) && !(isOfDecisions(target) && files.includes(target))) return false;
  const headings = withoutBlocks(read(target)).match(/^#+ .*$/gm) ?? [];
  return anchor === undefined || headings.some((heading) => anchorOf(heading.replace(/^#+ /, '')) === anchor);
}

const readsRoot = (path: string): boolean => readdirSync(root).includes(path);

/** The names in the first cells of the table after a text. */
function tableAfter(page: string, text: string): readonly string[] {
  const rest = read(page).split(text)[1] ?? '';
  const rows = /(?:^|\n)((?:\|.*\n)+)/.exec(rest)?.[1] ?? '';
  return rows
    .split('\n')
    .slice(2, -1)
    .map((row) => row.split(' | ')[0]?.replace(/^\| /, '') ?? '');
}

const codesIn = (cells: readonly string[]): string[] =>
  cells.flatMap((cell) => [...cell.matchAll(/`([^`]+)`/g)].map(([, code = '']) => code)).sort();

describe('lists', () => {
  it('docs/reference/operations.md has every check of doctor, and no other', () => {
    const judged = ['findings', 'servers']
      .map((part) => read(`packages/cli/src/text/doctor-${part}.ts`))
      .join('\n');
    const asked = read('packages/cli/src/commands/admin/doctor.ts');
    const checks = new Set([
      ...[...judged.matchAll(/\b(?:ok|warn|fail|late)\(\s*'([a-z ]+)'/g)].map(([, name]) => name),
      ...[...asked.matchAll(/check: '([a-z ]+)'/g)].map(([, name]) => name),
    ]);
    const listed = tableAfter('docs/reference/operations.md', '`{ status, findings:').flatMap((cell) =>
      cell.split(', '),
    );
    expect([...listed].sort()).toEqual([...checks].sort());
  });

  it('docs/reference/cli.md has every kind of link of why-stuck, and no other', () => {
    const kinds =
      /WaitLinkKind =([^;]+);/.exec(read('packages/kernel/src/diagnose/wait-links.ts'))?.[1] ?? '';
    const known = [...kinds.matchAll(/'(\w+)'/g)].map(([, kind]) => kind);
    expect(
      codesIn(tableAfter('docs/reference/cli.md', 'Nothing that exists will move what is marked with !.')),
    ).toEqual(known.sort());
  });

  it('docs/explanation/life-of-a-turn.md draws every step that it describes, and describes each that it draws', () => {
    const page = 'docs/explanation/life-of-a-turn.md';
    const drawing = /```\n([\s\S]+?)```/.exec(read(page))?.[1] ?? '';
    const drawn = [...drawing.matchAll(/(?<=\s)(\d+) ([a-z]+)/g)].map(([step]) => step);
    const described = [...read(page).matchAll(/^### (\d.*)$/gm)].map(([, step]) => step);
    expect(described).not.toEqual([]);
    expect(new Set(drawn)).toEqual(new Set(described));
    const codes = [...drawing.matchAll(/\b[a-z]+(?:_[a-z]+)+\b/g)].map(([name]) => name);
    // A test of the kernel checks the page of errors against the catalogue.
    const listed = [...read('docs/reference/errors.md').matchAll(/^\| `(\w+)` \|/gm)].map(([, name]) => name);
    expect(codes).not.toEqual([]);
    expect(codes.filter((name) => !listed.includes(name))).toEqual([]);
  });

  it('docs/reference/primitives.md has everything that a handler gets', () => {
    const tools =
      /interface HandlerTools \{([\s\S]+?)\n\}/.exec(read('packages/runtime/src/handler/handler.ts'))?.[1] ??
      '';
    const members = [...tools.matchAll(/^ {2}(?:readonly )?(\w+)[(:]/gm)].map(([, name]) => name);
    const sentence =
      /`handle` gets an object with ([^.]+)\./.exec(read('docs/reference/primitives.md'))?.[1] ?? '';
    expect(members).not.toEqual([]);
    expect(codesIn([sentence])).toEqual(members.sort());
  });
});

interface Field {
  readonly type: string;
  readonly id?: string;
  readonly attributes: { readonly label?: string };
}

describe('pictures and forms of the code host', () => {
  it.each([
    ['license', `license: ${/^(\w+) License\n/.exec(read('LICENSE'))?.[1]}`],
    ['node', `Node.js: ${/"node": ">=([\d.]+)"/.exec(read('package.json'))?.[1]} or newer`],
    [
      'postgres',
      `PostgreSQL: ${Number(/OLDEST_SERVER = (\d+)0_000;/.exec(read('packages/store/src/db/migrate.ts'))?.[1])} or newer`,
    ],
  ])('the badge %s says what the files of the repository say', (name, words) => {
    const picture = read(`docs/badges/${name}.svg`);
    const [label = '', value = ''] = words.split(': ');
    expect(picture).toContain(`<title>${words}</title>`);
    for (const text of [label, value]) expect(picture).toContain(`>${text}</text>`);
    expect(picture.match(/https?:[^"]+/g)).toEqual(['http://www.w3.org/2000/svg']);
    expect(read('README.md')).toContain(`[![${words}](docs/badges/${name}.svg)]`);
  });

  it.each(filesBelow('.github/ISSUE_TEMPLATE').filter((path) => !path.endsWith('config.yml')))(
    '%s is a form, asks for version, backend, doctor and ids, and names pages that are there',
    (path) => {
      const text = read(path);
      const form = parse(text) as { name: string; description: string; body: Field[] };
      expect(form).toMatchObject({ name: expect.any(String), description: expect.any(String) });
      const fields = form.body.filter(({ type }) => type !== 'markdown');
      const ids = fields.map(({ id }) => id);
      expect(new Set(ids).size).toBe(ids.length);
      for (const { type, attributes } of fields) {
        expect(['input', 'textarea', 'dropdown']).toContain(type);
        expect(attributes.label).toEqual(expect.any(String));
      }
      for (const word of ['Version', 'Postgres', 'Redis', 'boxcar doctor --json', 'ids'])
        expect(text).toContain(word);
      const named = text.match(/\b(?:docs\/[\w/-]+|[A-Z]+)\.md\b/g) ?? [];
      expect(named.filter((page) => !pages.includes(page) && !files.includes(page))).toEqual([]);
    },
  );
});
