import { KernelError } from '@boxcar/kernel';
import { expect, it } from 'vitest';
import { checkPolicy, formatFinding, parsePolicy } from './parse-policy.js';
import { SEED_POLICY } from './testing/seed-policy.js';

const linesOf = (text: string | Uint8Array): readonly string[] =>
  checkPolicy(text).findings.map((finding) => formatFinding(finding, 'f'));

const version = (text: string): string => parsePolicy(text).version;

/** One rule with this condition, in YAML's flow style. */
const rule = (condition: string): string => `rules:\n  - permission: NEVER\n    condition: ${condition}\n`;

it('the file of the description is read unchanged', () => {
  const policy = parsePolicy(SEED_POLICY);
  expect(policy).toMatchObject({
    text: SEED_POLICY,
    version: expect.stringMatching(/^[0-9a-f]{64}$/),
    tools: { handoff: { permission: 'require_approval' } },
  });
  expect(policy.rules).toEqual([
    {
      permission: 'always',
      condition: [
        { path: ['environment'], anyOf: ['development'] },
        { path: ['tool_name'], anyOf: ['handoff'] },
      ],
    },
    {
      permission: 'require_approval',
      condition: [
        { path: ['tool_name'], anyOf: ['handoff'] },
        { path: ['context', 'platform'], anyOf: ['openai', 'anthropic'] },
      ],
    },
    {
      permission: 'never',
      condition: [
        { path: ['tool_name'], anyOf: ['handoff'] },
        { path: ['context', 'target_agent'], anyOf: ['external-*'] },
      ],
    },
  ]);
});

it('a policy cannot be changed', () => {
  const policy = parsePolicy(SEED_POLICY);
  const [first] = policy.rules;
  for (const part of [policy, policy.rules, policy.tools, policy.tools.handoff, first, first?.condition])
    expect(Object.isFrozen(part)).toBe(true);
});

it.each<[string, string | Uint8Array, string[]]>([
  ['an empty file', '', ['f:1:1 policy: is empty; write tools, rules or both']],
  ['a file with only a comment', '# later\n', ['f:1:1 policy: is empty; write tools, rules or both']],
  ['a list', '- a\n', ['f:1:1 policy: must be an object, not a list']],
  ['two documents', 'tools: {}\n---\nrules: []\n', ['f:2:1 policy: has more than one document']],
  ['a tab', 'tools:\n\thandoff: {}\n', ['f:2:1 policy: Tabs are not allowed as indentation']],
  ['a NUL', 'tools: {}\n# \0', ['f:2:3 policy: has a NUL character or a lone surrogate']],
  [
    'bytes that are not UTF-8',
    Buffer.from([0x23, 0x0a, 0x61, 0xff]),
    ['f:2:2 policy: is not UTF-8 text; save the file with that encoding'],
  ],
  ['an unknown key', 'rule: []\n', ['f:1:1 policy: unknown key "rule" (did you mean "rules"?)']],
  ['a merge key', '<<: {}\n', ['f:1:1 policy: unknown key "<<"; known here are tools, rules']],
  ['an alias', 'tools: &a {}\nrules: *a\n', ['f:2:8 rules: is an alias; write the value itself']],
  ['tools without entries', 'tools:\n', ['f:1:7 tools: must be an object, not null']],
  ['rules that are not a list', 'rules: {}\n', ['f:1:8 rules: must be a list, not an object']],
  ['a key given twice', 'tools: {}\nrules: []\ntools: {}\n', ['f:3:1 tools: is given twice']],
  [
    'a tool given twice',
    'tools:\n  a: {permission: NEVER}\n  a: {permission: ALWAYS}\n',
    ['f:3:3 tools.a: is given twice'],
  ],
  [
    'a tool given by both names',
    'tools:\n  handoff: {permission: NEVER}\n  agent.handoff: {permission: ALWAYS}\n',
    ['f:3:3 tools.agent.handoff: is the same tool as "handoff", which has an entry'],
  ],
  [
    'a glob in tools',
    'tools:\n  shell.*: {permission: NEVER}\n',
    ['f:2:3 tools.shell.*: is a glob; write a rule with it as its tool_name'],
  ],
  ['a tool that is a word', 'tools: {a: NEVER}\n', ['f:1:12 tools.a: must be an object, not a string']],
  ['a tool without a name', "tools: {'': {permission: NEVER}}\n", ['f:1:9 tools: has an empty name']],
  [
    'a tool without permission',
    'tools:\n  a: {}\n',
    ['f:2:6 tools.a: has no permission; it must be ALWAYS, REQUIRE_APPROVAL, NEVER'],
  ],
  [
    'a rule without permission',
    'rules:\n  - condition: {}\n',
    ['f:2:5 rules.0: has no permission; it must be ALWAYS, REQUIRE_APPROVAL, NEVER'],
  ],
  [
    'a rule without condition',
    'rules:\n  - permission: ALWAYS\n',
    ['f:2:5 rules.0: has no condition; {} means every handoff'],
  ],
  [
    'an unknown permission',
    'rules:\n  - {condition: {}, permission: Allways}\n',
    [
      'f:2:33 rules.0.permission: must be one of ALWAYS, REQUIRE_APPROVAL, NEVER, not "Allways" (did you mean "ALWAYS"?)',
    ],
  ],
  [
    'a permission that is not a word',
    'rules:\n  - {condition: {}, permission: true}\n',
    ['f:2:33 rules.0.permission: must be a string, not true'],
  ],
  ['a rule that is a word', 'rules: [NEVER]\n', ['f:1:9 rules.0: must be an object, not a string']],
  ['a condition that is nothing', rule(''), ['f:3:16 rules.0.condition: must be an object, not null']],
  [
    'an unknown key of a condition',
    rule('{tool: a}'),
    ['f:3:17 rules.0.condition: unknown key "tool"; known here are environment, tool_name, context'],
  ],
  [
    'an unknown key of a context',
    rule('{context: {agent: a}}'),
    [
      'f:3:27 rules.0.condition.context: unknown key "agent"; known here are platform, target_agent, source_agent, request_type, args',
    ],
  ],
  [
    'a context that is a list',
    rule('{context: []}'),
    ['f:3:26 rules.0.condition.context: must be an object, not a list'],
  ],
  [
    'a number in place of a name',
    rule('{environment: 1}'),
    ['f:3:30 rules.0.condition.environment: must be a string, not a number'],
  ],
  [
    'an object in place of a name',
    rule('{context: {source_agent: {less_than: 1}}}'),
    ['f:3:41 rules.0.condition.context.source_agent: must be a string, not an object'],
  ],
  [
    'a wrong item of a list',
    rule('{context: {request_type: [a, 2]}}'),
    ['f:3:45 rules.0.condition.context.request_type.1: must be a string, not a number'],
  ],
  ['an empty list', rule('{tool_name: []}'), ['f:3:28 rules.0.condition.tool_name: must not be empty']],
  [
    'a blank name',
    rule("{context: {target_agent: ' '}}"),
    ['f:3:41 rules.0.condition.context.target_agent: must not be empty'],
  ],
  [
    'one tool by both names',
    rule('{tool_name: [handoff, agent.handoff]}'),
    ['f:3:28 rules.0.condition.tool_name: names one tool twice: agent.handoff is handoff'],
  ],
  [
    'an unknown platform',
    rule('{context: {platform: [claude, opnai]}}'),
    [
      'f:3:46 rules.0.condition.context.platform.1: "opnai" is not a platform; known are agdd, native, boxcar, magsag, adk, anthropic-adk, openai, openai-compat, anthropic, claude',
    ],
  ],
  [
    'arguments that are a word',
    rule('{context: {args: all}}'),
    ['f:3:33 rules.0.condition.context.args: must be an object, not a string'],
  ],
  [
    'an argument without a condition',
    rule('{context: {args: {a: {}}}}'),
    ['f:3:37 rules.0.condition.context.args.a: must not be empty'],
  ],
  [
    'a limit that is not a number',
    rule('{context: {args: {a: {less_than: "5"}}}}'),
    ['f:3:49 rules.0.condition.context.args.a.less_than: must be a finite number, not a string'],
  ],
  [
    'a limit together with other keys',
    rule('{context: {args: {a: {less_than: 5, equals: 4}}}}'),
    [
      'f:3:37 rules.0.condition.context.args.a: must have less_than and greater_than only, or names of arguments only',
    ],
  ],
  [
    'a list of objects as an argument',
    rule('{context: {args: {a: [{b: 1}]}}}'),
    [
      'f:3:38 rules.0.condition.context.args.a.0: must be a string, a finite number, true, false or null, not an object',
    ],
  ],
  [
    'arguments that are nested without end',
    rule(`{context: {args: ${'{a: '.repeat(60)}1${'}'.repeat(60)}}}`),
    [`f:3:${33 + 4 * 49} rules.0.condition.context.args${'.a'.repeat(49)}: is nested deeper than 50 levels`],
  ],
])('%s is refused with its place', (_title, text, lines) => {
  expect(linesOf(text)).toEqual(lines);
});

it('nesting that is too deep for a stack is refused with an error', () => {
  for (const text of ['[', '{a: ', '{a: ['].map((one) => one.repeat(20_000)))
    expect(linesOf(text)[0]).toMatch(/^f:\d+:\d+ policy: is nested too deeply$/);
});

it('all findings are thrown at once, in the message and as data', () => {
  const text =
    'tools:\n  a: {permission: NEVR}\nrules:\n  - condition: {environment: 5, tools: x}\nmore: 1\n';
  let thrown: unknown;
  try {
    parsePolicy(text, { file: 'policy.yaml' });
  } catch (error) {
    thrown = error;
  }
  expect(thrown).toBeInstanceOf(KernelError);
  const { code, details, problem } = thrown as KernelError;
  expect(code).toBe('policy_invalid');
  expect(details.findings).toEqual(checkPolicy(text).findings);
  expect(details.findings).toMatchObject([
    { line: 2, column: 19, path: 'tools.a.permission' },
    { line: 4, column: 5, path: 'rules.0' },
    { line: 4, column: 30, path: 'rules.0.condition.environment' },
    { line: 4, column: 33, path: 'rules.0.condition' },
    { line: 5, column: 1, path: '' },
  ]);
  for (const finding of checkPolicy(text).findings)
    expect(problem).toContain(formatFinding(finding, 'policy.yaml'));
});

it('comments, layout, the order of keys and other spellings do not change the version', () => {
  const [before, after] = [
    `tools: {handoff: {permission: NEVER}, b: {permission: ALWAYS}}
rules:
  - condition:
      tool_name: handoff
      context: {platform: [anthropic, openai], args: {a: 1, b: {c: x, d: {less_than: 1, greater_than: 0}}}}
    permission: REQUIRE_APPROVAL
`,
    `# Another text, the same policy.
rules:
  - permission: "require_approval"
    condition:
      context:
        args:
          b:
            d: {greater_than: 0.0, less_than: 1.0}
            c: 'x'
          a: 1
        platform: ["OpenAI-Compat", Claude]
      tool_name: [agent.handoff]
tools:
  b: {permission: always}
  agent.handoff:
    permission: never
`,
  ];
  expect(version(after)).toBe(version(before));
  expect(version(before.replace('a: 1', 'a: 2'))).not.toBe(version(before));
  expect(version(`\ufeff${before}`)).toBe(version(before));
  expect(version(before.replaceAll('\n', '\r\n'))).toBe(version(before));
});

it('a byte order mark is not part of the text', () => {
  expect(parsePolicy('\ufefftools: {}').text).toBe('tools: {}');
  expect(linesOf('\ufeffrule: []')).toEqual([expect.stringMatching(/^f:1:1 policy: /)]);
});

it('the order of rules changes the version, since answers name rules by their place', () => {
  const [a, b] = ['{condition: {environment: a}, permission: NEVER}', '{condition: {}, permission: ALWAYS}'];
  expect(version(`rules: [${a}, ${b}]`)).not.toBe(version(`rules: [${b}, ${a}]`));
});

it('arguments with dots in their names differ from nested arguments', () => {
  expect(version(rule('{context: {args: {a.b: 1}}}'))).not.toBe(
    version(rule('{context: {args: {a: {b: 1}}}}')),
  );
});
