/** The whole text of a prompt as one string, with a way back from any position to its message, tool and card. */
import {
  type CardId,
  type MessageOrigin,
  messageParts,
  type PartField,
  type PartRule,
  type TextRange,
} from '@boxcar/kernel';
import type { OfferedTool } from '@boxcar/store';
import type { StoredCard } from '@boxcar/store/report';
import { type BuiltPrompt, cardsOf } from './rebuild.js';

/** A part of a prompt that one card or one rule wrote. */
export interface PromptPart {
  readonly text: string;
  readonly rule: PartRule | 'tool_name' | 'tool_description' | 'tool_parameters';
  readonly field: PartField['kind'] | 'tool_schema';
  readonly isOwn: boolean;
  readonly cardId: CardId | null;
  /** Index of the message; null in a tool's schema. */
  readonly message: number | null;
  readonly origin: MessageOrigin | null;
  readonly tool: OfferedTool | null;
}

function partsOfMessage(
  { view }: BuiltPrompt,
  index: number,
  cards: ReadonlyMap<CardId, StoredCard>,
): readonly PromptPart[] {
  const message = view.messages[index];
  const origin = view.origins[index];
  if (message === undefined || origin === undefined) return [];
  return messageParts(message, origin, cardsOf(origin.cardIds, cards)).map(
    ({ text, rule, field, isOwn, cardId }): PromptPart => ({
      text,
      rule,
      field: field.kind,
      isOwn,
      cardId,
      message: index,
      origin,
      tool: null,
    }),
  );
}

const partsOfTool = (tool: OfferedTool): readonly PromptPart[] =>
  (
    [
      ['tool_name', tool.name],
      ['tool_description', tool.description],
      ['tool_parameters', JSON.stringify(tool.parameters)],
    ] as const
  ).map(([rule, text]) => ({
    text,
    rule,
    field: 'tool_schema',
    isOwn: false,
    cardId: null,
    message: null,
    origin: null,
    tool,
  }));

/** The cost of a message's parts in addition to their characters. */
const PART_WORK = 100;

/** Between fields, messages and tools. No card contains it, so only a search that ignores white space crosses it. */
const SEPARATOR = '\u0000';

/** Parts of one field follow each other without a separator. */
function isJoined(before: PromptPart | undefined, part: PromptPart): boolean {
  return (
    before?.message === part.message &&
    part.field === 'content' &&
    before.field === 'content' &&
    part.tool === null
  );
}

const lengthOf = (parts: readonly PromptPart[]): number =>
  parts.reduce((length, part) => length + part.text.length, PART_WORK);

/** The share of one part of a prompt in a found text. */
export interface FoundPart {
  readonly part: PromptPart;
  readonly text: string;
}

export class PromptText {
  readonly text: string;
  readonly #parts: readonly PromptPart[];
  readonly #starts: readonly number[];

  /** Yields the length of each message and tool after adding its parts. */
  static *of(prompt: BuiltPrompt, cards: ReadonlyMap<CardId, StoredCard>): Generator<number, PromptText> {
    const parts: PromptPart[] = [];
    for (const index of prompt.view.messages.keys()) {
      const added = partsOfMessage(prompt, index, cards);
      parts.push(...added);
      yield lengthOf(added);
    }
    for (const tool of prompt.tools ?? []) {
      const added = partsOfTool(tool);
      parts.push(...added);
      yield lengthOf(added);
    }
    return new PromptText(parts);
  }

  private constructor(parts: readonly PromptPart[]) {
    this.#parts = parts;
    const pieces: string[] = [];
    const starts: number[] = [];
    let length = 0;
    for (const [index, part] of parts.entries()) {
      if (index > 0 && !isJoined(parts[index - 1], part)) {
        pieces.push(SEPARATOR);
        length += 1;
      }
      starts.push(length);
      pieces.push(part.text);
      length += part.text.length;
    }
    this.text = pieces.join('');
    this.#starts = starts;
  }

  /** The parts that a range of the text covers, each with its share. */
  partsAt({ start, end }: TextRange): readonly FoundPart[] {
    const found: FoundPart[] = [];
    for (let at = this.#lastBefore(start); at < this.#parts.length; at += 1) {
      const part = this.#parts[at];
      const from = this.#starts[at];
      if (part === undefined || from === undefined || from >= end) break;
      const text = part.text.slice(Math.max(start - from, 0), Math.max(end - from, 0));
      if (text !== '') found.push({ part, text });
    }
    return found;
  }

  /** The text of a range, with some surrounding text, for a reader. */
  around({ start, end }: TextRange, characters: number): string {
    const around = this.text.slice(Math.max(start - characters, 0), end + characters);
    return around.replaceAll(SEPARATOR, '\n').toWellFormed();
  }

  /** Index of the last part that begins at or before a position. */
  #lastBefore(place: number): number {
    let low = 0;
    let high = this.#starts.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if ((this.#starts[middle] ?? 0) <= place) low = middle;
      else high = middle;
    }
    return low;
  }
}
