/**
 * Agents whose models are called at providers on loopback, one server for each wire format. Every request is recorded as bytes. A model
 * does the steps that its instruction contains (`plan`). All words of a scene contain a mark (`w7w`) that occurs nowhere else, so that they
 * can be found in the bytes.
 */
import type { JsonObject, ModelRequest, WireNote } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import {
  type Behave,
  openProviderServer,
  type ProviderServer,
  SERVER_KEY,
  type ServerAnswer,
  WIRES,
  type Wire,
} from '@boxcar/llm/testing';
import { z } from 'zod';
import { type Harness, harness } from './harness.js';
import { SETTING, THINKING_MODELS } from './provider-stage.js';

export const MARK = /w\d+w/g;

/** A model call of the runtime, with the bytes that reached the provider. */
export interface SentCall {
  readonly wire: Wire['provider'];
  readonly request: ModelRequest;
  readonly bytes: string;
}

/** For each step, the tools that a model calls. After the last step it answers with a text. */
export type Plan = readonly (readonly (readonly [tool: string, args: JsonObject])[])[];

export interface SentStage extends AsyncDisposable {
  readonly h: Harness;
  /** The calls since the last call of this method. */
  takeCalls(): readonly SentCall[];
  /** The kinds of things that the explanations of all calls have named. `check-sent.ts` adds to it. */
  readonly seen: Set<string>;
  /** Refusals by the providers. */
  refusals(): readonly string[];
  /** The bytes of a request to a provider, made by the adapter of the runtime. */
  render(request: ModelRequest): Promise<string>;
  /** The adapter's own report of its additions to a request. */
  describe(request: ModelRequest): readonly WireNote[];
  /** Words that occur nowhere else. */
  word(what: string): string;
  /** A name that occurs nowhere else. */
  fresh(what: string): string;
  /** An instruction with which a model does these steps. */
  plan(steps: Plan): string;
}

const ANSWER = 'I have done it';

/** A profile of this name for each wire format. */
export const profileOf = (wire: Wire, name: string): string => `${name}.${wire.provider}`;

export async function sentStage(): Promise<SentStage> {
  let count = 0;
  const word = (what: string): string => `w${++count}w ${what}`;
  const callId = (): string => `a${String(++count).padStart(8, '0')}`;
  /** Plans by the mark in the instruction. The mark does not reveal the tools of the plan. */
  const plans = new Map<string, Plan>();
  let asked: ModelRequest | undefined;
  let calls: SentCall[] = [];

  /** The next step of the plan in the turn's instruction. */
  const behave: Behave = () => {
    if (asked === undefined) return { answer: { text: 'Well.' } };
    const { instruction, step, attempt } = asked.turn;
    const text = typeof instruction === 'string' ? instruction : JSON.stringify(instruction);
    const [mark = ''] = text.match(MARK) ?? [];
    const now = plans.get(mark)?.[step - 1] ?? [];
    if (attempt === 1 && now.some(([tool]) => tool === 'overflow')) {
      const error = {
        message: 'prompt is too long: 210000 tokens > 200000 maximum',
        code: 'context_length_exceeded',
      };
      return { status: 400, error };
    }
    const made = now.filter(([tool]) => tool !== 'overflow');
    if (made.length === 0)
      return { answer: { text: word(ANSWER), reasoning: word('I think that it is done') } };
    const answer: ServerAnswer = {
      ...(step % 2 === 1 ? { text: word('I call') } : {}),
      reasoning: word('I think'),
      calls: made.map(([name, args]) => ({ id: callId(), name, arguments: JSON.stringify(args) })),
    };
    return { answer };
  };

  const lines = new Map<
    string,
    { readonly server: ProviderServer; readonly router: ReturnType<typeof createModelRouter> }
  >();
  for (const wire of WIRES) {
    const server = await openProviderServer(wire, behave);
    const settings = { apiKey: SERVER_KEY, baseUrl: server.baseUrl };
    lines.set(wire.provider, {
      server,
      router: createModelRouter({ providers: { [SETTING[wire.provider]]: settings } }),
    });
  }
  const lineOf = (model: string) => {
    const wire = model.slice(0, model.indexOf(':')) as Wire['provider'];
    const line = lines.get(wire);
    if (line === undefined) throw new Error(`no provider for ${model}`);
    return { wire, ...line };
  };

  /** Runs calls one at a time, so that the next body at the server belongs to the call. */
  let line = Promise.resolve();
  const alone = async <T>(work: () => Promise<T>): Promise<T> => {
    const before = line;
    let done = (): void => undefined;
    line = new Promise((resolve) => {
      done = resolve;
    });
    await before;
    return work().finally(done);
  };

  const h = await harness({
    model: {
      describeWire: (model, prompt) => lineOf(model).router.describeWire?.(model, prompt) ?? [],
      generate: (request, options) =>
        alone(async () => {
          const { wire, server, router } = lineOf(request.model);
          const { length } = server.requests;
          asked = request;
          const outcome = await router.generate(request, options).then(
            (reply) => ({ reply }),
            (error: unknown) => ({ error }),
          );
          asked = undefined;
          const [sent, ...more] = server.requests.slice(length);
          if (sent === undefined || more.length > 0)
            throw new Error(`${server.requests.length - length} requests for one call`);
          calls.push({ wire, request, bytes: sent.text });
          if ('error' in outcome) throw outcome.error;
          return outcome.reply;
        }),
    },
  });
  h.runtime.registerSelector('own', {
    version: 1,
    select: (entries) => entries.filter(({ isOwnTurn }) => isOwnTurn).flatMap(({ messages }) => messages),
  });
  h.runtime.registerTool({
    name: 'look',
    description: 'Looks.',
    input: z.looseObject({ at: z.string() }),
    isReadOnly: true,
    run: ({ at }) => ({ seen: word('seen'), at: at.length }),
  });
  h.runtime.registerTool({
    name: 'read',
    description: 'Reads a long file.',
    input: z.looseObject({ length: z.number() }),
    isReadOnly: true,
    run: ({ length }) => `${word('read')} ${'a line of it\n'.repeat(length / 13)}`,
  });
  const TOOLS = [
    'look',
    'read',
    'tape.handoff',
    'tape.search',
    'delegate_async',
    'ask_expert',
    'fork_join',
    'context_handoff',
    'submit_result',
  ];
  for (const wire of WIRES) {
    const shared = { model: THINKING_MODELS[wire.provider], delegation_policy: { target_profiles: null } };
    const apply = (name: string, rest: object) =>
      h.runtime.applyProfile({
        ...shared,
        name: profileOf(wire, name),
        instructions: word(`You are ${name}.`),
        ...rest,
      });
    await apply('lead', { tools: TOOLS });
    await apply('plain', {});
    await apply('whole', { tools: TOOLS, view: 'full' });
    await apply('hasty', { tools: ['look'], limits: { max_steps: 3 } });
    await apply('near', { tools: ['tape.handoff'], limits: { context_tokens: 4_000 } });
    await apply('tight', { tools: ['look', 'read'], limits: { context_tokens: 4_000, max_steps: 12 } });
  }
  await h.worker({ sweepMs: 600_000 });

  return {
    h,
    seen: new Set(),
    word,
    fresh: (what) => `${what}-${++count}`,
    plan: (steps) => {
      const instruction = word('do as you were told');
      plans.set(instruction.match(MARK)?.[0] ?? '', steps);
      return instruction;
    },
    takeCalls: () => {
      const taken = calls;
      calls = [];
      return taken;
    },
    refusals: () =>
      [...lines].flatMap(([wire, { server }]) => server.refusals.map((words) => `${wire}: ${words}`)),
    render: (request) =>
      alone(async () => {
        const { server, router } = lineOf(request.model);
        await router.generate(request, { signal: new AbortController().signal });
        return server.requests.at(-1)?.text ?? '';
      }),
    describe: ({ model, messages, tools, turn: { sharedMessages } }) =>
      lineOf(model).router.describeWire?.(model, { messages, tools, sharedMessages }) ?? [],
    [Symbol.asyncDispose]: async () => {
      await h[Symbol.asyncDispose]();
      for (const { server } of lines.values()) await server[Symbol.asyncDispose]();
    },
  };
}
