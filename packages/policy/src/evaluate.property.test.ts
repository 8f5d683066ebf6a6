/** A second evaluator, written only from the rules of docs/reference/policy.md, agrees with the first. It reads the file's own data. */
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { evaluatePolicy } from './evaluate.js';
import { parsePolicy } from './parse-policy.js';
import { referenceMatches } from './testing/reference-glob.js';

const numRuns = process.env.CI ? 3_000 : 1_000;

type Data = Readonly<Record<string, unknown>>;
interface FileRule {
  readonly condition: Data;
  readonly permission: string;
}
interface FileData {
  readonly tools: Readonly<Record<string, { readonly permission: string }>>;
  readonly rules: readonly FileRule[];
}
interface Call {
  readonly tool: string;
  readonly context: Data;
  readonly environment: string;
}

const FIRST_NAMES: Readonly<Record<string, string>> = {
  ...{ agdd: 'agdd', native: 'agdd', boxcar: 'agdd', magsag: 'agdd', adk: 'adk', 'anthropic-adk': 'adk' },
  ...{ openai: 'openai', 'openai-compat': 'openai', anthropic: 'anthropic', claude: 'anthropic' },
};
const firstName = (platform: string): string => FIRST_NAMES[platform.toLowerCase()] ?? platform;
const toolName = (tool: string): string => (tool === 'agent.handoff' ? 'handoff' : tool);

/** Both sides flattened: `args.payload.amount` and its value. Limits stay together. */
function flat(data: unknown, at: string): readonly (readonly [string, unknown])[] {
  if (typeof data !== 'object' || data === null || Array.isArray(data)) return [[at, data]];
  if ('less_than' in data || 'greater_than' in data) return [[at, data]];
  return Object.entries(data).flatMap(([key, value]) => flat(value, at === '' ? key : `${at}.${key}`));
}

function accepts(wanted: unknown, given: unknown, rename: (name: string) => string): boolean {
  if (Array.isArray(wanted)) return wanted.some((one) => accepts(one, given, rename));
  if (typeof wanted === 'string')
    return typeof given === 'string' && referenceMatches(rename(wanted), rename(given));
  if (typeof wanted !== 'object' || wanted === null) return wanted === given;
  const { less_than: below, greater_than: above } = wanted as { less_than?: number; greater_than?: number };
  if (typeof given !== 'number') return false;
  return (below === undefined || given < below) && (above === undefined || given > above);
}

/** Sorts the matches by level, with the strictest and most exact last. */
function secondOpinion({ tools, rules }: FileData, call: Call): string {
  const tool = toolName(call.tool);
  const facts = new Map([
    ...flat({ context: { platform: 'agdd', ...call.context } }, ''),
    ['environment', call.environment],
    ['tool_name', tool],
  ] as const);
  const voices: { level: string; rank: number; id: string }[] = [];
  for (const [name, { permission }] of Object.entries(tools))
    if (toolName(name) === tool)
      voices.push({ level: permission.toLowerCase(), rank: 0, id: `tools.${tool}` });
  for (const [index, { condition, permission }] of [...rules.entries()].reverse()) {
    const wanted = flat(condition, '');
    if (wanted.length === 0 && tool !== 'handoff') continue;
    const holds = wanted.every(([key, value]) => {
      const rename =
        key === 'tool_name' ? toolName : key === 'context.platform' ? firstName : (name: string) => name;
      return facts.has(key) && accepts(value, facts.get(key), rename);
    });
    if (holds) voices.push({ level: permission.toLowerCase(), rank: wanted.length, id: `rules.${index}` });
  }
  const order = ['always', 'require_approval', 'never'];
  const weight = (voice: { level: string; rank: number }): number =>
    (voice.level === 'never' ? 1_000 : 0) + 10 * voice.rank + order.indexOf(voice.level);
  const won = voices.toSorted((a, b) => weight(a) - weight(b)).at(-1);
  return won === undefined ? 'require_approval by default' : `${won.level} by ${won.id}`;
}

const someCase = (name: string) =>
  fc.constantFrom(name, name.toUpperCase(), `${name[0]?.toUpperCase()}${name.slice(1)}`);
const platform = fc.constantFrom(...Object.keys(FIRST_NAMES)).chain(someCase);
const oneOrMore = <T>(item: fc.Arbitrary<T>) =>
  fc.oneof(item, fc.array(item, { minLength: 1, maxLength: 3 }));
const permission = fc.constantFrom(
  'ALWAYS',
  'REQUIRE_APPROVAL',
  'NEVER',
  'always',
  'require_approval',
  'never',
);
const target = fc.constantFrom(
  'external-a',
  'external-b/c',
  'worker',
  '.worker',
  'external-\n',
  'External-a',
);
const targetGlob = fc.constantFrom('external-*', '*', 'w?rker', '[!e]*', '*[ab]*', 'external-a', '[E]*');
const toolWanted = fc.constantFrom('handoff', 'shell.run', 'deploy', 'shell.*', '*', 'h*', 'deplo[xy]');
const toolCalled = fc.constantFrom('handoff', 'handoff', 'agent.handoff', 'shell.run', 'deploy', 'read');
const scalar = fc.oneof(fc.integer({ min: 0, max: 6 }), fc.constantFrom('eu', 'us', 'e*', true, false, null));
const limits = fc
  .record(
    { less_than: fc.integer({ min: 0, max: 6 }), greater_than: fc.integer({ min: 0, max: 6 }) },
    { requiredKeys: [] },
  )
  .filter((one) => Object.keys(one).length > 0);
const wantedValue = fc.oneof(oneOrMore(scalar), limits);
const optional = { requiredKeys: [] };

const condition = fc.record(
  {
    environment: oneOrMore(fc.constantFrom('development', 'production', 'prod*', '*', '[ds]*')),
    tool_name: fc.oneof(oneOrMore(toolWanted), fc.constant('agent.handoff')),
    context: fc.record(
      {
        platform: oneOrMore(platform),
        target_agent: oneOrMore(targetGlob),
        source_agent: oneOrMore(fc.constantFrom('boss', 'b*', '*')),
        request_type: fc.constantFrom('full_handoff', '*_handoff'),
        args: fc.record(
          {
            amount: wantedValue,
            region: wantedValue,
            payload: fc
              .record({ amount: wantedValue, note: wantedValue }, optional)
              .filter((one) => Object.keys(one).length > 0),
          },
          optional,
        ),
      },
      optional,
    ),
  },
  optional,
);

const file: fc.Arbitrary<FileData> = fc.record({
  tools: fc.dictionary(fc.constantFrom('handoff', 'shell.run', 'deploy'), fc.record({ permission }), {
    maxKeys: 2,
  }),
  rules: fc.array(fc.record({ condition, permission }), { maxLength: 6 }),
});

const given = fc.oneof(fc.integer({ min: 0, max: 6 }), fc.constantFrom('eu', 'us', 'e', true, false, null));
const call: fc.Arbitrary<Call> = fc.record({
  tool: toolCalled,
  environment: fc.constantFrom('development', 'production', 'staging'),
  context: fc.record(
    {
      platform,
      target_agent: target,
      source_agent: fc.constantFrom('boss', 'clerk'),
      request_type: fc.constantFrom('full_handoff', 'collaboration'),
      args: fc.record(
        { amount: given, region: given, payload: fc.record({ amount: given, note: given }, optional) },
        optional,
      ),
    },
    optional,
  ),
});

it('two evaluators agree on generated policies and requests', () => {
  const seen = new Map<string, number>();
  fc.assert(
    fc.property(file, fc.array(call, { minLength: 1, maxLength: 4 }), (data, calls) => {
      // Every JSON text is valid YAML.
      const policy = parsePolicy(JSON.stringify(data));
      for (const request of calls) {
        const { level, rule_id, trace } = evaluatePolicy(policy, request);
        expect(`${level} by ${rule_id}`).toBe(secondOpinion(data, request));
        expect(trace.map((rule) => rule.rule_id)).toEqual(data.rules.map((_, index) => `rules.${index}`));
        const kind = `${level} by ${rule_id.split('.')[0]}`;
        seen.set(kind, (seen.get(kind) ?? 0) + 1);
      }
    }),
    { numRuns },
  );
  // Every kind of decision has occurred.
  for (const level of ['always', 'require_approval', 'never'])
    for (const by of ['rules', 'tools'])
      expect([level, by, seen.get(`${level} by ${by}`) ?? 0]).not.toEqual([level, by, 0]);
  expect(seen.get('require_approval by default')).toBeGreaterThan(0);
});
