import { expect, test } from 'vitest';
import { toolNameOf } from './tool-name.js';

test('a plain name stays unchanged', () => {
  expect(toolNameOf('files', 'read_file')).toBe('files.read_file');
  expect(toolNameOf('s', 'a'.repeat(62))).toBe(`s.${'a'.repeat(62)}`);
});

test.each([
  ['a space', 'read file'],
  ['a slash', 'a/b'],
  ['an emoji', '📦'],
  ['no letter of the alphabet', '読む'],
  ['only a line break', '\n'],
  ['a long name', 'a'.repeat(1_000)],
  ['63 characters', 'a'.repeat(63)],
])('a name with %s becomes a name that models accept, the same each time', (_what, tool) => {
  const name = toolNameOf('s', tool);
  expect(name).toMatch(/^[a-zA-Z0-9_.-]{1,64}$/);
  expect(name).toMatch(/_[0-9a-f]{8}$/);
  expect(toolNameOf('s', tool)).toBe(name);
});

test('names that are equal after the change stay distinct', () => {
  const tools = ['a b', 'a/b', 'a_b', `${'x'.repeat(80)}1`, `${'x'.repeat(80)}2`];
  expect(new Set(tools.map((tool) => toolNameOf('s', tool))).size).toBe(tools.length);
});

test('a tool with the changed name of another tool gets a name of its own', () => {
  const changed = toolNameOf('files', 'a b');
  expect(toolNameOf('files', changed.slice('files.'.length))).toMatch(/^files\.a_b_2f2995cf_[0-9a-f]{8}$/);
});

test('the hash is stored, so it must not change between versions', () => {
  expect(toolNameOf('files', 'a b')).toBe('files.a_b_2f2995cf');
});
