import { type CardId, parseId } from '@boxcar/kernel';
import {
  type ErasedCard,
  type ErasedEvidence,
  type ErasureOutcome,
  eraseCards,
  eraseEvidence,
  findOwnCards,
  findProjectByRef,
} from '@boxcar/store';
import type { Command } from 'commander';
import { EXIT, helpOf, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { confirm } from '../../input/confirm.js';
import { readFlag, wrongUsage } from '../../input/usage.js';
import { LONG_STATEMENT_MS, openReader } from '../../reader.js';
import { countOf, formatTable } from '../../text/text.js';

interface EraseFlags {
  readonly box?: string;
  readonly evidence?: readonly string[];
  readonly reason: string;
  readonly project?: string;
  readonly yes?: boolean;
}

const WORDS: Readonly<Record<ErasureOutcome, string>> = {
  erased: 'erased',
  already_erased: 'was erased before',
  not_found: 'not in this project',
  profile_in_use: 'kept: a profile in use',
  bootstrap: 'kept: all tapes begin with it',
  open_call: 'kept: the call is still open',
};
const DONE: ReadonlySet<ErasureOutcome> = new Set(['erased', 'already_erased']);

const describe = (cards: readonly ErasedCard[], evidence: readonly ErasedEvidence[]): string =>
  [
    { title: 'card', rows: cards.map(({ card_id, outcome }) => [card_id, WORDS[outcome]]) },
    { title: 'evidence', rows: evidence.map(({ evidence_id, outcome }) => [evidence_id, WORDS[outcome]]) },
  ]
    .filter(({ rows }) => rows.length > 0)
    .map(({ title, rows }) => formatTable([{ title }, { title: 'outcome' }], rows))
    .join('\n');

/** `boxcar erase`: permanently deletes the content of cards and evidence. */
async function runErase(context: Context, refs: readonly string[], flags: EraseFlags): Promise<number> {
  const named = refs.map((ref, index) => readFlag(() => parseId<'card'>(ref, `cards.${index}`)));
  const boxId =
    flags.box === undefined ? undefined : readFlag(() => parseId<'box'>(String(flags.box), 'box'));
  const late = [
    ...new Set(
      (flags.evidence ?? []).map((ref, index) =>
        readFlag(() => parseId<'evidence'>(ref, `evidence.${index}`)),
      ),
    ),
  ];
  if (named.length === 0 && boxId === undefined && late.length === 0)
    throw wrongUsage('name the cards to erase, or give --box or --evidence', 'cards');
  await using reader = await openReader(context.config, context.log('warn'), {
    statementMs: LONG_STATEMENT_MS,
  });
  const { id: projectId } = await findProjectByRef(reader.pool, flags.project ?? context.config.project);
  const own = boxId === undefined ? [] : await findOwnCards(reader.pool, boxId, projectId);
  const ids: readonly CardId[] = [...new Set([...named, ...own])];
  const counts = [
    ...(late.length === 0 || ids.length > 0 ? [countOf(ids.length, 'card')] : []),
    ...(late.length === 0 ? [] : [countOf(late.length, 'late answer')]),
  ];
  if (!(await confirm(context, `Erase the content of ${counts.join(' and ')} for good?`, flags)))
    return EXIT.negative;
  const of = { projectId, reason: flags.reason };
  const cards = ids.length === 0 ? [] : await eraseCards(reader.pool, ids, of);
  const evidence = late.length === 0 ? [] : await eraseEvidence(reader.pool, late, of);
  context.answer({ cards, ...(late.length === 0 ? {} : { evidence }) }, () => describe(cards, evidence));
  return [...cards, ...evidence].every(({ outcome }) => DONE.has(outcome)) ? EXIT.success : EXIT.negative;
}

export function addErase(program: Command, run: Run): void {
  program
    .command('erase')
    .argument('[card...]', 'card ids')
    .option(
      '--box <id>',
      'all own cards of this box; of a tape, the cards of its entries and the results of calls of its turns',
    )
    .option('--evidence <id...>', 'late answers, by the ids that show lists')
    .requiredOption('--reason <text>', 'the reason; stored with each card and late answer')
    .option('--project <name>', 'project, by id or name')
    .option('--yes', 'do not ask')
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'Every place that shows an erased card, also in prompts, shows (erased) instead. The prompts of earlier steps can no longer be rebuilt; explain lists the missing cards.\n\nThe command needs the role that migrates, or a role with boxcar.erase_cards and, for --evidence, boxcar.erase_evidence.',
        examples: [
          "boxcar erase 01a2013c-5528-78e5-be75-9f6b25de53ef --reason 'asked for'",
          "boxcar erase --box 01a2013c-5d21-7ae1-821d-cb189f2f49c0 --reason 'leak' --yes",
        ],
        negative: 'a card was kept or not found, or you declined',
      }),
    )
    .action((refs: readonly string[], flags: EraseFlags) => run((context) => runErase(context, refs, flags)));
}
