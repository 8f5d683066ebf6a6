import { basename, extname } from 'node:path';

const BY_EXTENSION: Readonly<Record<string, string>> = {
  '.bash': 'Shell',
  '.c': 'C',
  '.cc': 'C++',
  '.cjs': 'JavaScript',
  '.conf': 'Configuration',
  '.cpp': 'C++',
  '.cs': 'C#',
  '.css': 'CSS',
  '.csv': 'CSV',
  '.cts': 'TypeScript',
  '.dart': 'Dart',
  '.ex': 'Elixir',
  '.exs': 'Elixir',
  '.go': 'Go',
  '.graphql': 'GraphQL',
  '.h': 'C',
  '.hpp': 'C++',
  '.hs': 'Haskell',
  '.htm': 'HTML',
  '.html': 'HTML',
  '.ini': 'Configuration',
  '.java': 'Java',
  '.js': 'JavaScript',
  '.json': 'JSON',
  '.json5': 'JSON',
  '.jsonc': 'JSON',
  '.jsx': 'JavaScript',
  '.kt': 'Kotlin',
  '.less': 'CSS',
  '.lua': 'Lua',
  '.md': 'Markdown',
  '.mdx': 'Markdown',
  '.mjs': 'JavaScript',
  '.mts': 'TypeScript',
  '.php': 'PHP',
  '.pl': 'Perl',
  '.proto': 'Protocol Buffers',
  '.py': 'Python',
  '.pyi': 'Python',
  '.r': 'R',
  '.rb': 'Ruby',
  '.rs': 'Rust',
  '.rst': 'reStructuredText',
  '.sass': 'CSS',
  '.scala': 'Scala',
  '.scss': 'CSS',
  '.sh': 'Shell',
  '.sql': 'SQL',
  '.svelte': 'Svelte',
  '.svg': 'SVG',
  '.swift': 'Swift',
  '.tf': 'Terraform',
  '.toml': 'TOML',
  '.ts': 'TypeScript',
  '.tsx': 'TypeScript',
  '.txt': 'Text',
  '.vue': 'Vue',
  '.xml': 'XML',
  '.yaml': 'YAML',
  '.yml': 'YAML',
  '.zig': 'Zig',
  '.zsh': 'Shell',
};

const BY_NAME: Readonly<Record<string, string>> = {
  Dockerfile: 'Dockerfile',
  LICENSE: 'Text',
  Makefile: 'Makefile',
};

const own = (table: Readonly<Record<string, string>>, key: string): string | undefined =>
  Object.hasOwn(table, key) ? table[key] : undefined;

/** The language of a file, from its name; `Other` when the name is not known. */
export const languageOf = (path: string): string =>
  own(BY_NAME, basename(path)) ?? own(BY_EXTENSION, extname(path).toLowerCase()) ?? 'Other';

/** True for the files whose exports and functions are counted. */
export const isCode = (path: string): boolean => /\.(?:[cm]?[jt]s|[jt]sx)$/i.test(path);
