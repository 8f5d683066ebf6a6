import type { JsonValue } from '@boxcar/kernel';
import type { Runtime } from '../../runtime.js';
import type { CallerRequest } from '../caller-process.js';
import { FAULTY_TOOLS } from '../faulty.js';
import type { Random } from './random.js';

const note = { tool: 'note', arguments: { text: '{{instruction}}' } };
const ask = (profile: string) => ({
  tool: 'ask_expert',
  arguments: { expert_profile: profile, question: '{{instruction}}' },
});

/** The profiles of the submissions, and their results when no worker is lost too often. Add new kinds here. */
const PROFILES: readonly Readonly<Record<string, unknown>>[] = [
  { name: 'plain', script: [{ say: 'plain {{instruction}}', delayMs: 20 }] },
  {
    name: 'noter',
    tools: FAULTY_TOOLS,
    script: [
      { calls: [note, note], delayMs: 20 },
      { calls: [note], delayMs: 20 },
      { say: 'noter {{instruction}}' },
    ],
  },
  {
    name: 'asker',
    tools: [...FAULTY_TOOLS, 'ask_expert'],
    delegation_policy: { target_profiles: null },
    script: [{ calls: [ask('noter'), ask('plain'), note] }, { say: 'asker {{instruction}}' }],
  },
  {
    name: 'chain',
    tools: ['ask_expert', 'delegate_async'],
    delegation_policy: { target_profiles: null },
    script: [
      { calls: [ask('asker')], delayMs: 20 },
      {
        calls: [
          {
            tool: 'delegate_async',
            arguments: { target_strategy: 'new', target_ref: 'plain', instruction: '{{instruction}}' },
          },
        ],
      },
      { say: 'chain {{instruction}}' },
    ],
  },
  {
    name: 'remote',
    tools: [
      {
        name: 'remote_tool',
        description: 'Run by a worker outside.',
        parameters: { type: 'object', properties: {} },
        target: 'soak',
        retry: 'safe',
      },
    ],
    script: [{ calls: [{ tool: 'remote_tool', arguments: {} }] }, { say: 'remote {{instruction}}' }],
  },
];

export interface Accepted {
  readonly turnId: string;
  readonly expected: string;
  /** A word of the submission, which occurs in all texts about it and nowhere else. */
  readonly word: string;
}

const WORD = /soak\.\d+\.said/g;
/** The words of submissions in a text. */
export const wordsIn = (text: string): readonly string[] => text.match(WORD) ?? [];

/** Submits turn after turn. Each submission is repeated under its own key until it is accepted. */
export class Load {
  readonly accepted: Accepted[] = [];
  readonly #submit: (request: CallerRequest) => Promise<JsonValue>;
  readonly #random: Random;
  #count = 0;

  /** @param submit - Settles when the submission is answered. */
  constructor(submit: (request: CallerRequest) => Promise<JsonValue>, random: Random) {
    this.#submit = submit;
    this.#random = random;
  }

  static async prepare(runtime: Runtime): Promise<void> {
    for (const profile of PROFILES)
      await runtime.applyProfile({
        instructions: `You are ${String(profile.name)}.`,
        model: 'scripted',
        ...profile,
      });
  }

  async submitOne(): Promise<void> {
    const profile = String(this.#random.pick(PROFILES)?.name);
    this.#count += 1;
    const word = `soak.${this.#count}.said`;
    const receipt = await this.#submit({
      key: `soak-${this.#count}`,
      primitive: 'launch_principal',
      args: { profile_name: profile, instruction: word },
    });
    this.accepted.push({ turnId: turnIdOf(receipt), expected: `${profile} ${word}`, word });
  }
}

export function turnIdOf(receipt: JsonValue): string {
  const id = (receipt as { readonly turn_id?: unknown }).turn_id;
  if (typeof id !== 'string') throw new Error(`no receipt: ${JSON.stringify(receipt)}`);
  return id;
}
