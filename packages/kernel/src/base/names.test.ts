import { expect, test } from 'vitest';
import { fieldsSchema, parseCardInput } from '../card/card.js';
import { parseHandover } from '../packing/handover.js';
import { provisionAgentSchema } from '../primitive/primitive.js';
import { parseProfile } from '../profile/profile.js';
import { isPlainName } from './names.js';

const UNSEEN = [
  '\u0007',
  '\n',
  '\u007f',
  '\u0085',
  '\u2028',
  '\u200e',
  '\u061c',
  '\u202e',
  '\u2066',
  '\u2069',
];

const packing = (rule: object) => ({
  target_profile_config: { profile_name: 'p' },
  context_packing_config: { pack_arguments: [rule] },
});

test.each(UNSEEN.map((character) => [JSON.stringify(character), `a${character}b`]))(
  'a name that contains %s is refused',
  (_shown, name) => {
    expect(isPlainName(name)).toBe(false);
    const profile = { name: 'p', instructions: 'x', model: 'scripted' };
    for (const wrong of [
      { name },
      { tags: [name] },
      { must_end_with: [name] },
      { tools: [name] },
      { model: name },
    ])
      expect(() => parseProfile({ ...profile, ...wrong })).toThrow(/must not contain control characters/);
    expect(() => parseCardInput({ type: name, content: { kind: 'text', text: 'x' } }, 'card')).toThrow(
      /must not contain control characters/,
    );
    const fields = [{ name }];
    for (const parse of [
      () => parseCardInput({ type: 't', content: { kind: 'fields_schema', fields } }, 'card'),
      () => parseHandover(packing({ arg_key: 'a', as_card_type: name })),
      () => parseHandover(packing({ arg_key: name })),
    ])
      expect(parse).toThrow(/must not contain control characters/);
    expect(fieldsSchema.safeParse(fields).error?.issues[0]?.message).toMatch(/must not contain/);
    const made = provisionAgentSchema.safeParse({ action: 'create', agent_id: name, profile_name: 'p' });
    expect(made.error?.issues[0]?.message).toMatch(/must not contain control characters/);
  },
);

test('names in any language are accepted', () => {
  for (const name of ['prüfer', '審査員', 'مراجع', 'שם', 'नाम', '👩‍🔬', 'a b'])
    expect(isPlainName(name)).toBe(true);
});
