/** Compares the charges after hundreds of failures with the records of the provider. */
import type { JsonObject, TurnId } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { type Behave, type Behaviour, chatWire, openProviderServer } from '@boxcar/llm/testing';
import { setProviderLimits } from '@boxcar/store';
import { type NodeChild, queueBackends, spawnNode, waitFor } from '@boxcar/testkit';
import { expect, test } from 'vitest';
import { openRuntime } from '../../open.js';
import { checkInvariants } from '../../testing/invariants.js';
import type { ProviderWorkerOptions } from '../../testing/provider-worker.js';
import { testBackend } from '../../testing/queue-backend.js';
import { createRandom } from '../../testing/soak/random.js';

const PROGRAM = new URL('../../testing/provider-worker.ts', import.meta.url);
/** `npm run soak -- --accounts` asks for 500. */
const FAILURES = Number(process.env.BOXCAR_ACCOUNT_FAILURES ?? '120');
/** The number of workers that are killed while they wait for an answer, and the number that are killed after the answer has been sent. */
const KILLS = FAILURES < 500 ? 1 : 3;
const MAX_OPEN = 16;
const MODEL = 'openai-compatible:counted';
const TEXT = 'A part of what was found. '.repeat(400);
const FRAMES = 3;

type Kind = 'answer' | 'refusal' | 'cut' | 'unavailable' | 'timeout' | 'kill before' | 'kill after';

type Request = Parameters<Behave>[0];

/** One call in the records of the provider. */
interface Entry {
  readonly kind: Kind;
  /** The counted tokens, which the provider also reports when it gets the chance. No two reportable calls have the same input. */
  readonly input: number;
  readonly output: number;
}

interface StepUsage extends Record<string, unknown> {
  readonly input: number;
  readonly output: number;
  readonly is_estimated: boolean;
  readonly is_lost: boolean;
}

/**
 * The tokens that the provider counts. For calls that it cannot report, the count is derived from the bytes that it has read and written.
 */
function countOfCall(kind: Kind, request: Request, index: number): Pick<Entry, 'input' | 'output'> {
  const read = Math.round(JSON.stringify(request.body).length / 4);
  switch (kind) {
    case 'unavailable':
      return { input: 0, output: 0 };
    case 'timeout':
    case 'kill before':
      return { input: read, output: 0 };
    case 'cut':
      // The first frame has no text, and the text is sent in three frames.
      return { input: read, output: Math.round(((TEXT.length / 3) * (FRAMES - 1)) / 4) };
    default:
      return { input: 100_000 + index, output: 50 };
  }
}

test('usage that the provider reports is charged exactly, everything else by its estimate, each once', async () => {
  await using backend = await testBackend(queueBackends()[0] ?? 'postgres');
  const { pool } = backend.database;
  const random = createRandom(11);
  const books: Entry[] = [];
  const children = new Map<string, NodeChild>();
  let failures = 0;
  const kills = { 'kill before': 0, 'kill after': 0 };

  const kill = async ({ headers }: Request): Promise<void> => {
    const key = String(headers.authorization).replace('Bearer ', '');
    const child = children.get(key);
    children.delete(key);
    await child?.kill('SIGKILL');
  };
  const killed = (): number => kills['kill before'] + kills['kill after'];
  /** On a busy machine a worker may start so late that the failures are over before it is killed. */
  const isDone = (): boolean => failures >= FAILURES && killed() >= 2 * KILLS;
  const kindOf = (): Kind => {
    if (isDone()) return 'answer';
    const at = Math.floor(((killed() + 1) * FAILURES) / (KILLS * 2 + 1));
    if (killed() < 2 * KILLS && failures >= at && children.size > 1)
      return kills['kill before'] <= kills['kill after'] ? 'kill before' : 'kill after';
    if (failures >= FAILURES) return 'answer';
    return (
      random.pick<Kind>([
        'answer',
        'refusal',
        'cut',
        'cut',
        'cut',
        'unavailable',
        'unavailable',
        'timeout',
      ]) ?? 'answer'
    );
  };
  const behave = async (request: Request, index: number): Promise<Behaviour> => {
    const kind = kindOf();
    const entry = { kind, ...countOfCall(kind, request, index) };
    books.push(entry);
    if (kind !== 'answer') failures++;
    if (kind === 'kill before' || kind === 'kill after') kills[kind]++;
    const usage = { input: entry.input, output: entry.output };
    switch (kind) {
      case 'answer':
        return { answer: { text: 'done', usage } };
      case 'refusal':
        return { answer: { text: '', finish: 'content_filter', usage } };
      case 'cut':
        return { answer: { text: TEXT, usage }, frames: FRAMES, after: 'destroy' };
      case 'unavailable':
        return { status: 503, error: { message: 'overloaded' } };
      case 'timeout':
        return { hang: true };
      case 'kill before':
        await kill(request);
        return { drop: true };
      case 'kill after':
        setImmediate(() => void kill(request));
        return { answer: { text: 'done', usage } };
      default:
        return kind satisfies never;
    }
  };
  await using server = await openProviderServer(chatWire, behave, { key: null });

  let started = 0;
  const start = async (): Promise<void> => {
    const apiKey = `worker-${started++}`;
    const options: ProviderWorkerOptions = { ...backend.urls, baseUrl: server.baseUrl, apiKey };
    const child = spawnNode(PROGRAM, [JSON.stringify(options)]);
    await child.line(/^ready /, { deadlineMs: 90_000 });
    children.set(apiKey, child);
  };
  const submitter = openRuntime({ ...backend.urls, model: createModelRouter() });
  await submitter.runtime.applyProfile({
    name: 'asker',
    instructions: 'You ask.',
    model: MODEL,
    model_settings: { max_output_tokens: 3_000 },
    limits: {
      model_retries: 50,
      retry_base_seconds: 0.01,
      retry_max_seconds: 0.05,
      model_timeout_seconds: 0.5,
    },
  });
  // The provider fails on purpose, and must still be called.
  await setProviderLimits(pool, 'openai-compatible', { breakerAfter: 0 });
  await Promise.all([start(), start()]);

  const submit = async (): Promise<void> => {
    const receipt = (await submitter.runtime.submit('launch_principal', {
      profile_name: 'asker',
      instruction: 'go',
      budget: { tokens: 1_000_000_000 },
    })) as { turn_id: TurnId };
    await submitter.runtime.waitForTurn(receipt.turn_id, { timeoutMs: 120_000 });
  };
  const submitAll = async (): Promise<void> => {
    while (!isDone()) await submit();
  };
  const replace = async (): Promise<void> => {
    while (!isDone()) {
      await waitFor(() => children.size < 2 || isDone(), {
        deadlineMs: 600_000,
        message: 'a worker is killed',
      });
      if (children.size < 2) await start();
    }
  };
  await Promise.all([replace(), ...Array.from({ length: MAX_OPEN }, submitAll)]);

  const rows = (
    await pool.query<StepUsage>(
      `select (usage->>'input_tokens')::int as input, (usage->>'output_tokens')::int as output, coalesce((usage->'estimated')::boolean, false) as is_estimated,
         coalesce((usage->'lost')::boolean, false) as is_lost from boxcar.steps where usage is not null`,
    )
  ).rows;
  const sum = (of: readonly { readonly input: number; readonly output: number }[]): number =>
    of.reduce((all, { input, output }) => all + input + output, 0);
  const exact = rows.filter(({ is_estimated }) => !is_estimated);
  const estimated = rows.filter(({ is_estimated }) => is_estimated);
  const inBooks = new Map(books.filter(({ input }) => input >= 100_000).map((entry) => [entry.input, entry]));
  const told = exact.map(({ input }) => inBooks.get(input));

  // Calls whose usage reached the worker are each charged once, exactly.
  expect(told).not.toContain(undefined);
  expect(new Set(told).size).toBe(exact.length);
  expect(sum(exact)).toBe(sum(told.filter((entry) => entry !== undefined)));
  const isTold = new Set(told);
  for (const entry of books)
    if (entry.kind === 'answer' || entry.kind === 'refusal') {
      // Only a worker that was killed in the meantime can miss the report.
      if (!isTold.has(entry)) expect(estimated.some(({ is_lost }) => is_lost)).toBe(true);
    } else if (entry.kind !== 'kill after') expect(isTold.has(entry), entry.kind).toBe(false);
  // Every other call that cost something has its estimate. (A killed worker may have opened steps whose calls it had not sent yet.)
  const untold = books.filter((entry) => !isTold.has(entry) && entry.kind !== 'unavailable');
  expect(estimated.length).toBeGreaterThanOrEqual(untold.length);
  expect(estimated.length - untold.length).toBeLessThanOrEqual(2 * KILLS * MAX_OPEN);
  for (const { input, output } of estimated) {
    expect(input).toBeGreaterThan(20);
    expect(output).toBeLessThanOrEqual(3_000);
  }
  const cut = books.find(({ kind }) => kind === 'cut');
  const likeCut = estimated.filter(
    ({ input, output }) =>
      Math.abs(input - (cut?.input ?? 0)) < 5 && Math.abs(output - (cut?.output ?? 0)) < 5,
  );
  expect(likeCut.length).toBeGreaterThanOrEqual(
    books.filter(({ kind }) => kind === 'cut').length - 2 * KILLS * MAX_OPEN,
  );
  // The rows of turns, steps and accounts agree.
  const [turns] = (
    await pool.query<JsonObject>(
      'select sum(spent_tokens)::int as spent, count(*)::int as n from boxcar.turns',
    )
  ).rows;
  expect(turns?.spent).toBe(sum(rows));
  await checkInvariants(pool);

  const countOf = (kind: Kind): number => books.filter((entry) => entry.kind === kind).length;
  for (const kind of ['refusal', 'cut', 'unavailable', 'timeout', 'kill before', 'kill after'] as const)
    expect(countOf(kind), kind).toBeGreaterThan(0);
  expect(failures).toBeGreaterThanOrEqual(FAILURES);
  console.log(
    `${books.length} calls of ${String(turns?.n)} turns, ${failures} failures; told and charged ${sum(exact)} tokens; not told: the provider counted ${sum(untold)}, charged by estimate ${sum(estimated)} (difference ${sum(estimated) - sum(untold)})`,
  );
  for (const child of children.values()) await child.kill('SIGKILL');
  await submitter.close();
}, 300_000);
