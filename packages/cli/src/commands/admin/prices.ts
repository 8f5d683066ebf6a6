import {
  findPrice,
  isFree,
  isPlainName,
  LISTED_PRICES,
  type ModelPrice,
  needsPrice,
  type PriceTable,
  type ProjectId,
  priceTables,
} from '@boxcar/kernel';
import { findProjectByRef, listUsedModels, loadProject, setPrice } from '@boxcar/store';
import { type Command, InvalidArgumentError } from 'commander';
import { EXIT, helpOf, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { wrongUsage } from '../../input/usage.js';
import { openReader, type Reader } from '../../reader.js';
import { formatTable } from '../../text/text.js';

interface PriceLine {
  readonly model: string;
  /** Null: a profile uses the model, but the model has no price. */
  readonly price: ModelPrice | null;
  /** The price table that has the model. */
  readonly from: 'project' | 'file' | 'built-in' | null;
  readonly source: string | null;
  readonly read_at: string | null;
  /** Current profiles that name the model. */
  readonly profiles: readonly string[];
}

const dollars = (micros: number): string => String(micros / 1e6);

function describePrice(price: ModelPrice | null): readonly string[] {
  if (price === null) return ['none', '', '', '', ''];
  if (isFree(price)) return ['free', '', '', '', ''];
  const { input, output, cached_input, cache_write, reasoning } = price;
  return [input, output, cached_input, cache_write, reasoning].map((rate) =>
    rate === undefined ? '' : dollars(rate),
  );
}

const describePrices = (lines: readonly PriceLine[]): string =>
  formatTable(
    [
      { title: 'model', max: 40 },
      { title: 'input', align: 'right' },
      { title: 'output', align: 'right' },
      { title: 'cached', align: 'right' },
      { title: 'written', align: 'right' },
      { title: 'reasoning', align: 'right' },
      { title: 'from' },
      { title: 'profiles', max: 24 },
    ],
    lines.map(({ model, price, from, read_at, profiles }) => [
      model,
      ...describePrice(price),
      from === 'built-in' ? `${from}, ${read_at}` : (from ?? ''),
      profiles.join(', '),
    ]),
  );

interface ProjectFlags {
  readonly project?: string;
}

const findProject = (context: Context, { pool }: Reader, flags: ProjectFlags) =>
  findProjectByRef(pool, flags.project ?? context.config.project);

async function readPrices(context: Context, { pool }: Reader, id: ProjectId): Promise<readonly PriceLine[]> {
  const own = (await loadProject(pool, id)).limits.prices;
  const [ofProject = {}] = priceTables(own, []);
  const ofFile: PriceTable = context.config.prices ?? {};
  const profilesOf = new Map((await listUsedModels(pool, id)).map((used) => [used.model, used.profiles]));
  const models = new Set([
    ...[...profilesOf.keys()].filter(needsPrice),
    ...[ofProject, ofFile, LISTED_PRICES].flatMap((table) => Object.keys(table)),
  ]);
  return [...models].toSorted().map((model): PriceLine => {
    const profiles = profilesOf.get(model) ?? [];
    const listed = Object.fromEntries(
      Object.entries(LISTED_PRICES).map(([name, line]) => [name, line.price]),
    );
    const tables = [
      ['project', ofProject],
      ['file', ofFile],
      ['built-in', listed],
    ] as const;
    for (const [from, table] of tables) {
      const price = findPrice(model, [table]);
      if (price === undefined) continue;
      const line =
        from === 'built-in' ? Object.values(LISTED_PRICES).find((one) => one.price === price) : undefined;
      return { model, price, from, source: line?.source ?? null, read_at: line?.readAt ?? null, profiles };
    }
    return { model, price: null, from: null, source: null, read_at: null, profiles };
  });
}

/** `boxcar prices ls`. */
async function showPrices(context: Context, flags: ProjectFlags): Promise<number> {
  await using reader = await openReader(context.config, context.log('warn'));
  const { id } = await findProject(context, reader, flags);
  const prices = await readPrices(context, reader, id);
  context.answer({ prices }, () => describePrices(prices));
  return EXIT.success;
}

interface SetFlags extends ProjectFlags {
  readonly input?: number;
  readonly output?: number;
  readonly cachedInput?: number;
  readonly cacheWrite?: number;
  readonly reasoning?: number;
  readonly free?: boolean;
  readonly none?: boolean;
}

function priceOf(flags: SetFlags): ModelPrice | null {
  const { input, output, cachedInput, cacheWrite, reasoning, free = false, none = false } = flags;
  const rates = [input, output, cachedInput, cacheWrite, reasoning].filter((rate) => rate !== undefined);
  const given = [rates.length > 0, free, none].filter(Boolean).length;
  const isComplete = rates.length === 0 || (input !== undefined && output !== undefined);
  if (given !== 1 || !isComplete)
    throw wrongUsage('give --input and --output, or --free, or --none', 'price');
  if (none) return null;
  if (free) return { input: 0, output: 0 };
  return {
    input: input ?? 0,
    output: output ?? 0,
    ...(cachedInput === undefined ? {} : { cached_input: cachedInput }),
    ...(cacheWrite === undefined ? {} : { cache_write: cacheWrite }),
    ...(reasoning === undefined ? {} : { reasoning }),
  };
}

/** `boxcar prices set`. */
async function runSet(context: Context, model: string, flags: SetFlags): Promise<number> {
  const price = priceOf(flags);
  await using reader = await openReader(context.config, context.log('warn'));
  const { id } = await findProject(context, reader, flags);
  await setPrice(reader.pool, id, { model, price });
  const prices = (await readPrices(context, reader, id)).filter((line) => line.model === model);
  context.answer({ prices }, () => (prices.length === 0 ? `${model} has no price.` : describePrices(prices)));
  return EXIT.success;
}

/** Dollars for a million tokens, as micros. */
function rate(text: string): number {
  if (/^\d{1,6}(\.\d{1,6})?$/.test(text)) return Math.round(Number(text) * 1e6);
  throw new InvalidArgumentError('It must be dollars for a million tokens, such as 2.5.');
}

function modelName(text: string): string {
  if (text.length <= 200 && /^[^\s:]+:\S(.*\S)?$/.test(text) && isPlainName(text)) return text;
  throw new InvalidArgumentError('It must be a model as profiles name it, such as openai:gpt-4.1.');
}

const PROJECT = ['--project <name>', 'project, by id or name'] as const;

export function addPrices(program: Command, run: Run): void {
  const prices = program
    .command('prices')
    .addHelpText(
      'after',
      helpOf({ examples: ['boxcar prices ls', 'boxcar prices set openai:gpt-4.1 --input 2 --output 8'] }),
    );
  prices
    .command('ls')
    .description('Lists prices, their sources, and models of profiles without a price.')
    .option(...PROJECT)
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'In dollars per million tokens. Prices of the project precede those of the file of BOXCAR_PRICES, and these precede the built-in ones.',
        examples: [
          'boxcar prices ls',
          "boxcar prices ls --json | jq '.prices[] | select(.price == null).model'",
        ],
      }),
    )
    .action((flags: ProjectFlags) => run((context) => showPrices(context, flags)));
  prices
    .command('set')
    .description('Sets the price of a model for a project.')
    .argument('<model>', 'as profiles name it', modelName)
    .option('--input <dollars>', 'per million tokens of prompts', rate)
    .option('--output <dollars>', 'per million tokens of answers', rate)
    .option('--cached-input <dollars>', 'prompts from the cache; default: --input', rate)
    .option('--cache-write <dollars>', 'prompts written to the cache; default: --input', rate)
    .option('--reasoning <dollars>', 'reasoning; default: --output', rate)
    .option('--free', 'its calls cost nothing, and receipts report that')
    .option('--none', 'remove the price that was set for the project')
    .option(...PROJECT)
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'A run with a limit of cost_usd is refused while its model has no price. New turns follow at once where there was no price; workers keep a price that they know until they are restarted. Steps keep the cost of their day.',
        examples: [
          'boxcar prices set openai-compatible:qwen3 --free',
          'boxcar prices set openai:gpt-4.1 --input 2 --output 8 --cached-input 0.5',
          'boxcar prices set openai:gpt-4.1 --none',
        ],
      }),
    )
    .action((model: string, flags: SetFlags) => run((context) => runSet(context, model, flags)));
}
