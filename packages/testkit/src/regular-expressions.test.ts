/** All regular expressions of the packages take at most linear time, for any text from a model, a tool or a provider. */
import { readdirSync, readFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { Worker } from 'node:worker_threads';
import { type AST, parseRegExpLiteral, visitRegExpAST } from '@eslint-community/regexpp';
import { parseSync, Visitor } from 'oxc-parser';
import { afterAll, beforeAll, expect, test } from 'vitest';

const PACKAGES = join(import.meta.dirname, '..', '..');
/** With quadratic time this length takes minutes; with linear time a few milliseconds. */
const CHARACTERS = 2 * 1024 * 1024;
const GENEROUS_MS = 30_000;

interface Found {
  readonly literals: ReadonlyMap<string, string>;
  readonly assembled: readonly string[];
}

function findPatterns(): Found {
  const literals = new Map<string, string>();
  const assembled = new Set<string>();
  const folders = readdirSync(PACKAGES).map((name) => join(PACKAGES, name, 'src'));
  const files = folders.flatMap((folder) =>
    readdirSync(folder, { recursive: true, encoding: 'utf8' }).map((name) => join(folder, name)),
  );
  for (const path of files.filter((name) => name.endsWith('.ts') && !name.endsWith('.test.ts'))) {
    const file = relative(PACKAGES, path);
    const { program, errors } = parseSync(path, readFileSync(path, 'utf8'));
    expect(errors, file).toEqual([]);
    const visitCall = ({ callee }: { readonly callee: { readonly type: string } }): void => {
      if (callee.type === 'Identifier' && Reflect.get(callee, 'name') === 'RegExp') assembled.add(file);
    };
    new Visitor({
      Literal(node) {
        if ('regex' in node) literals.set(`/${node.regex.pattern}/${node.regex.flags}`, file);
      },
      CallExpression: visitCall,
      NewExpression: visitCall,
    }).visit(program);
  }
  return { literals, assembled: [...assembled].sort() };
}

/**
 * Files that build patterns at run time: one searches for words that it has escaped; the other only lets the engine check a pattern,
 * without a text.
 */
const COMPILED_ONLY = ['adapters/src/wire/conceal.ts', 'kernel/src/schema/user-pattern.ts'];

const CANDIDATES = ['a', '1', ' ', '/', '<', '`', '\\', '\n', '\t', 'Z', '-', '.', '\u0001', '\u{1F600}'];

/** A text that `node` matches, or nearly matches: look-around and back references are skipped. */
function sampleOf(node: AST.Element | AST.Alternative, flags: string): string {
  switch (node.type) {
    case 'Alternative':
      return node.elements.map((element) => sampleOf(element, flags)).join('');
    case 'Group':
    case 'CapturingGroup':
      return sampleOf(node.alternatives[0] as AST.Alternative, flags);
    case 'Quantifier':
      return sampleOf(node.element, flags).repeat(Math.max(node.min, 1));
    case 'Character':
      return String.fromCodePoint(node.value);
    case 'CharacterClass':
    case 'CharacterSet': {
      const pattern = new RegExp(`^(?:${node.raw})$`, flags.replace(/[gy]/g, ''));
      const [first] = node.type === 'CharacterClass' ? node.elements : [];
      const named = first?.type === 'Character' ? [String.fromCodePoint(first.value)] : [];
      return [...named, ...CANDIDATES].find((text) => pattern.test(text)) ?? '';
    }
    default:
      return '';
  }
}

/** A text that matches everything before `node`, within all groups that contain it. */
function prefixOf(node: AST.Node, flags: string): string {
  const { parent } = node;
  if (parent === null) return '';
  const before =
    parent.type === 'Alternative' ? parent.elements.slice(0, parent.elements.indexOf(node as never)) : [];
  return prefixOf(parent, flags) + before.map((element) => sampleOf(element, flags)).join('');
}

/** Texts on which each unbounded repetition restarts as often as possible, and then fails. */
function worstInputs(literal: string): readonly string[] {
  const pattern = parseRegExpLiteral(literal);
  const flags = pattern.flags.raw;
  const inputs = new Set<string>();
  visitRegExpAST(pattern, {
    onQuantifierEnter(quantifier) {
      if (quantifier.max !== Number.POSITIVE_INFINITY) return;
      const prefix = prefixOf(quantifier, flags);
      const step = sampleOf(quantifier.element, flags);
      for (const pump of [step, prefix, prefix + step, step + prefix]) {
        if (pump !== '') inputs.add(`${prefix}${pump.repeat(CHARACTERS / pump.length)}\u0001`);
      }
    },
  });
  return [...inputs];
}

const PROGRAM = `
const { parentPort } = require('node:worker_threads');
parentPort.on('message', ({ source, flags, text }) => {
  text.replace(new RegExp(source, flags), '');
  parentPort.postMessage('done');
});`;

let worker: Worker;
beforeAll(() => {
  worker = new Worker(PROGRAM, { eval: true });
});
afterAll(() => worker.terminate());

async function endsWithin(literal: string, text: string, ms: number): Promise<boolean> {
  const pattern = parseRegExpLiteral(literal);
  const hasEnded = await new Promise<boolean>((resolve) => {
    const timer = setTimeout(() => resolve(false), ms);
    worker.once('message', () => {
      clearTimeout(timer);
      resolve(true);
    });
    worker.postMessage({ source: pattern.pattern.raw, flags: pattern.flags.raw, text });
  });
  if (hasEnded) return true;
  await worker.terminate();
  worker = new Worker(PROGRAM, { eval: true });
  return false;
}

async function isLinear(literal: string, ms: number): Promise<boolean> {
  for (const text of worstInputs(literal)) if (!(await endsWithin(literal, text, ms))) return false;
  return true;
}

test('the inputs are the worst case: known slow patterns do not end on them', async () => {
  const slow = ['/\\uFFFD+$/', '/<title[^>]*>/i', '/said .* twice/', '/^(a+)+$/', '/max_\\w*tokens/'];
  for (const literal of slow) expect(await isLinear(literal, 1_000), literal).toBe(false);
});

test('every pattern reads 2 MiB of its worst input', { timeout: 600_000 }, async () => {
  const { literals, assembled } = findPatterns();
  expect(literals.size).toBeGreaterThan(100);
  // This test cannot check patterns that are assembled at run time.
  expect(assembled).toEqual(COMPILED_ONLY);
  const slow: string[] = [];
  for (const [literal, file] of literals)
    if (!(await isLinear(literal, GENEROUS_MS))) slow.push(`${file}: ${literal}`);
  expect(slow).toEqual([]);
});
