/** The contract that every adapter must fulfill, tested against a real server that speaks its platform's wire format. */
import { KernelError } from '@boxcar/kernel';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import type { AdapterResult, ExecuteOptions, ResultPart } from '../adapter.js';
import { type AdapterSubject, ANSWER, type Bench, failureOf } from './bench.js';
import { everyCard, requestFor, textCard } from './cards.js';
import { failureCases } from './failure-cases.js';
import { type Behaviour, openPlatform, PLATFORM_KEY, type PlatformServer } from './platform-server.js';

const optionsWith = (given: Partial<ExecuteOptions> = {}): ExecuteOptions => ({
  signal: new AbortController().signal,
  attempt: 1,
  idempotencyKey: 'key-of-the-handoff',
  ...given,
});

export function adapterContract(subject: AdapterSubject): void {
  beforeEach(() => {
    vi.stubEnv('CONTRACT_KEY', PLATFORM_KEY);
    vi.stubEnv('OPENAI_API_KEY', '');
    vi.stubEnv('ANTHROPIC_API_KEY', '');
  });
  afterEach(() => {
    vi.unstubAllEnvs();
  });

  const run = (
    server: PlatformServer,
    given: Parameters<typeof requestFor>[1] = {},
    options: Partial<ExecuteOptions> = {},
  ): Promise<AdapterResult> =>
    subject
      .createAdapter()
      .executeHandoff(requestFor(subject.targetAt(server.origin), given), optionsWith(options));
  const open = (...behaviours: readonly Behaviour[]): Promise<PlatformServer> =>
    openPlatform(subject.dialect(), ...behaviours);

  /** Checks that the shown value has nothing that only the operator may see. */
  function expectConcealed(server: PlatformServer, shown: unknown): void {
    const text = shown instanceof Error ? `${shown.message} ${JSON.stringify(shown)}` : JSON.stringify(shown);
    for (const secret of [PLATFORM_KEY, server.origin, new URL(server.origin).host, ...subject.secrets])
      expect(text).not.toContain(secret);
  }

  describe(subject.name, () => {
    successCases(subject, { run, open, expectConcealed });
    failureCases(subject, { run, open, expectConcealed });
    abortCases(subject, { run, open });
    refusalCases(subject, { run, open });
  });
}

function successCases(subject: AdapterSubject, { run, open, expectConcealed }: Bench): void {
  test('the answer is the result, its joined parts are the result, and each request is made once', async () => {
    await using server = await open({ kind: 'answer', text: ANSWER });
    const parts: ResultPart[] = [];
    const ids: string[] = [];
    const { result, remote_id } = await run(
      server,
      {},
      {
        onPart: (part) => parts.push(part),
        onRemoteId: (id) => ids.push(id),
      },
    );
    expect(result).toBe(ANSWER);
    expect(parts.map(({ text }) => text).join('')).toBe(ANSWER);
    expect([server.refusals, server.works.length, server.requests.length]).toEqual([[], 1, subject.requests]);
    expect(ids).toEqual(remote_id === null ? [] : [remote_id]);
  });

  test('task, context, payload and instructions are in the body, and the idempotency key is in the header', async () => {
    await using server = await open({ kind: 'answer', text: ANSWER });
    await run(server, { context: { season: 'winter-context' }, payload: { depth: 'deep-payload' } });
    const [work] = server.works;
    for (const word of ['Describe the harbour.', 'winter-context', 'deep-payload', 'Be brief.'])
      expect(work?.text).toContain(word);
    expect(work?.headers['idempotency-key']).toBe('key-of-the-handoff');
  });

  test('the loss report describes the received request: every card is sent or lost, never both', async () => {
    await using server = await open({ kind: 'answer', text: ANSWER });
    const cards = everyCard();
    const { loss } = await run(server, { cards });
    expect(loss.lost.map(({ card_id }) => card_id)).toEqual(subject.notCarried);
    expect(loss.sent_cards).toEqual(
      cards.map(({ id }) => id).filter((id) => !subject.notCarried.includes(id)),
    );
    for (const { why } of loss.lost) expect(why).not.toBe('');
    const body = server.works[0]?.text ?? '';
    expect(body).toContain('The harbour has four cranes.');
    expect(body.includes('https://files.example/harbour.png')).toBe(!subject.notCarried.includes('image'));
    expectConcealed(server, loss);
  });

  test('the address of a file is recognized in every spelling', async () => {
    await using server = await open({ kind: 'answer', text: ANSWER });
    const files = ['https://Files.Example/the harbour.pdf', 'https://files.example'].map((uri, n) => ({
      id: `file-${n}`,
      type: 'task.file',
      role: null,
      content: { kind: 'file', uri, checksum: 'sha256:00', content_type: 'application/pdf' } as const,
    }));
    const { loss } = await run(server, { cards: [textCard('text', 'x'), ...files] });
    const isCarried = !subject.notCarried.includes('file');
    expect(loss.sent_cards).toEqual(['text', ...(isCarried ? ['file-0', 'file-1'] : [])]);
  });

  test('an answer that repeats the key or the address does not bring them into the result', async () => {
    const parts: ResultPart[] = [];
    await using server = await open({ kind: 'answer', text: `${PLATFORM_KEY} works` });
    const { result } = await run(server, {}, { onPart: (part) => parts.push(part) });
    expect(result).toBe('[secret: CONTRACT_KEY] works');
    expect(parts.map(({ text }) => text).join('')).toBe(result);
  });

  test("an error of the caller's own function is thrown unchanged", async () => {
    await using server = await open({ kind: 'answer', text: ANSWER });
    const own = new Error('the row could not be written');
    const onPart = (): void => {
      throw own;
    };
    await expect(run(server, {}, { onPart })).rejects.toBe(own);
    expect(server.works.length).toBe(1);
  });

  test('two handoffs at once do not affect each other', async () => {
    await using server = await open({ kind: 'answer', text: ANSWER });
    const ids = ['0197c1a2-0000-7000-8000-00000000000a', '0197c1a2-0000-7000-8000-00000000000b'];
    const results = await Promise.all(
      ids.map((handoff_id) => run(server, { handoff_id, cards: [textCard(`card-${handoff_id}`, 'x')] })),
    );
    expect(results.map(({ loss }) => loss.sent_cards)).toEqual(ids.map((id) => [`card-${id}`]));
  });
}

function abortCases(subject: AdapterSubject, { run, open }: Pick<Bench, 'run' | 'open'>): void {
  test.each(['silent', 'endless'] as const)(
    'an abort ends a handoff with a %s answer, with its reason, and closes the connection',
    async (kind) => {
      await using server = await open(kind === 'silent' ? { kind } : { kind, text: ANSWER });
      const controller = new AbortController();
      const work = run(server, {}, { signal: controller.signal });
      await Promise.race([server.reached(), work]);
      const reason = new KernelError('handoff_timeout');
      controller.abort(reason);
      await expect(work).rejects.toBe(reason);
      await server.abandoned();
      expect(server.works.length).toBe(1);
    },
  );

  test('the timeout of a signal has the code of a timeout', async () => {
    await using server = await open({ kind: 'silent' });
    const work = run(server, {}, { signal: AbortSignal.timeout(150) });
    await expect(work).rejects.toMatchObject({ code: 'handoff_timeout' });
  });

  test('nothing is sent after an abort', async () => {
    await using server = await open({ kind: 'answer', text: ANSWER });
    const reason = new KernelError('canceled');
    await expect(run(server, {}, { signal: AbortSignal.abort(reason) })).rejects.toBe(reason);
    expect(server.requests).toEqual([]);
  });

  if (subject.isStreaming)
    test('the first part arrives while the answer is being written', async () => {
      await using server = await open({ kind: 'endless', text: ANSWER });
      const controller = new AbortController();
      let show: (text: string) => void = () => undefined;
      const first = new Promise<string>((resolve) => {
        show = resolve;
      });
      const work = run(server, {}, { signal: controller.signal, onPart: ({ text }) => show(text) });
      const text = await Promise.race([first, work.then(() => 'it ended')]);
      expect(text !== '' && ANSWER.startsWith(text)).toBe(true);
      controller.abort(new KernelError('canceled'));
      await expect(work).rejects.toMatchObject({ code: 'canceled' });
    });
}

function refusalCases(subject: AdapterSubject, { run, open }: Pick<Bench, 'run' | 'open'>): void {
  test('nothing is sent when the capability check fails', async () => {
    await using server = await open({ kind: 'answer', text: ANSWER });
    const limited = { ...subject.targetAt(server.origin), max_context_tokens: 10 };
    const task = 'x'.repeat(400);
    await expect(run(server, { target: limited, task })).rejects.toMatchObject({ code: 'context_overflow' });
    const lost = everyCard().filter(({ id }) => id === 'local_file');
    await expect(run(server, { cards: lost })).rejects.toMatchObject({ code: 'cards_not_carried' });
    expect(server.requests).toEqual([]);
  });

  test('a missing key fails the execution and not the construction, and nothing is sent', async () => {
    vi.stubEnv('CONTRACT_KEY', ' ');
    await using server = await open({ kind: 'answer', text: ANSWER });
    const error = await failureOf(run(server));
    expect([error.code, error.retryable, error.details.variable]).toEqual([
      'platform_unauthorized',
      false,
      'CONTRACT_KEY',
    ]);
    expect(server.requests).toEqual([]);
  });

  test('a key that no header can hold is refused, and is in no error', async () => {
    vi.stubEnv('CONTRACT_KEY', 'first-line\nsecond-line');
    await using server = await open({ kind: 'answer', text: ANSWER });
    const error = await failureOf(run(server));
    expect([error.code, error.details.variable]).toEqual(['platform_unauthorized', 'CONTRACT_KEY']);
    expect(`${error.message} ${JSON.stringify(error)}`).not.toContain('line');
    expect(server.requests).toEqual([]);
  });

  test('an entry of another platform is refused', async () => {
    await using server = await open({ kind: 'answer', text: ANSWER });
    await expect(run(server, { target: { platform: 'other' } })).rejects.toMatchObject({
      code: 'bad_request',
    });
    expect(server.requests).toEqual([]);
  });

  test('the adapter accepts the names of its platform', () => {
    const adapter = subject.createAdapter();
    expect(adapter.supportsPlatform(adapter.platform)).toBe(true);
    expect(adapter.supportsPlatform(adapter.platform.toUpperCase())).toBe(true);
    for (const name of ['agdd', 'gemini', '', 'constructor'])
      expect(adapter.supportsPlatform(name)).toBe(false);
  });
}

export type { AdapterSubject } from './bench.js';
