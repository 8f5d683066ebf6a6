/**
 * Splits a command into words, as a POSIX shell splits a line. Blanks separate words. Single quotes keep all
 * characters. In double quotes, a backslash escapes `"` and `\`; elsewhere it escapes the next character. A backslash
 * before a line end joins lines. One extension: after `key=`, an opening brace keeps all characters up to its closing
 * brace.
 */

/** A word; `braces` is the text of its `{…}` after `key=`, which is then not part of `text`. */
export interface CommandWord {
  readonly text: string;
  readonly braces: string | null;
}

type Mode = 'blank' | 'word' | 'single' | 'double' | 'braces' | 'closed';

const BLANK = /[ \t\r\n]/;
const BEFORE_BRACES = /^(?:--)?[^\s=]+=$/;

/** Reads a text in pieces, so that a reader can check after each line whether the command is complete. */
export class CommandLexer {
  readonly #words: CommandWord[] = [];
  #mode: Mode = 'blank';
  #text = '';
  #isEscaped = false;
  #braces = '';
  #depth = 0;
  #quote = '';
  #fault: string | null = null;

  /** The element that must be closed before the command is complete. */
  get open(): 'quote' | 'backslash' | 'brace' | null {
    if (this.#isEscaped) return 'backslash';
    if (this.#mode === 'braces') return 'brace';
    return this.#mode === 'single' || this.#mode === 'double' ? 'quote' : null;
  }

  feed(text: string): void {
    for (const character of text) this.#take(character);
  }

  /** The words so far, and why they are not valid. */
  end(): { readonly words: readonly CommandWord[]; readonly fault: string | null } {
    this.#endWord();
    return { words: this.#words, fault: this.#fault };
  }

  #endWord(): void {
    if (this.#mode === 'blank') return;
    const isBraced = this.#mode === 'closed' || this.#mode === 'braces';
    this.#words.push({ text: this.#text, braces: isBraced ? this.#braces : null });
    this.#mode = 'blank';
    this.#text = '';
    this.#braces = '';
  }

  #take(character: string): void {
    switch (this.#mode) {
      case 'single':
        if (character === "'") this.#mode = 'word';
        else this.#text += character;
        return;
      case 'double':
        this.#takeInDouble(character);
        return;
      case 'braces':
        this.#takeInBraces(character);
        return;
      case 'blank':
      case 'word':
      case 'closed':
        this.#takeOutside(character);
        return;
      default:
        this.#mode satisfies never;
    }
  }

  #takeOutside(character: string): void {
    if (this.#isEscaped) {
      this.#isEscaped = false;
      if (character === '\n') return;
      this.#add(character);
    } else if (BLANK.test(character)) this.#endWord();
    else if (this.#mode === 'closed') this.#fault ??= `'${character}' follows a closing brace`;
    else if (character === '\\') this.#isEscaped = true;
    else if (character === "'" || character === '"') {
      this.#mode = character === "'" ? 'single' : 'double';
    } else if (character === '{' && BEFORE_BRACES.test(this.#text)) {
      this.#mode = 'braces';
      this.#takeInBraces(character);
    } else this.#add(character);
  }

  #add(character: string): void {
    this.#mode = 'word';
    this.#text += character;
  }

  #takeInDouble(character: string): void {
    if (this.#isEscaped) {
      this.#isEscaped = false;
      if (character === '\n') return;
      this.#text += character === '"' || character === '\\' ? character : `\\${character}`;
    } else if (character === '\\') this.#isEscaped = true;
    else if (character === '"') this.#mode = 'word';
    else this.#text += character;
  }

  #takeInBraces(character: string): void {
    this.#braces += character;
    if (this.#isEscaped) this.#isEscaped = false;
    else if (this.#quote !== '') {
      if (character === '\\') this.#isEscaped = true;
      else if (character === this.#quote) this.#quote = '';
    } else if (character === '"' || character === "'") this.#quote = character;
    else if (character === '{') this.#depth += 1;
    else if (character === '}') {
      this.#depth -= 1;
      if (this.#depth === 0) this.#mode = 'closed';
    }
  }
}
