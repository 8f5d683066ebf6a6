/**
 * Reads the operator's settings in YAML or JSON and reports all errors at once, each with its line. No finding repeats a value, which may
 * be an address or a misplaced key.
 */
import { readFileSync } from 'node:fs';
import { KernelError } from '@boxcar/kernel';
import { type Document, isNode, LineCounter, parseDocument, visit } from 'yaml';

export interface SettingsFinding {
  readonly path: readonly string[];
  readonly message: string;
}

/** How to read one kind of settings. */
export interface SettingsFormat<T> {
  /** The name of the whole document in findings. */
  readonly root: string;
  readonly read: (input: unknown, refuse: (finding: SettingsFinding) => void) => T;
}

/** Uses double quotes: an error treats text between two single quotes as one word, and shortens it. */
const wordsOf = ({ path, message }: SettingsFinding, root: string): string =>
  `${path.length === 0 ? root : path.join('.')}: ${message.replaceAll("'", '"')}`;

const badSettings = (findings: readonly string[]): KernelError =>
  new KernelError('bad_config', { message: `${findings.join('; ')}.`, details: { findings } });

/**
 * Checks settings that a program gives in code.
 *
 * @throws KernelError `bad_config` with all findings.
 */
export function checkSettings<T>(input: unknown, { root, read }: SettingsFormat<T>): T {
  const findings: string[] = [];
  const settings = read(input, (finding) => findings.push(wordsOf(finding, root)));
  if (findings.length > 0) throw badSettings(findings);
  return settings;
}

/** The position of a finding in the document: its node, else the nearest enclosing node. */
function offsetOf(document: Document, path: readonly string[]): number {
  for (let length = path.length; length >= 0; length -= 1) {
    const node: unknown = length === 0 ? document.contents : document.getIn(path.slice(0, length), true);
    if (isNode(node) && node.range) return node.range[0];
  }
  return 0;
}

/**
 * Reads settings from YAML or JSON.
 *
 * @param file - The name of the text in findings.
 * @throws KernelError `bad_config` with all findings, each `file:line:column path: what`.
 */
export function parseSettings<T>(text: string, file: string, { root, read }: SettingsFormat<T>): T {
  const lines = new LineCounter();
  const document = parseDocument(text.replace(/^\ufeff/, ''), {
    lineCounter: lines,
    prettyErrors: false,
    stringKeys: true,
  });
  const findings: string[] = [];
  const refuseAt = (offset: number, finding: SettingsFinding): void => {
    const { line, col } = lines.linePos(offset);
    findings.push(`${file}:${Math.max(line, 1)}:${Math.max(col, 1)} ${wordsOf(finding, root)}`);
  };
  // The reader's own message may repeat the text around an error.
  for (const { code, pos } of [...document.errors, ...document.warnings])
    refuseAt(pos[0], { path: [], message: `is not valid YAML (${code})` });
  visit(document, {
    Alias: (_key, { range }) =>
      refuseAt(range?.[0] ?? 0, { path: [], message: 'has an alias; write the value itself' }),
  });
  if (findings.length > 0) throw badSettings(findings);
  const input: unknown = document.contents === null ? {} : document.toJS();
  const settings = read(input, (finding) => refuseAt(offsetOf(document, finding.path), finding));
  if (findings.length > 0) throw badSettings(findings);
  return settings;
}

/** @throws KernelError `bad_config` when the file cannot be read. */
export function readSettingsText(
  file: string,
  { what, variable }: { readonly what: string; readonly variable: string },
): string {
  try {
    return readFileSync(file, 'utf8');
  } catch (cause) {
    const code = cause instanceof Error && 'code' in cause ? String(cause.code) : 'unreadable';
    throw new KernelError('bad_config', {
      message: `The file of ${what} '${file}' cannot be read (${code}).`,
      next: `Correct ${variable}.`,
      details: { file },
      cause,
    });
  }
}
