/** Parses a policy: the result is either all errors at once or the frozen policy. Format: docs/reference/policy.md. */
import { isUtf8 } from 'node:buffer';
import { canonicalJson, isCleanText, type JsonValue, KernelError, sha256 } from '@boxcar/kernel';
import { isScalar, LineCounter, parseDocument } from 'yaml';
import type { Policy } from './policy.js';
import { readRule, readTools } from './read-rules.js';
import { NodeReader, type Place, type PolicyFinding } from './yaml-nodes.js';

export interface ParsePolicyOptions {
  /** The name of the text in findings. Default: `policy`. */
  readonly file?: string | undefined;
}

/** Either a policy or the errors of its text. */
export type CheckedPolicy =
  | { readonly policy: Policy; readonly findings: readonly [] }
  | { readonly policy?: undefined; readonly findings: readonly PolicyFinding[] };

const DEFAULT_NAME = 'policy';

/** `file:line:column path: what`. A finding about the whole file has no path. */
export function formatFinding(finding: PolicyFinding, file = DEFAULT_NAME): string {
  const { line, column, path, message } = finding;
  return `${file}:${line}:${column} ${path === '' ? DEFAULT_NAME : path}: ${message}`;
}

function freeze<T>(value: T): T {
  if (typeof value === 'object' && value !== null && !Object.isFrozen(value)) {
    Object.freeze(value);
    Object.values(value).forEach(freeze);
  }
  return value;
}

/** A finding at the first character that is not allowed in the text. */
function refuseCharacter(text: string, wrong: RegExp, message: string): CheckedPolicy {
  const lines = text.slice(0, Math.max(text.search(wrong), 0)).split('\n');
  const column = (lines.at(-1)?.length ?? 0) + 1;
  return { findings: [{ line: lines.length, column, path: '', message }] };
}

/** Rewords a message of the YAML parser as a finding. */
function ownWords(code: string, message: string): string {
  if (code === 'MULTIPLE_DOCS') return 'has more than one document';
  return message.includes('call stack') ? 'is nested too deeply' : message;
}

/** The root of the document; undefined for a text that is not valid YAML, whose errors become findings. */
function readDocument(text: string, lines: LineCounter, reader: NodeReader): Place | undefined {
  const document = parseDocument(text, {
    lineCounter: lines,
    prettyErrors: false,
    stringKeys: true,
    // Repeated keys are found by the reader of nodes, which knows their paths.
    uniqueKeys: false,
  });
  const flaws = new Map(
    [...document.errors, ...document.warnings].map(({ code, message, pos: [offset] }) => {
      const words = ownWords(code, message);
      return [`${offset} ${words}`, { offset, words }];
    }),
  );
  for (const { offset, words } of flaws.values()) reader.refuseAt(offset, '', words);
  return flaws.size > 0 ? undefined : { node: document.contents, offset: 0, path: '' };
}

function readPolicy(reader: NodeReader, root: Place): Pick<Policy, 'tools' | 'rules'> {
  const members = reader.members(root, ['tools', 'rules']);
  const tools = members?.get('tools');
  const rules = members?.get('rules');
  const items = (rules && reader.items(rules)) ?? [];
  return {
    tools: tools === undefined ? Object.create(null) : readTools(reader, tools),
    rules: items.map((item) => readRule(reader, item)).filter((rule) => rule !== undefined),
  };
}

/** Reads a policy without throwing: for programs that show all errors. */
export function checkPolicy(source: string | Uint8Array): CheckedPolicy {
  const isText = typeof source === 'string';
  const text = (isText ? source : Buffer.from(source).toString('utf8')).replace(/^\ufeff/, '');
  if (!isText && !isUtf8(source))
    return refuseCharacter(text, /\ufffd/, 'is not UTF-8 text; save the file with that encoding');
  if (!isCleanText(text))
    return refuseCharacter(text, /\0|\p{Surrogate}/u, 'has a NUL character or a lone surrogate');
  const lines = new LineCounter();
  const reader = new NodeReader(lines);
  const root = readDocument(text, lines, reader);
  const isEmpty = root?.node === null || (isScalar(root?.node) && root.node.value === null);
  if (isEmpty) reader.refuseAt(0, '', 'is empty; write tools, rules or both');
  const read = root === undefined || isEmpty ? undefined : readPolicy(reader, root);
  const findings = reader.findings.toSorted((a, b) => a.line - b.line || a.column - b.column);
  if (read === undefined || findings.length > 0) return { findings };
  const version = sha256(canonicalJson(read as unknown as JsonValue));
  return { policy: freeze({ version, text, ...read }), findings: [] };
}

/**
 * Reads a policy.
 *
 * @param source - YAML, as text or as the UTF-8 bytes of a file.
 * @throws KernelError `policy_invalid` with all errors: in the message as `file:line:column path: what`, in `details.findings` as
 * {@link PolicyFinding}.
 */
export function parsePolicy(source: string | Uint8Array, options: ParsePolicyOptions = {}): Policy {
  const { policy, findings } = checkPolicy(source);
  if (policy !== undefined) return policy;
  const { file } = options;
  throw new KernelError('policy_invalid', {
    message: `${findings.map((finding) => formatFinding(finding, file)).join('; ')}.`,
    details: { ...(file === undefined ? {} : { file }), findings },
  });
}
