import { Readable } from 'node:stream';
import { expect, test } from 'vitest';
import { joinCommands, splitLines } from './command-lines.js';

async function read(...chunks: (string | Buffer)[]): Promise<string[]> {
  const found: string[] = [];
  for await (const text of joinCommands(splitLines(Readable.from(chunks)))) found.push(text);
  return found;
}

test.each<[string, string, string[]]>([
  ['one line each', ',anchors\nhello\n,help\n', [',anchors', 'hello', ',help']],
  ['no line end at the end', ',anchors\r\n,help', [',anchors', ',help']],
  ['an open quote', ',handoff summary="a\nb" name=x\n,help', [',handoff summary="a\nb" name=x', ',help']],
  ['an open brace', ',handoff state={\n a: 1\n}\nhi', [',handoff state={\n a: 1\n}', 'hi']],
  ['a backslash', ',handoff \\\nname=a\n', [',handoff \\\nname=a']],
  [
    'an indented argument',
    ',handoff name=debug-complete \n       summary="Found"\nNow.\n',
    [',handoff name=debug-complete \n       summary="Found"', 'Now.'],
  ],
  ['an indented line after a text', 'hello\n  a=b\n', ['hello', '  a=b']],
  ['a quote that is never closed', ',handoff summary="a\n,help', [',handoff summary="a\n,help']],
  ['no line', '', []],
])('the lines of one command are joined: %s', async (_what, text, commands) => {
  expect(await read(text)).toEqual(commands);
  // The stream may be cut anywhere, even within a character.
  const bytes = Buffer.from(`é${text}`);
  const cut = await read(bytes.subarray(0, 1), bytes.subarray(1));
  expect(cut.join('\n')).toBe(`é${commands.join('\n')}`);
});

test('a command is returned as soon as no further line has arrived', async () => {
  async function* arrive(): AsyncGenerator<string> {
    yield ',anchors\n,handoff na';
    // The partial next line may still continue the command.
    expect(seen).toEqual([]);
    yield 'me=a\n';
    expect(seen).toEqual([',anchors', ',handoff name=a']);
    yield ',handoff "x\n';
    expect(opened).toBe(1);
    expect(seen).toHaveLength(2);
    yield 'y"\n';
  }
  const seen: string[] = [];
  let opened = 0;
  const onOpen = (): void => {
    opened += 1;
  };
  for await (const text of joinCommands(splitLines(arrive()), { onOpen })) seen.push(text);
  expect(seen).toEqual([',anchors', ',handoff name=a', ',handoff "x\ny"']);
});

test('a quote that is never closed takes time in proportion to the lines', async () => {
  const text = `,handoff summary=it's\n${'and so on, line after line\n'.repeat(20_000)}`;
  expect(
    await read(
      ...Array.from({ length: 100 }, (_, at) =>
        text.slice((at * text.length) / 100, ((at + 1) * text.length) / 100),
      ),
    ),
  ).toEqual([text.trimEnd()]);
});
