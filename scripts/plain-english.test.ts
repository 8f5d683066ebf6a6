import { describe, expect, it } from 'vitest';
import { commentsOf } from './comments.mjs';
import { findHabits, measure } from './plain-english.mjs';

describe('habits of wording', () => {
  const namesIn = (text: string): readonly string[] => findHabits(text).map(({ habit }) => habit);

  it.each([
    ['Whoever loses stops.', 'who as a noun'],
    ['It says who may read.', 'who as a noun'],
    ["'abc' is no id.", 'is no, was none'],
    ['What is kept counts.', 'a clause that begins with what'],
    ['Nobody waits.', 'nobody, somebody'],
    ['It follows behind the anchor.', 'behind'],
    ['The id stands in its card.', 'stands'],
    ['a turn in hand', 'in hand'],
    ['It begins anew.', 'anew, besides'],
  ])('are found in "%s"', (text, habit) => {
    expect(namesIn(text)).toEqual([habit]);
  });

  it('are not found in sentences with a noun', () => {
    expect(
      namesIn('The person who decides reads the ticket. A turn that ends is not valid anymore.'),
    ).toEqual([]);
  });

  it('are not searched in code, blocks and addresses', () => {
    const text = 'See `behind` and [a page](nobody.md).\n\n```sh\necho who stands behind\n```\n';
    expect(measure(text)).toEqual({ words: 4, places: [] });
  });

  it('are reported with their line', () => {
    expect(findHabits('One.\n\nNobody waits.')).toEqual([
      { habit: 'nobody, somebody', line: 3, words: 'Nobody' },
    ]);
  });
});

describe('the comments of a source', () => {
  const words = (source: string, path = 'a.ts'): readonly string[] =>
    commentsOf(source, path).match(/\w+/g) ?? [];

  it('are those of lines and of blocks', () => {
    expect(words('/** One\n * two. */\nconst a = 1; // three\n')).toEqual(['One', 'two', 'three']);
  });

  it('are not found in strings, templates and regular expressions', () => {
    const source =
      // biome-ignore lint/suspicious/noTemplateCurlyInString: the text of a program.
      "const a = '// no'; const b = `/* no */ ${a + '// no'} // no`; const c = /[/*]\\/\\/no/; // yes";
    expect(words(source)).toEqual(['yes']);
  });

  it('are also found after a division', () => {
    expect(words('const a = b / c; // yes / no')).toEqual(['yes', 'no']);
  });

  it('keep their lines', () => {
    expect(commentsOf('const a = 1;\n// two\n', 'a.ts').split('\n')[1]?.trim()).toBe('two');
  });

  it('in SQL and in a shell script are lines', () => {
    expect(words('select 1; -- one\n', 'a.sql')).toEqual(['one']);
    expect(words('# one\necho "#no"\n', 'a.sh')).toEqual(['one']);
  });
});
