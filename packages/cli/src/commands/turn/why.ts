import { cut, toLine } from '@boxcar/host/base';
import { KernelError } from '@boxcar/kernel';
import {
  type Selectors,
  type WhyAnswer,
  type WhyHint,
  type WhyPart,
  type WhyPlace,
  why,
} from '@boxcar/runtime';
import type { Command } from 'commander';
import { collect, EXIT, helpOf, notBlank, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { readId } from '../../input/id-argument.js';
import { openReader } from '../../reader.js';
import {
  cardFields,
  describeOffer,
  describeOmission,
  describePlace,
  describeRule,
} from '../../text/origin-text.js';
import { countOf, formatCount, formatFields } from '../../text/text.js';
import { readStep } from './explain.js';
import { withPlugins } from './with-plugins.js';

const SHOWN_PLACES = 5;
const SHOWN_TEXT = 300;

type Found = Extract<WhyAnswer, { outcome: 'found' }>;

const MATCHES: Readonly<Record<Found['match'], string>> = {
  exact: 'as it is',
  whitespace: 'but for white space',
  unescaped: 'but for white space and JSON escapes',
};

const brief = (text: string): string => cut(toLine(text), SHOWN_TEXT);

const FIELDS: Readonly<Record<WhyPart['field'], string>> = {
  content: 'content',
  tool_name: 'name of the tool',
  tool_call_id: 'id of the call',
  call_name: 'name in a call',
  call_id: 'id of a call',
  call_arguments: 'arguments of a call',
  tool_schema: 'schema',
};

function whereOf(part: WhyPart): string {
  if (part.tool !== null) return `schema of the tool ${part.tool.name}`;
  const field = part.field === 'content' ? '' : `, ${FIELDS[part.field]}`;
  return `message ${part.message}, ${part.role}${field}`;
}

function partFields(part: WhyPart): readonly [string, string][] {
  const { tool, card } = part;
  const head: [string, string][] = [
    ['text', JSON.stringify(brief(part.text))],
    ['rule', describeRule(part.rule)],
  ];
  if (tool !== null) {
    const by =
      tool.source === 'tool'
        ? 'a registered tool'
        : tool.source === 'primitive'
          ? 'a primitive'
          : 'the profile';
    return [
      ...head,
      ['tool', `${tool.name}, from ${by}, ${formatCount(tool.tokens)} tokens`],
      ['offered', describeOffer(tool.offered_by)],
    ];
  }
  return card === null ? head : [...head, ...cardFields(card)];
}

/** The parts of a place, one below the other. The description of a card is not repeated. */
function place({ parts }: WhyPlace): string {
  const seen = new Set<string>();
  return parts
    .map((part) => {
      const isKnown = part.card !== null && seen.has(part.card.card_id);
      if (part.card !== null) seen.add(part.card.card_id);
      const fields = isKnown
        ? [...partFields({ ...part, card: null }), ['card', 'the same'] as const]
        : partFields(part);
      return `${whereOf(part)}\n${formatFields(fields)}`;
    })
    .join('\n\n');
}

function others(answer: Found): string {
  const rest = answer.places.slice(1, SHOWN_PLACES).map(({ parts }) => {
    const [first] = parts;
    if (first === undefined) return '';
    const why = first.card === null ? describeRule(first.rule) : describePlace(first.card);
    return `  ${whereOf(first)}: ${why}`;
  });
  const more = answer.place_count - 1 - rest.length;
  if (more > 0)
    rest.push(
      `  … ${formatCount(more)} more${answer.places.length > SHOWN_PLACES ? '; --json lists some' : ''}`,
    );
  return rest.length === 0 ? '' : `\n\nalso in\n${rest.join('\n')}`;
}

function describeSteps({ step, steps }: Found): string {
  const more = steps.filter((other) => other !== step);
  if (more.length === 0) return '';
  const shown = more.slice(0, 8).join(', ');
  return ` and ${countOf(more.length, 'more step')} (${shown}${more.length > 8 ? ', …' : ''})`;
}

function describeFound(answer: Found): string {
  const [best] = answer.places;
  const proof = answer.verified
    ? 'the prompt as it was sent'
    : 'a prompt that is not verified; see boxcar explain';
  const head = formatFields([
    ['turn', answer.turn_id],
    ['found', `${MATCHES[answer.match]}, in step ${answer.step}${describeSteps(answer)}`],
    ['prompt', proof],
  ]);
  return `${head}\n\n${best === undefined ? '' : place(best)}${others(answer)}`;
}

function describeHint(hint: WhyHint): string {
  switch (hint.kind) {
    case 'other_steps':
      return `It is in the prompt of step ${hint.steps.join(', ')}.`;
    case 'omitted':
      return `A card that step ${hint.step} left out holds it (${describeOmission(hint)}): ${hint.card.type} ${hint.card.card_id}, ${describePlace(hint.card)}.`;
    case 'output':
      return hint.is_deliverable
        ? `It is in the deliverable of the turn (card ${hint.card.card_id}), which no prompt of it shows.`
        : `It came out of the turn, and no prompt of it shows it: ${hint.card.type} ${hint.card.card_id}, ${describePlace(hint.card)}.`;
    case 'nearest':
      return `Only its beginning is in the prompt of step ${hint.step}: ${JSON.stringify(brief(hint.text))}`;
    default:
      return hint satisfies never;
  }
}

function describeNotFound(answer: Extract<WhyAnswer, { outcome: 'not_found' }>): string {
  const searched = countOf(answer.searched_steps.length, 'prompt');
  return [
    `No message and no tool of the ${searched} looked at holds this text.`,
    ...answer.hints.map(describeHint),
  ].join('\n');
}

/** `boxcar why`: the origin of a text in a prompt. */
async function askWhy(
  context: Context,
  turn: string,
  of: {
    readonly text: string;
    readonly project?: string;
    readonly step?: number;
    readonly plugin?: readonly string[];
  },
): Promise<number> {
  await using reader = await openReader(context.config, context.log('warn'));
  const ask = async (selectors: Selectors | undefined) => {
    try {
      return await reader.report((pool) =>
        why(pool, turn, {
          text: of.text,
          project: of.project ?? context.config.project,
          step: of.step,
          selectors,
          signal: context.stop,
        }),
      );
    } catch (error) {
      if (context.stop.aborted) return 'stopped';
      if (error instanceof KernelError && error.code === 'selector_unknown') return error;
      throw error;
    }
  };
  const needs = (found: WhyAnswer | KernelError | 'stopped') => found instanceof KernelError;
  const answer = await withPlugins(context, (has) => ask(has?.selectors), { plugins: of.plugin, needs });
  if (answer === 'stopped') return EXIT.interrupted;
  if (answer instanceof KernelError) throw answer;
  context.answer(answer, () =>
    answer.outcome === 'found' ? describeFound(answer) : describeNotFound(answer),
  );
  return answer.outcome === 'found' ? EXIT.success : EXIT.negative;
}

export function addWhy(program: Command, run: Run): void {
  program
    .command('why')
    .argument('<turn>', 'its id, or at least the first 8 digits', readId)
    .argument('<text>', 'any part of a message or tool schema, as it is shown')
    .option('--step <n>', 'only the prompt of this step', readStep)
    .option('--project <name>', 'project, by id or name')
    .option(
      '--plugin <file>',
      'a module that registers the selector of the turn, repeatable',
      collect(notBlank),
    )
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'The search first uses the exact text, then ignores white space, then also JSON\nescapes. It explains the first step that shows the text, and lists the others.',
        examples: [
          'boxcar why 0198c1f2 "Figures come from tools"',
          'boxcar why 0198c1f2 "Parent agent: " --step 2',
          "boxcar why 0198c1f2 secret --json | jq '.places[0].parts[0].card'",
        ],
        negative: 'no prompt of the turn shows the text; the nearest texts are printed',
      }),
    )
    .action(
      (turn: string, text: string, flags: { project?: string; step?: number; plugin?: readonly string[] }) =>
        run((context) => askWhy(context, turn, { text, ...flags })),
    );
}
