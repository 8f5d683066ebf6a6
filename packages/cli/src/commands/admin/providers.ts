import { listProviders, type ProviderLimits, type ProviderLine, setProviderLimits } from '@boxcar/store';
import { type Command, InvalidArgumentError } from 'commander';
import { EXIT, helpOf, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { wrongUsage } from '../../input/usage.js';
import { openReader } from '../../reader.js';
import { formatTable } from '../../text/text.js';

const describeLimit = (limit: number | null): string => (limit === null ? 'none' : String(limit));

function describeState(line: ProviderLine): string {
  if (line.open_until !== null) return `fails; tried again ${line.open_until.toISOString()}`;
  return line.failures > 0 ? `failed ${line.failures} in a row` : 'works';
}

function describeProviders(lines: readonly ProviderLine[]): string {
  if (lines.length === 0) return 'no provider has limits or failures';
  return formatTable(
    [
      { title: 'provider', max: 20 },
      { title: 'at once', align: 'right' },
      { title: 'per minute', align: 'right' },
      { title: 'calls', align: 'right' },
      { title: 'waiting', align: 'right' },
      { title: 'state' },
    ],
    lines.map((line) => [
      line.name,
      describeLimit(line.max_concurrent),
      describeLimit(line.requests_per_minute),
      String(line.in_use),
      String(line.waiting),
      describeState(line),
    ]),
  );
}

/** `boxcar providers ls`. */
async function showProviders(context: Context): Promise<number> {
  await using reader = await openReader(context.config, context.log('warn'));
  const lines = await listProviders(reader.pool);
  context.answer({ providers: lines }, () => describeProviders(lines));
  return EXIT.success;
}

/** A limit as given: a number, or a word for no limit. */
type Given = number | 'none' | 'default';

interface SetFlags {
  readonly maxConcurrent?: Given;
  readonly requestsPerMinute?: Given;
  readonly breakerAfter?: Given;
}

const limitFrom = (given: Given | undefined): number | null | undefined =>
  typeof given === 'string' ? null : given;

/** `boxcar providers set`. */
async function setLimits(context: Context, name: string, flags: SetFlags): Promise<number> {
  const limits: ProviderLimits = {
    maxConcurrent: limitFrom(flags.maxConcurrent),
    requestsPerMinute: limitFrom(flags.requestsPerMinute),
    breakerAfter: limitFrom(flags.breakerAfter),
  };
  if (Object.keys(flags).length === 0)
    throw wrongUsage(
      'give a limit to set: --max-concurrent, --requests-per-minute or --breaker-after',
      'limits',
    );
  await using reader = await openReader(context.config, context.log('warn'));
  await setProviderLimits(reader.pool, name, limits);
  const lines = (await listProviders(reader.pool)).filter((line) => line.name === name);
  context.answer({ providers: lines }, () => describeProviders(lines));
  return EXIT.success;
}

/** A whole number, or a word for no limit. */
const limitOf =
  (least: number, none: 'none' | 'default') =>
  (text: string): Given => {
    if (text === none) return none;
    if (/^\d{1,7}$/.test(text) && Number(text) >= least && Number(text) <= 1_000_000) return Number(text);
    throw new InvalidArgumentError(`It must be a whole number from ${least} to 1000000, or '${none}'.`);
  };

/** The part of a model's name before the colon. */
function providerName(text: string): string {
  if (/^[^\s:]{1,64}$/.test(text)) return text;
  throw new InvalidArgumentError("It must be the part of a model's name before ':', such as openai.");
}

export function addProviders(program: Command, run: Run): void {
  const providers = program
    .command('providers')
    .addHelpText(
      'after',
      helpOf({ examples: ['boxcar providers ls', 'boxcar providers set openai --max-concurrent 50'] }),
    );
  providers
    .command('ls')
    .description('Lists providers with limits or failures, their calls and waiting turns.')
    .addHelpText(
      'after',
      helpOf({ examples: ['boxcar providers ls', "boxcar providers ls --json | jq '.providers[].waiting'"] }),
    )
    .action(() => run(showProviders));
  providers
    .command('set')
    .description('Sets limits of a provider, shared by all workers.')
    .argument('<provider>', 'the part of model names before the colon', providerName)
    .option('--max-concurrent <n>', "calls at once, or 'none'", limitOf(1, 'none'))
    .option('--requests-per-minute <n>', "calls begun in a minute, or 'none'", limitOf(1, 'none'))
    .option(
      '--breaker-after <n>',
      "failures in a row after which its calls wait; 0: never; or 'default'",
      limitOf(0, 'default'),
    )
    .addHelpText(
      'after',
      helpOf({
        remarks: 'Limits that are not named are kept. Workers apply the change within a heartbeat.',
        examples: [
          'boxcar providers set openai --max-concurrent 20 --requests-per-minute 500',
          'boxcar providers set openai --max-concurrent none',
          'boxcar providers set anthropic --breaker-after 5',
        ],
      }),
    )
    .action((name: string, flags: SetFlags) => run((context) => setLimits(context, name, flags)));
}
