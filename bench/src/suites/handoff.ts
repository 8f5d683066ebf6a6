import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { PermissionEvaluator } from '@boxcar/policy';
import { ApprovalGate, HandoffTool } from '@boxcar/runtime';
import { CLOCK, TALK } from '../boxcar/model.js';
import { PROFILE, submitTurn } from '../boxcar/system.js';
import { now, timed } from '../measure.js';
import type { QueueName } from '../options.js';
import { median } from '../report.js';
import type { Bench, Figures } from '../suite.js';
import { ANSWER, PROMPT } from '../system.js';
import { type Pair, settle } from './pair.js';

const SAMPLES = 60;
const WARM_UP = 5;

const TIMED = `handoff-${CLOCK}`;

const TALKING = `handoff-${TALK}`;

type Measures = Readonly<
  Record<
    'approved' | 'idle' | 'native' | 'plain' | 'cached' | 'streamed' | 'relayed' | 'called' | 'bare',
    () => Promise<number>
  >
>;

/** Measures each kind once, in milliseconds. */
function measuresOf(
  { boxcar, floor }: Pick<Pair, 'boxcar' | 'floor'>,
  { relay, receiver }: { readonly relay: Relay; readonly receiver: Receiver },
): Measures {
  const { runtime } = boxcar;
  const permissionEvaluator = new PermissionEvaluator({
    text: `
tools:
  handoff: { permission: ALWAYS }
rules:
  - { condition: { context: { target_agent: ${TIMED} } }, permission: REQUIRE_APPROVAL }
`,
    environment: 'production',
  });
  const tool = new HandoffTool({ runtime, permissionEvaluator, concurrency: 0 });
  const unjudged = new HandoffTool({ runtime, permissionEvaluator: null, concurrency: 0 });
  const gate = new ApprovalGate({ runtime });
  const request = { source_agent: 'caller', task: PROMPT };
  return {
    approved: async () => {
      const asked = await tool.handoff({ ...request, target_agent: TIMED, wait: false });
      await rest();
      const from = now();
      await gate.approve(asked.ticket_id ?? '');
      const { result } = await tool.waitForHandoff(asked.handoff_id);
      return Number(result) - from;
    },
    idle: async () => {
      const from = now();
      const { result } = await runtime.waitForTurn(await submitTurn(runtime, TIMED));
      return Number(result) - from;
    },
    native: () =>
      timed(async () => {
        const { result } = await tool.handoff({ ...request, target_agent: PROFILE.name });
        if (result !== ANSWER) throw new Error(`a handoff ended with ${JSON.stringify(result)}`);
      }),
    plain: () => timed(() => boxcar.answer()),
    bare: () => timed(() => floor.answer()),
    cached: () =>
      timed(async () => {
        const cache = { ttl_seconds: 86_400 };
        const { result } = await tool.handoff({ ...request, target_agent: PROFILE.name, cache });
        if (result !== ANSWER) throw new Error(`a handoff ended with ${JSON.stringify(result)}`);
      }),
    streamed: async () => {
      const { handoff_id } = await tool.handoff({ ...request, target_agent: TALKING, wait: false });
      let ms = Number.NaN;
      for await (const part of tool.stream(handoff_id))
        if (part.type === 'text' && Number.isNaN(ms)) ms = now() - Number(part.text);
      return ms;
    },
    relayed: () => relay.first(),
    called: async () => {
      const called = receiver.next();
      await unjudged.handoff({
        ...request,
        target_agent: TIMED,
        callback: { url: receiver.url },
        wait: false,
      });
      return called;
    },
  };
}

/** The cost of a part that goes directly from one connection to its reader. */
class Relay implements AsyncDisposable {
  readonly #server = createServer((_request, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.flushHeaders();
    setTimeout(() => response.end(`data: ${now()}\n\n`), 5);
  });

  async open(): Promise<this> {
    this.#server.listen(0, '127.0.0.1');
    await once(this.#server, 'listening');
    return this;
  }

  async first(): Promise<number> {
    const { port } = this.#server.address() as AddressInfo;
    const { body } = await fetch(`http://127.0.0.1:${port}/`);
    for await (const chunk of body ?? []) {
      const at = now();
      return at - Number(Buffer.from(chunk).toString().slice('data: '.length));
    }
    throw new Error('the relay ended without a part');
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, 'close');
  }
}

/** Receives callbacks: the time of each after the call of its model. */
class Receiver implements AsyncDisposable {
  #onCall: ((ms: number) => void) | undefined;
  readonly #server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      const at = now();
      response.end();
      const { result } = JSON.parse(Buffer.concat(chunks).toString()) as { result: string };
      this.#onCall?.(at - Number(result));
    });
  });

  async open(): Promise<this> {
    this.#server.listen(0, '127.0.0.1');
    await once(this.#server, 'listening');
    return this;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}/`;
  }

  next(): Promise<number> {
    return new Promise((resolve) => {
      this.#onCall = resolve;
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, 'close');
  }
}

/** Lets the system become idle; the pause varies, as between idle turns. */
const rest = (): Promise<void> => delay(5 + Math.random() * 15);

/** The additional time of an approval and of a handoff: each is measured together with the turn without it, in one run. */
export async function benchHandoff(bench: Bench, queue: QueueName): Promise<Figures> {
  const { servers, options, say } = bench;
  const samples = options.samples ?? SAMPLES;
  const pair = await bench.openPair();
  const { boxcar } = pair;
  await boxcar.runtime.applyProfile({
    name: TIMED,
    instructions: PROFILE.instructions,
    limits: PROFILE.limits,
    model: `scripted:${CLOCK}`,
  });
  await boxcar.runtime.applyProfile({
    name: TALKING,
    instructions: PROFILE.instructions,
    limits: PROFILE.limits,
    model: `scripted:${TALK}`,
  });
  await using relay = await new Relay().open();
  await using receiver = await new Receiver().open();
  const measures = measuresOf(pair, { relay, receiver });
  const names = Object.keys(measures) as (keyof Measures)[];
  const found: Record<keyof Measures, number[]> = {
    approved: [],
    idle: [],
    native: [],
    plain: [],
    cached: [],
    streamed: [],
    relayed: [],
    called: [],
    bare: [],
  };
  const sample = async (count: number, keep: boolean): Promise<void> => {
    for (let at = 0; at < count; at += 1)
      for (const name of names) {
        await rest();
        const ms = await measures[name]();
        if (keep) found[name].push(ms);
      }
  };
  await sample(Math.min(WARM_UP, samples), false);
  await settle(servers.databaseUrl);
  await sample(samples, true);
  const p50 = (name: keyof Measures): number => median(found[name]);
  say(`handoff ${queue}: ${names.map((name) => `${name} ${p50(name).toFixed(2)} ms`).join(', ')}`);
  return {
    'approved ÷ idle': { value: p50('approved') / p50('idle'), floor: 1 },
    'native ÷ plain': { value: p50('native') / p50('plain'), floor: 1 },
    'cached ÷ plain': { value: p50('cached') / p50('plain'), floor: 1 },
    approved: { value: p50('approved'), floor: p50('bare') },
    native: { value: p50('native'), floor: p50('bare') },
    'callback after its model': { value: p50('called'), floor: p50('idle') },
    'first part beyond a relay': { value: p50('streamed') - p50('relayed'), floor: p50('relayed') },
  };
}
