/**
 * The tools by which a model reads a tape: its own, or a tape that it has a grant for. Source: docs/reference/tape.md, "Tools".
 */
import {
  matchLine,
  type SessionAddress,
  searchText,
  type TapeAnchors,
  type TapeSearchInput,
  tapeAnchorsSchema,
  tapeInfoSchema,
  tapeSearchSchema,
} from '@boxcar/kernel';
import { retryTransient } from '@boxcar/store';
import type { Tape } from '../tape/index.js';
import { DEFAULT_MATCHES, toTarget } from '../tape/index.js';
import type { Tool, ToolContext } from './tool.js';

const SEARCH = 'tape.search';

/** The answer of `tape.search`. Answers of earlier searches are left out; they are recognized by the call that they answer. */
export async function searchAnswer(tape: Tape, input: TapeSearchInput): Promise<string> {
  const { query, limit, start, end, kinds } = input;
  const { pages, leftOut } = await tape.searchPages(query, {
    limit: limit === undefined || limit === 0 ? DEFAULT_MATCHES : limit,
    answersOf: SEARCH,
    ...(start === undefined ? {} : { start }),
    ...(end === undefined ? {} : { end }),
    ...(kinds === undefined ? {} : { kinds }),
  });
  const lines: string[] = [];
  for await (const page of pages) lines.push(...page.map(({ record }) => matchLine(record)));
  return searchText(lines, leftOut);
}

export const anchorsAnswer = (tape: Tape, { limit, before }: TapeAnchors): ReturnType<Tape['anchorsPage']> =>
  tape.anchorsPage({
    ...(limit === undefined ? {} : { limit }),
    ...(before === undefined ? {} : { before }),
  });

type Reading<I> = Pick<Tool<I>, 'name' | 'description' | 'input'> & {
  readonly answer: (tape: Tape, input: I) => Promise<unknown>;
};

export function tapeTools(): readonly Tool[] {
  const toTool = <I extends { readonly tape?: string | SessionAddress | undefined }>({
    answer,
    ...rest
  }: Reading<I>): Tool => {
    const tool: Tool<I> = {
      ...rest,
      isReadOnly: true,
      // The tape grows by the agent's own steps, which the loop guard does not count as news.
      repeatable: true,
      run: (input: I, context: ToolContext) => {
        const target = input.tape === undefined ? { agent: context.agentId } : toTarget(input.tape);
        // The model must not see the error of a lost connection.
        return retryTransient(async () => answer(await context.tape(target), input));
      },
    };
    return tool as Tool;
  };
  return [
    toTool({
      name: 'tape.anchors',
      description:
        'List the last anchors of your tape, in the order in which they were written, with their states; at most 1 MiB.',
      input: tapeAnchorsSchema,
      answer: async (tape, input) => (await anchorsAnswer(tape, input)).anchors,
    }),
    toTool({
      name: SEARCH,
      description: 'Search the entries of your tape, also those before the last anchor. Newest first.',
      input: tapeSearchSchema,
      answer: searchAnswer,
    }),
    toTool({
      name: 'tape.info',
      description:
        'Show the length of your tape, its last anchor, and the number of entries after that anchor.',
      input: tapeInfoSchema,
      answer: (tape) => tape.info(),
    }),
  ];
}
