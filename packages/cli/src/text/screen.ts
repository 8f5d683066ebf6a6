/** Redraws lines in place on a terminal: each frame over the previous one, in a single write, so that the output does not flicker. */
const ESC = '\u001b';
const HIDE_CURSOR = `${ESC}[?25l`;
const SHOW_CURSOR = `${ESC}[?25h`;
const CLEAR_LINE = `${ESC}[K`;
const CLEAR_BELOW = `${ESC}[J`;

export class Screen implements Disposable {
  readonly #out: NodeJS.WriteStream;
  #height = 0;
  #isHidden = false;
  readonly #show = (): void => {
    if (this.#isHidden) this.#out.write(SHOW_CURSOR);
  };

  constructor(out: NodeJS.WriteStream = process.stdout) {
    this.#out = out;
    // Also when the process ends while a frame is shown.
    process.once('exit', this.#show);
  }

  /** A terminal of unknown size reports 0. */
  get columns(): number {
    return this.#out.columns || 80;
  }

  get rows(): number {
    return this.#out.rows || 24;
  }

  /** @param lines - No wider than the terminal, and fewer than its rows. */
  draw(lines: readonly string[]): void {
    const up = this.#height > 1 ? `${ESC}[${this.#height - 1}A` : '';
    this.#out.write(
      `${this.#isHidden ? '' : HIDE_CURSOR}\r${up}${lines.map((line) => `${line}${CLEAR_LINE}`).join('\n')}${CLEAR_BELOW}`,
    );
    this.#isHidden = true;
    this.#height = lines.length;
  }

  /** Leaves the last frame on the screen. */
  [Symbol.dispose](): void {
    process.removeListener('exit', this.#show);
    if (this.#height > 0) this.#out.write('\n');
    this.#show();
    this.#isHidden = false;
    this.#height = 0;
  }
}
