import { errorText, isJsonObject, KernelError, normalizePlatform } from '@boxcar/kernel';
import {
  canonicalTool,
  checkPolicy,
  evaluatePolicy,
  formatFinding,
  type Policy,
  type PolicyAnswer,
  type PolicyContext,
  parsePolicy,
} from '@boxcar/policy';
import type { Command } from 'commander';
import { EXIT, helpOf, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { readInput } from '../../input/read-input.js';
import { wrongUsage } from '../../input/usage.js';
import { formatTrace, type ShownRule } from '../../text/policy-text.js';
import { countOf, formatFields } from '../../text/text.js';

interface PolicySource {
  readonly file: string;
  readonly bytes: Buffer;
}

/** @throws KernelError `bad_request` for a file that cannot be read. */
async function readSource(name: string): Promise<PolicySource> {
  try {
    return { file: name === '-' ? 'stdin' : name, bytes: await readInput(name) };
  } catch (error) {
    throw new KernelError('bad_request', {
      message: `${name}: ${errorText(error)}.`,
      next: 'Name a file that can be read, or - for stdin.',
      details: { field: 'file', file: name },
      cause: error,
    });
  }
}

/** `boxcar policy check`. */
async function runCheck(context: Context, name: string): Promise<number> {
  const { file, bytes } = await readSource(name);
  const { policy, findings } = checkPolicy(bytes);
  if (policy === undefined) {
    context.answer({ file, version: null, findings }, () =>
      [
        ...findings.map((finding) => formatFinding(finding, file)),
        `${countOf(findings.length, 'finding')}; the policy cannot be used.`,
      ].join('\n'),
    );
    return EXIT.error;
  }
  const { tools, rules, version } = policy;
  context.answer(
    { file, version, findings },
    () =>
      `${file}: ${countOf(Object.keys(tools).length, 'tool')}, ${countOf(rules.length, 'rule')}; version ${version}`,
  );
  return EXIT.success;
}

interface ExplainFlags {
  readonly tool: string;
  readonly context?: string;
  readonly file?: string;
  readonly environment?: string;
}

const CONTEXT_KEYS = ['platform', 'target_agent', 'source_agent', 'request_type', 'args'] as const;

/** The context is written by hand, so a member that no policy can test is a mistake. */
function readContext(text = '{}'): PolicyContext {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw wrongUsage(`--context is not JSON: ${errorText(error)}`, 'context');
  }
  if (!isJsonObject(value)) throw wrongUsage('--context must be a JSON object', 'context');
  const known: readonly string[] = CONTEXT_KEYS;
  const unknown = Object.keys(value).find((key) => !known.includes(key));
  if (unknown !== undefined)
    throw wrongUsage(`--context: unknown key '${unknown}'; known are ${known.join(', ')}`, 'context');
  const { args, ...texts } = value;
  for (const [key, one] of Object.entries(texts))
    if (typeof one !== 'string') throw wrongUsage(`--context: ${key} must be a string`, 'context');
  const { platform } = texts;
  if (typeof platform === 'string' && normalizePlatform(platform) === undefined)
    throw wrongUsage(`--context: '${platform}' is not a platform`, 'context');
  return { ...texts, ...(args === undefined ? {} : { args }) };
}

function describeAnswer(
  answer: PolicyAnswer,
  { policy, tool, environment }: { policy: Policy; tool: string; environment: string },
): string {
  const listed = policy.tools[tool];
  const rules: readonly ShownRule[] = [
    ...answer.trace,
    ...(listed === undefined
      ? []
      : [{ rule_id: `tools.${tool}`, level: listed.permission, keys: 0, matched: true }]),
  ];
  const facts = formatFields([
    ['level', answer.level],
    ['rule', answer.rule_id],
    ['environment', environment],
    ['version', answer.policy_version],
  ]);
  return rules.length === 0 ? facts : `${facts}\n\n${formatTrace(rules)}`;
}

/** `boxcar policy explain`. */
async function runExplain(context: Context, flags: ExplainFlags): Promise<number> {
  const asked = readContext(flags.context);
  const name = flags.file ?? context.config.policyFile;
  if (name === undefined) throw wrongUsage('give --file, or set BOXCAR_POLICY_FILE', 'file');
  const { file, bytes } = await readSource(name);
  const policy = parsePolicy(bytes, { file });
  const environment = flags.environment ?? context.config.environment;
  const answer = evaluatePolicy(policy, { tool: flags.tool, context: asked, environment });
  context.answer(answer, () =>
    describeAnswer(answer, { policy, tool: canonicalTool(flags.tool), environment }),
  );
  return EXIT.success;
}

export function addPolicy(program: Command, run: Run): void {
  const policy = program.command('policy').addHelpText(
    'after',
    helpOf({
      examples: [
        'boxcar policy check policy.yaml',
        'boxcar policy explain --tool handoff --file policy.yaml',
      ],
    }),
  );
  policy
    .command('check')
    .description('Shows every error in a policy.')
    .argument('<file>', 'YAML; - is stdin')
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'Each finding is a line: file:line:column path: message. For a policy without findings, the command prints its version.',
        examples: [
          'boxcar policy check policy.yaml',
          "boxcar policy check policy.yaml --json | jq '.findings'",
        ],
        error: 'the policy has errors',
      }),
    )
    .action((file: string) => run((context) => runCheck(context, file)));
  policy
    .command('explain')
    .description('Decides a call by a policy, and shows the result of each rule.')
    .requiredOption('--tool <name>', 'handoff, or another tool')
    .option('--context <json>', 'context of the call for the policy; default: {}')
    .option('--file <file>', 'default: BOXCAR_POLICY_FILE; - is stdin')
    .option('--environment <name>', 'default: BOXCAR_ENVIRONMENT, else production')
    .addHelpText(
      'after',
      helpOf({
        remarks: `The context has ${CONTEXT_KEYS.join(', ')}. The default platform is agdd. The command calls no tool.`,
        examples: [
          `boxcar policy explain --tool handoff --file policy.yaml \\\n    --context '{"target_agent": "external-billing"}'`,
          `boxcar policy explain --tool handoff --file policy.yaml \\\n    --context '{"platform": "openai"}' --json | jq -r .level`,
        ],
      }),
    )
    .action((flags: ExplainFlags) => run((context) => runExplain(context, flags)));
}
