import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { evaluatePolicy, namesTool, type PolicyContext } from './evaluate.js';
import { parsePolicy } from './parse-policy.js';
import { SEED_POLICY } from './testing/seed-policy.js';

const seed = parsePolicy(SEED_POLICY);

/** `level by rule_id`. */
const decide = (
  text: string,
  tool: string,
  context: PolicyContext = {},
  environment = 'production',
): string => {
  const { level, rule_id } = evaluatePolicy(parsePolicy(text), { tool, context, environment });
  return `${level} by ${rule_id}`;
};

const rules = (...items: readonly string[]): string =>
  `rules: [${items.map((item) => `{${item}}`).join(', ')}]`;

it('the file of the description gives its four outcomes', () => {
  const by = (environment: string, context: PolicyContext): string =>
    decide(SEED_POLICY, 'handoff', context, environment);
  expect(by('development', { platform: 'agdd', target_agent: 'writer' })).toBe('always by rules.0');
  for (const platform of ['openai', 'anthropic'])
    expect(by('production', { platform, target_agent: 'writer' })).toBe('require_approval by rules.1');
  for (const environment of ['development', 'production'])
    expect(by(environment, { target_agent: 'external-billing' })).toBe('never by rules.2');
  expect(by('production', { platform: 'adk', target_agent: 'writer' })).toBe(
    'require_approval by tools.handoff',
  );
});

it('the trace has every rule in the order of the file, with the key that did not match', () => {
  expect(
    evaluatePolicy(seed, {
      tool: 'agent.handoff',
      context: { platform: 'Claude', target_agent: 'writer' },
      environment: 'production',
    }),
  ).toEqual({
    level: 'require_approval',
    rule_id: 'rules.1',
    policy_version: seed.version,
    trace: [
      { rule_id: 'rules.0', level: 'always', keys: 2, matched: false, failed_key: 'environment' },
      { rule_id: 'rules.1', level: 'require_approval', keys: 2, matched: true },
      { rule_id: 'rules.2', level: 'never', keys: 2, matched: false, failed_key: 'context.target_agent' },
    ],
  });
});

it.each([
  [
    'more keys win',
    rules(
      'condition: {tool_name: a}, permission: REQUIRE_APPROVAL',
      'condition: {tool_name: a, environment: "*"}, permission: ALWAYS',
    ),
    'always by rules.1',
  ],
  [
    'with equal numbers of keys the stricter rule wins',
    rules(
      'condition: {tool_name: a}, permission: ALWAYS',
      'condition: {tool_name: "*"}, permission: REQUIRE_APPROVAL',
    ),
    'require_approval by rules.1',
  ],
  [
    'of equal rules the first rule answers',
    rules('condition: {tool_name: a}, permission: ALWAYS', 'condition: {tool_name: "?"}, permission: ALWAYS'),
    'always by rules.0',
  ],
  [
    'NEVER wins over more keys',
    rules(
      'condition: {tool_name: "*"}, permission: NEVER',
      'condition: {tool_name: a, environment: production}, permission: ALWAYS',
    ),
    'never by rules.0',
  ],
  [
    'NEVER in tools wins over rules',
    `tools: {a: {permission: NEVER}}\n${rules('condition: {tool_name: a}, permission: ALWAYS')}`,
    'never by tools.a',
  ],
  [
    'an entry of tools loses to a rule with a key',
    `tools: {a: {permission: REQUIRE_APPROVAL}}\n${rules('condition: {environment: "*"}, permission: ALWAYS')}`,
    'always by rules.0',
  ],
  [
    'an entry of tools answers when no rule does',
    `tools: {a: {permission: ALWAYS}}\n${rules('condition: {tool_name: b}, permission: NEVER')}`,
    'always by tools.a',
  ],
  [
    'without a match an approval is required',
    rules('condition: {tool_name: b}, permission: ALWAYS'),
    'require_approval by default',
  ],
  [
    'a rule without keys does not count',
    rules('condition: {}, permission: ALWAYS', 'condition: {context: {args: {}}}, permission: ALWAYS'),
    'require_approval by default',
  ],
])('the decision: %s', (_title, text, expected) => {
  expect(decide(text, 'a')).toBe(expected);
});

it('a rule without keys counts for handoffs, like an entry of tools: the stricter wins', () => {
  const text = (inTools: string, inRules: string): string =>
    `tools: {handoff: {permission: ${inTools}}}\n${rules(`condition: {}, permission: ${inRules}`)}`;
  expect(decide(text('ALWAYS', 'REQUIRE_APPROVAL'), 'handoff')).toBe('require_approval by rules.0');
  expect(decide(text('REQUIRE_APPROVAL', 'ALWAYS'), 'handoff')).toBe('require_approval by tools.handoff');
  expect(decide(rules('condition: {}, permission: NEVER'), 'agent.handoff')).toBe('never by rules.0');
  expect(
    evaluatePolicy(parsePolicy(rules('condition: {}, permission: NEVER')), { tool: 'a', environment: 'x' }),
  ).toMatchObject({
    rule_id: 'default',
    trace: [{ keys: 0, matched: false, failed_key: 'tool_name' }],
  });
});

it('leaf keys are counted: each argument, not the objects around it, and a range once', () => {
  const { rules: read } = parsePolicy(
    rules(
      'condition: {environment: a, tool_name: b, context: {platform: adk, args: {x: 1, y: {z: [2, 3], w: {less_than: 9, greater_than: 1}}}}}, permission: NEVER',
    ),
  );
  expect(read.map(({ condition }) => condition.length)).toEqual([6]);
});

it.each<[condition: string, args: unknown, matches: boolean]>([
  ['{amount: 5}', { amount: 5 }, true],
  ['{amount: 5}', { amount: '5' }, false],
  ['{amount: "5"}', { amount: '5' }, true],
  ['{amount: [1, 5]}', { amount: 5 }, true],
  ['{amount: {less_than: 5}}', { amount: 4.9 }, true],
  ['{amount: {less_than: 5}}', { amount: 5 }, false],
  ['{amount: {greater_than: 5}}', { amount: 5.1 }, true],
  ['{amount: {greater_than: 5}}', { amount: 5 }, false],
  ['{amount: {greater_than: 1, less_than: 5}}', { amount: 3 }, true],
  ['{amount: {greater_than: 1, less_than: 5}}', { amount: 1 }, false],
  ['{amount: {less_than: 5}}', { amount: '4' }, false],
  ['{amount: {less_than: 5}}', { amount: null }, false],
  ['{amount: {less_than: 5}}', { amount: Number.NaN }, false],
  ['{amount: {less_than: 5}}', {}, false],
  ['{path: "/etc/*"}', { path: '/etc/a/b\nc' }, true],
  ['{path: "/etc/*"}', { path: ['/etc/a'] }, false],
  ['{path: "*"}', {}, false],
  ['{path: "*"}', { path: undefined }, false],
  ['{path: null}', { path: null }, true],
  ['{path: null}', {}, false],
  ['{force: true}', { force: true }, true],
  ['{force: true}', { force: 'true' }, false],
  ['{payload: {user: {role: admin}}}', { payload: { user: { role: 'admin' } } }, true],
  ['{payload: {user: {role: admin}}}', { payload: { user: 'admin' } }, false],
  ['{payload: {length: 1}}', { payload: ['x'] }, false],
  ['{payload: {"0": x}}', { payload: ['x'] }, false],
  ['{constructor: {name: "*"}}', {}, false],
  ['{toString: "*"}', {}, false],
  ['{__proto__: {a: 1}}', JSON.parse('{"__proto__": {"a": 1}}'), true],
  ['{__proto__: {a: 1}}', {}, false],
  ['{__proto__: {__proto__: null}}', {}, false],
  ['{a.b: 1}', { a: { b: 1 } }, false],
  ['{a: 1}', undefined, false],
  ['{a: 1}', 'a', false],
])('arguments %s match %j: %j', (condition, args, matches) => {
  const text = rules(`condition: {tool_name: t, context: {args: ${condition}}}, permission: ALWAYS`);
  expect(decide(text, 't', { args })).toBe(matches ? 'always by rules.0' : 'require_approval by default');
});

const cased = (name: string): readonly string[] => [
  name,
  name.toUpperCase(),
  `${name[0]?.toUpperCase()}${name.slice(1)}`,
];
const PLATFORM_SPELLINGS = {
  agdd: ['agdd', 'native', 'boxcar', 'magsag'].flatMap(cased),
  adk: ['adk', 'anthropic-adk'].flatMap(cased),
  openai: ['openai', 'openai-compat'].flatMap(cased),
  anthropic: ['anthropic', 'claude'].flatMap(cased),
};

it('NEVER holds for all spellings of a platform and of the tool, in the policy and in the request', () => {
  let tried = 0;
  for (const [platform, spellings] of Object.entries(PLATFORM_SPELLINGS))
    for (const inPolicy of [...spellings, `{${platform}}`])
      for (const toolInPolicy of ['handoff', 'agent.handoff', 'hand*', 'agent.*', '*.handoff']) {
        const word = inPolicy.startsWith('{') ? `[openai-compat, ${platform}]` : inPolicy;
        const text = `tools: {handoff: {permission: ALWAYS}}\n${rules(
          `condition: {tool_name: "${toolInPolicy}", context: {platform: ${word}}}, permission: NEVER`,
          'condition: {environment: "*", tool_name: handoff, context: {target_agent: "*"}}, permission: ALWAYS',
        )}`;
        for (const spelled of spellings)
          for (const tool of ['handoff', 'agent.handoff']) {
            tried++;
            expect([
              text,
              spelled,
              tool,
              decide(text, tool, { platform: spelled, target_agent: 'a' }),
            ]).toEqual([text, spelled, tool, 'never by rules.0']);
          }
      }
  expect(tried).toBeGreaterThan(1_000);
});

it('a NEVER entry of tools holds for both names of the tool', () => {
  for (const name of ['handoff', 'agent.handoff'])
    for (const tool of ['handoff', 'agent.handoff'])
      expect(decide(`tools: {${name}: {permission: never}}`, tool)).toBe('never by tools.handoff');
});

it('an omitted platform is the native platform; a word that is not a platform matches no condition', () => {
  const text = rules(
    'condition: {context: {platform: native}}, permission: NEVER',
    'condition: {context: {platform: "*"}}, permission: ALWAYS',
  );
  expect(decide(text, 'handoff')).toBe('never by rules.0');
  expect(decide(text, 'handoff', { platform: undefined })).toBe('never by rules.0');
  expect(decide(text, 'handoff', { platform: 'gemini' })).toBe('require_approval by default');
});

it('a glob restricts by every name of a platform or of handoffs, and allows only by the first name', () => {
  const on = (condition: string, permission: string): string =>
    rules(`condition: ${condition}, permission: ${permission}`);
  const anthropic = { platform: 'anthropic' };
  expect(decide(on('{context: {platform: "CLAU*"}}', 'NEVER'), 'handoff', anthropic)).toBe(
    'never by rules.0',
  );
  expect(() => parsePolicy(on('{context: {platform: "CLAU*"}}', 'ALWAYS'))).toThrow(/is not a platform/);
  expect(decide(on('{context: {platform: "anthropic*"}}', 'ALWAYS'), 'handoff', { platform: 'adk' })).toBe(
    'require_approval by default',
  );
  expect(
    decide(on('{context: {platform: "anthropic*"}}', 'REQUIRE_APPROVAL'), 'handoff', { platform: 'adk' }),
  ).toBe('require_approval by rules.0');
  expect(decide(on('{tool_name: "a*"}', 'ALWAYS'), 'handoff')).toBe('require_approval by default');
  expect(decide(on('{tool_name: "a*"}', 'NEVER'), 'handoff')).toBe('never by rules.0');
});

it('both Unicode forms of a name are equal, and the case counts', () => {
  const text = rules('condition: {context: {target_agent: "caf\u00e9-*"}}, permission: NEVER');
  expect(decide(text, 'handoff', { target_agent: 'cafe\u0301-1' })).toBe('never by rules.0');
  expect(decide(text, 'handoff', { target_agent: 'CAF\u00c9-1' })).toBe('require_approval by default');
});

it('a policy names a tool by an entry or by a rule with tool_name, and not by other rules', () => {
  const policy = parsePolicy(
    `tools: {a: {permission: ALWAYS}}\n${rules('condition: {tool_name: "shell.*"}, permission: NEVER', 'condition: {environment: "*"}, permission: NEVER', 'condition: {}, permission: NEVER')}`,
  );
  const named = ['a', 'shell.run', 'handoff', 'agent.handoff', 'b', 'toString', '__proto__'].filter((tool) =>
    namesTool(policy, tool),
  );
  expect(named).toEqual(['a', 'shell.run']);
  expect(namesTool(seed, 'handoff') && namesTool(seed, 'agent.handoff')).toBe(true);
});

it('tools with the names of inherited object members are ordinary tools', () => {
  expect(decide('tools: {}', 'constructor')).toBe('require_approval by default');
  expect(
    decide('tools: {constructor: {permission: NEVER}, __proto__: {permission: NEVER}}', '__proto__'),
  ).toBe('never by tools.__proto__');
  expect(decide('tools: {constructor: {permission: NEVER}}', 'constructor')).toBe(
    'never by tools.constructor',
  );
});

it('the policy of docs/reference/policy.md makes the decisions that the page shows', () => {
  const page = readFileSync(new URL('../../../docs/reference/policy.md', import.meta.url), 'utf8');
  const text = /```yaml\n([\s\S]+?)```/.exec(page)?.[1] ?? '';
  const rows = [...page.matchAll(/^\| `(\w+)` \| `([\w.]+)` \| (.*) \| `(\w+)` by `([\w.]+)` \|/gm)];
  expect(rows.length).toBeGreaterThan(7);
  for (const [row, environment = '', tool = '', context = '', level, rule_id] of rows)
    expect([row, decide(text, tool, JSON.parse(context.replaceAll('`', '')), environment)]).toEqual([
      row,
      `${level} by ${rule_id}`,
    ]);
});
