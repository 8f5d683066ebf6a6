import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { parseCommaCommand } from './comma-command.js';
import { scanCommands } from './scan.js';

describe('the commands of a text', () => {
  test.each<[string, string, readonly string[], string]>([
    ['a line', 'Done.\n,anchors\nNext.', [',anchors'], 'Done.\nNext.'],
    ['the whole text', ',anchors', [',anchors'], ''],
    ['several', ',anchors\n,handoff name=a', [',anchors', ',handoff name=a'], ''],
    ['a line of Windows', 'Hi\r\n,anchors\r\nBye', [',anchors'], 'Hi\nBye'],
    ['a slightly indented line', '  ,anchors', [',anchors'], ''],
    [
      'an indented argument below',
      ',handoff name=a\n       summary="x"\n  next_steps=y\nThen.',
      [',handoff name=a\n       summary="x"\n  next_steps=y'],
      'Then.',
    ],
    [
      'an open quote',
      ',handoff summary="one\ntwo\nthree" name=a\nThen.',
      [',handoff summary="one\ntwo\nthree" name=a'],
      'Then.',
    ],
    [
      'an open bracket of an object',
      ',handoff state={\n  a: 1\n}\nThen.',
      [',handoff state={\n  a: 1\n}'],
      'Then.',
    ],
    ['a backslash', ',handoff \\\nname=a\nThen.', [',handoff \\\nname=a'], 'Then.'],
    [
      'a quote that is never closed',
      ",handoff summary=it's\nThen.\nIt goes on.",
      [",handoff summary=it's"],
      'Then.\nIt goes on.',
    ],
    ['a quote that is open at a blank line', ',t a="x\n\ny"', [',t a="x'], 'y"'],
    ['a quote that is open at a fence', ',t a="x\n```\n,no"\n```', [',t a="x'], '```\n,no"\n```'],
    ['blank lines around it', 'A\n\n,anchors\n\nB', [',anchors'], 'A\n\n\nB'],
    ['a closed fence before it', '```sh\nls\n```\n,anchors', [',anchors'], '```sh\nls\n```'],
    ['a closed block before it', '<quote>\nx\n</quote>\n,anchors', [',anchors'], '<quote>\nx\n</quote>'],
    ['a tag that is closed in its line', '<b>x</b>\n,anchors', [',anchors'], '<b>x</b>'],
    ['an element without an end', '<br>\n,anchors\n<x/>\n,help', [',anchors', ',help'], '<br>\n<x/>'],
    [
      'a fence that is closed at a smaller indent',
      '- ```\n  x\n```\n,anchors',
      [',anchors'],
      '- ```\n  x\n```',
    ],
    ['a fence within its line', 'Use ```ls``` here.\n,anchors', [',anchors'], 'Use ```ls``` here.'],
    ['a tag in code before it', 'Write `<b>`.\n,anchors\n</b>', [',anchors'], 'Write `<b>`.\n</b>'],
    ['a tag in a fence', '```\n<b>\n```\n,anchors\n</b>', [',anchors'], '```\n<b>\n```\n</b>'],
    ['text that looks like a tag', 'A Map<string> is it.\n,anchors', [',anchors'], 'A Map<string> is it.'],
    ['a comparison', 'a <b and\n\n,anchors\n\nc> d', [',anchors'], 'a <b and\n\n\nc> d'],
    ['a single backtick', 'It`s done.\n\n,anchors', [',anchors'], 'It`s done.'],
    ['a closed comment', '<!-- x\ny -->\n,anchors', [',anchors'], '<!-- x\ny -->'],
    ['a nested block', '<a>\n<a>\n</a>\n</a>\n,anchors', [',anchors'], '<a>\n<a>\n</a>\n</a>'],
    [
      'marks in its own words',
      ',handoff summary="a <b> `c`"\n,anchors',
      [',handoff summary="a <b> `c`"', ',anchors'],
      '',
    ],
    ['a quotation and a blank line before it', '> x\nlazy\n\n,anchors', [',anchors'], '> x\nlazy'],
  ])('are found: %s', (_what, text, commands, visible) => {
    expect(scanCommands(text)).toEqual({ visible, commands });
  });

  test.each([
    'please run ,anchors',
    'and so\n, in short, no',
    ',',
    ',,x',
    ',5 more',
    ',(x)',
    '    ,anchors',
    '\t,anchors',
    '- ,anchors',
    '> ,anchors',
    '> said\n,anchors',
    '`,anchors`',
    '```\n,anchors\n```',
    '```\n,anchors',
    '~~~ text `x`\n,anchors\n```\n,anchors\n~~~',
    '````\n```\n,anchors\n````',
    '- list\n      ```\n,anchors\n      ```',
    '1. ```\n,anchors\n   ```',
    '> ```\n> ,anchors\n,anchors',
    '<document>\n,anchors\n</document>',
    '<document index="1">\nx\n\n,anchors',
    '<think>\n,anchors\n</think>',
    // A fence ends only with its own end mark.
    '```\n> ```\n,anchors\n```',
    '> ```\n```\n,anchors\n> ```',
    '```\n    ```\n,anchors\n```',
    '```\n\t```\n,anchors\n```',
    'Like this: ```\n,anchors\n```',
    'Like this: ```sh\nls\n\n,anchors\n```',
    'A `span\n,anchors\n` of code',
    '``a `span\n,anchors`` of code',
    // Blocks: nested blocks of the same name, blocks after words, over several lines, in any case of letters.
    '<a>\n<a>\n</a>\n,anchors\n</a>',
    'She wrote: <mail>\n,anchors\n</mail>',
    '<a>x</a><b>\n,anchors\n</b>',
    '<document\n  source="x">\n,anchors\n</document>',
    '<document\n,anchors\nsource="x">',
    '<DIV>\n,anchors\n</div>',
    '<details>\n<p>one\n\n,anchors\n</details>',
    '<a>\n<b>\n</a>\n<b>\n,anchors',
    '<!--\n,anchors\n-->',
    'See <!-- this\n\n,anchors',
    '<![CDATA[\n,anchors\n]]>',
    '',
  ])('are not found, and the text stays unchanged: %j', (text) => {
    expect(scanCommands(text)).toEqual({ visible: text, commands: [] });
  });

  test('leave every line of the text either visible or inside a command that begins with a comma', () => {
    const line = fc.constantFrom(
      'text',
      ',anchors',
      ',handoff name=a summary="open',
      '  b=c',
      'close"',
      '```',
      '> quote',
      '<x>',
      '</x>',
      '',
      '    code',
      ",t it's",
    );
    fc.assert(
      fc.property(fc.array(line, { maxLength: 14 }), (lines) => {
        const text = lines.join('\n');
        const { visible, commands } = scanCommands(text);
        const kept = [...commands, visible].flatMap((part) => part.split('\n')).map((each) => each.trim());
        const filled = (each: string): boolean => each !== '';
        expect(kept.filter(filled).sort()).toEqual(
          lines
            .map((each) => each.trim())
            .filter(filled)
            .sort(),
        );
        for (const command of commands) expect(command).toMatch(/^,[a-z]/);
      }),
      { numRuns: 400 },
    );
  });

  test('are read by the grammar, or refused by the grammar with a reason', () => {
    const [command = ''] = scanCommands('So:\n,handoff name=a\n  summary="b c"').commands;
    expect(parseCommaCommand(command).named).toEqual({ name: 'a', summary: 'b c' });
    const [broken = ''] = scanCommands(",handoff summary=it's").commands;
    expect(() => parseCommaCommand(broken)).toThrow('a quote is not closed');
  });

  test.each([
    ['open quotes and blocks', ',t a="x\n> y\n<z>\n'],
    ['fences', '```\n```\n'],
    ['tags without end', 'x <z>\n<y>\n'],
    ['nested blocks', '<z>\n'],
    ['backticks', 'a ` b `` c\n'],
    ['tags and comments that are not valid', '<z <!- <z\n'],
    ['tags after many blanks', '<z>'],
    ['braces that are never closed', ',t a={{{{\n'],
  ])('are found by work that grows only with the length of the text: %s', (_what, part) => {
    const text = `,anchors\n${' '.repeat(500_000)}${part.repeat(100_000)}\n${'</z>\n'.repeat(20_000)}`;
    expect(scanCommands(text).commands[0]).toBe(',anchors');
  });
});
