/** The origin of a text, in words for people. */

import { toLine } from '@boxcar/host/base';
import type {
  BoxHop,
  CardOrigin,
  CardPlace,
  ExplainedOmission,
  Named,
  ReadRight,
  WhyPart,
} from '@boxcar/runtime';
import { countOf } from './text.js';

const nameOf = ({ id, name }: Named): string => (name === null ? id : `${name} (${id})`);
const shortName = ({ id, name }: Named): string => name ?? id;

const RULES: Readonly<Record<WhyPart['rule'], string>> = {
  instructions: 'the instructions of the profile',
  text: 'the card’s own text',
  json: 'the card’s JSON',
  fields: 'the card’s fields, one a line',
  file: 'the card’s file, in one line',
  arguments: 'the arguments of the call',
  result: 'the result of the call',
  failed_result: 'status, error and result of a call without success, as JSON',
  empty: 'stands for a card without words',
  parent: 'parent line: names the agent that asked',
  anchor: 'anchor: its name before the state it carries',
  note: 'note: a role that is not allowed in the middle of a prompt, as marked user text',
  quoted_call: 'quoted call: names the caller and the call',
  quoted_result: 'quoted result: names the call and its status',
  result_fields: 'result fields that bind this turn, and how to deliver them',
  foreign_result_fields: 'result fields of another task, to be read only',
  reference: 'stands for the card’s words, which a compaction left out: expand reads them',
  context_contract: 'the limit of the context, for an agent that can hand off',
  call_name: 'the name of the tool that was called',
  call_id: 'the kernel’s id of the call',
  tool_name: 'tool schema: the name',
  tool_description: 'tool schema: the description',
  tool_parameters: 'tool schema: the parameters',
  selector: 'made by the selector of the turn',
  'notice.context': 'notice: precedes a first assistant message',
  'notice.continue': 'notice: follows assistant text without an answer',
  'notice.steps_left': 'notice: few steps are left',
  'notice.not_available': 'notice: answers a call without a result',
};

export const describeRule = (rule: WhyPart['rule']): string => RULES[rule];

const NOTICES: Readonly<Record<NonNullable<CardOrigin['notice']>, string>> = {
  steps_left: 'kernel notice: few steps are left',
  reminder: 'kernel notice: reminder how to end',
  context: 'kernel notice: the context is nearly full',
};

const OFFERED: Readonly<Record<NonNullable<WhyPart['tool']>['offered_by'], string>> = {
  tools: 'the profile lists it',
  must_end_with: 'the turn must end with it',
  result_fields: 'result fields bind the turn',
  compaction: 'a compaction has left something out',
  profiles: 'there are too many profiles to tell',
};
export const describeOffer = (offeredBy: keyof typeof OFFERED): string => OFFERED[offeredBy];

function describeRight(right: ReadRight): string {
  switch (right.kind) {
    case 'operator':
      return 'as the operator, which reads the whole project';
    case 'owner':
      return 'as the owner of the box';
    case 'maker':
      return 'as the maker of the box';
    case 'profile':
      return 'as the box of its own profile';
    case 'launcher':
      return 'as the launcher of the agent that owns the box';
    case 'parent':
      return 'as the agent whose turns requested the content, or were notified of it';
    case 'grant': {
      const until = right.until === null ? '' : ` until ${right.until.toISOString()}`;
      const upto = right.upto_position === null ? '' : `, up to position ${right.upto_position}`;
      return `by a grant of ${shortName(right.source)}${until}${upto}`;
    }
    case 'none':
      return 'by trusted code, or by a right that has ended';
    default:
      return right satisfies never;
  }
}

const ofArgument = (argument: string | null): string => (argument === null ? '' : ` of '${argument}'`);

/** Why a card is not in a prompt. */
export const describeOmission = ({ reason, cut }: Pick<ExplainedOmission, 'reason' | 'cut'>): string =>
  cut === null ? reason : `${reason} (${cut.strategy}: ${cut.reason})`;

/** The writer of an entry that belongs to no step. */
const WRITERS: Readonly<Record<Extract<CardPlace, { kind: 'tape' }>['written_by'], string>> = {
  agent: 'by the agent itself',
  kernel: 'by the kernel',
  outside: 'from outside',
};

/** A short reason, for the head of a message. */
export function describePlace(card: CardOrigin): string {
  const { place, notice } = card;
  if (notice !== null) return NOTICES[notice];
  switch (place.kind) {
    case 'profile':
      return `profile ${place.name}@${place.version}`;
    case 'tape': {
      const step = place.step === null ? WRITERS[place.written_by] : `step ${place.step}`;
      const entry = place.anchor === null ? place.entry : `${place.entry} '${toLine(place.anchor)}'`;
      const turn = place.is_own_turn || place.turn_id === null ? '' : ` in turn ${place.turn_id}`;
      return `tape ${place.position}: ${entry}, ${step}${turn}`;
    }
    case 'context': {
      const from = place.path.length === 0 ? '' : ` from box …${place.first.box_id.slice(-12)}`;
      return `context ${place.position ?? '–'}: ${place.rule}${ofArgument(place.argument)}${from}`;
    }
    default:
      return place satisfies never;
  }
}

function firstPlace({ first }: Extract<CardPlace, { kind: 'context' }>): string {
  const head = `${first.kind === 'tape' ? 'tape' : 'box'} ${first.box_id}, position ${first.position}`;
  if (first.entry === null) return `${head}: ${first.rule ?? 'listed'}${ofArgument(first.argument)}`;
  const by = first.turn_id === null ? '' : ` of turn ${first.turn_id}, step ${first.step ?? '-'}`;
  return `${head}: ${first.entry}${by}`;
}

const hopField = (
  { into, rule, argument, from, read_by, right }: BoxHop,
  index: number,
): [string, string] => {
  const target = index === 0 ? '' : ` into box ${into}`;
  const reader = read_by === null ? 'an unknown reader' : shortName(read_by);
  return [
    'inherited',
    `from box ${from} by ${rule}${ofArgument(argument)}${target}; read by ${reader} ${describeRight(right)}`,
  ];
};

function placeFields(card: CardOrigin): readonly [string, string][] {
  const { place } = card;
  switch (place.kind) {
    case 'profile':
      return [['profile', `${place.name}@${place.version}, box ${place.box_id}`]];
    case 'tape':
      return [
        [
          'tape',
          `${place.box_id}, ${describePlace({ ...card, notice: null }).replace(/^tape /, 'position ')}`,
        ],
      ];
    case 'context': {
      const at = place.position === null ? 'not in it' : `position ${place.position}`;
      const by = place.packed_by === null ? '' : `, packed by ${shortName(place.packed_by)}`;
      return [
        ['box', `${place.box_id}, ${at}${by}`],
        ['packing', `${place.rule}${ofArgument(place.argument)}`],
        ...place.path.map(hopField),
        ...(place.path.length === 0 ? [] : [['first put', firstPlace(place)] as [string, string]]),
      ];
    }
    default:
      return place satisfies never;
  }
}

/** A card with all known facts about its path. */
export function cardFields(card: CardOrigin): readonly [string, string][] {
  const role = card.role ?? 'user';
  const erased = card.is_erased ? ', erased' : '';
  return [
    ['card', card.card_id],
    ['', `${card.type}, role ${role}, ${countOf(card.tokens, 'token')}${erased}`],
    ['hash', card.hash],
    ['author', `${nameOf(card.author)}, ${card.created_at.toISOString()}`],
    ...(card.notice === null ? [] : [['notice', NOTICES[card.notice]] as [string, string]]),
    ...placeFields(card),
  ];
}
