import type { ParseResult } from 'oxc-parser';
import { createLineIndex } from './code.js';

export interface Todo {
  /** From 1. */
  readonly line: number;
  readonly text: string;
}

const MAX_TEXT = 160;
/** The marker at the beginning of a comment or of its lines, preceded only by bullets. */
const IN_COMMENT = /^[\s*!/>-]*(?:\[ \]\s*)?@?((?:TODO|FIXME)\b.*)/;
/** The marker at the beginning of a line, or after the start of a comment in most languages. */
const IN_LINE =
  /(?:^[\s*>-]*|(?<![\w:/#;%-])(?:\/\/+|\/\*+|#+|--+|;+|<!--|%+))\s*(?:\[ \]\s*)?@?((?:TODO|FIXME)\b.*)/;

const shorten = (text: string): string => {
  const line = text.replace(/\s*(?:\*\/|-->)\s*$/, '').trim();
  return line.length <= MAX_TEXT ? line : `${line.slice(0, MAX_TEXT - 1).toWellFormed()}…`;
};

/** The TODOs of a file: in the comments of code, in the lines of other files, at most one per line. */
export function findTodos(text: string, parsed: ParseResult | undefined): readonly Todo[] {
  const found = parsed === undefined ? todosOfLines(text, IN_LINE, 1) : todosOfComments(parsed, text);
  return found.filter((todo, index) => todo.line !== found[index - 1]?.line);
}

function todosOfComments({ comments }: ParseResult, text: string): readonly Todo[] {
  const lineOf = createLineIndex(text);
  return comments.flatMap((comment) => todosOfLines(comment.value, IN_COMMENT, lineOf(comment.start)));
}

function todosOfLines(text: string, pattern: RegExp, firstLine: number): readonly Todo[] {
  return text.split('\n').flatMap((line, index) => {
    const marked = pattern.exec(line)?.[1];
    return marked === undefined ? [] : [{ line: firstLine + index, text: shorten(marked) }];
  });
}
