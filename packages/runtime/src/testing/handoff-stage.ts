/** Shared setup for tests of context_handoff: agents with tapes to hand over, and queries for the results. */
import {
  type AgentId,
  type BoxId,
  type CardId,
  type JsonValue,
  KernelError,
  type TurnId,
} from '@boxcar/kernel';
import { expect } from 'vitest';
import { z } from 'zod';
import type { TurnResult } from '../queue/turn-result.js';
import type { Tape } from '../tape/tape.js';
import { checkPrompts } from './check-prompts.js';
import { type Harness, harness } from './harness.js';
import { checkInvariants } from './invariants.js';
import { type RecordingModel, recordingModel } from './recording-model.js';

interface Handed {
  readonly card_id: CardId;
  readonly context_box_id: BoxId;
  readonly turn_id: TurnId;
}

export interface Receipt {
  readonly turn_id: TurnId;
  readonly agent_id: AgentId;
  readonly output_box_id: BoxId;
}

interface Grant extends Record<string, unknown> {
  readonly mode: string;
  readonly upto_position: number | null;
  readonly source: string;
}

export const ANYONE = { delegation_policy: { target_profiles: null } };
export const WHY = { reason: 'needs a specialist', summary: 'found a pattern in auth.py' };
export const INTENTION = { next_steps: 'Review auth.py', context_summary: 'SQL may be injected' };

export const refTo = (tape: string, place: string): string => `tape://default/${tape}/${place}`;
export const says = (content: string) => ({ kind: 'message', content }) as const;

export async function refusal(work: Promise<unknown>): Promise<KernelError> {
  const thrown: unknown = await work.then(
    () => undefined,
    (error: unknown) => error,
  );
  expect(thrown).toBeInstanceOf(KernelError);
  return thrown as KernelError;
}

/** Opens before the first test and closes after the last. Its functions are fields, so that they can be destructured. */
export function handoffStage() {
  const model: RecordingModel = recordingModel({});
  let h: Harness;

  const open = async (): Promise<Harness> => {
    h = await harness({ model });
    h.runtime.registerTool({
      name: 'look',
      description: 'Looks at a file.',
      input: z.strictObject({ at: z.string() }),
      isReadOnly: true,
      run: async () => ({ line: 45 }),
    });
    await h.profile('source', [{ say: 'worked on {{instruction}}' }], ANYONE);
    await h.profile('target', [{ say: 'took over {{instruction}}' }]);
    await h.worker();
    return h;
  };
  const close = async (): Promise<void> => {
    // After every test: providers accept each prompt, each prompt can be rebuilt, and the invariants hold.
    expect(model.findings()).toEqual([]);
    await checkPrompts(h.database.pool, model.requests);
    await checkInvariants(h.database.pool);
    await h[Symbol.asyncDispose]();
  };

  const submit = (primitive: string, args: unknown, options = {}): Promise<JsonValue> =>
    h.runtime.submit(primitive, args, options);
  const handOff = async (args: unknown, options = {}): Promise<Handed> =>
    (await submit('context_handoff', { ...WHY, ...(args as object) }, options)) as unknown as Handed;
  const end = (turnId: TurnId): Promise<TurnResult> => h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });
  const run = async (profile_name: string, instruction = 'go'): Promise<Receipt> => {
    const made = (await submit('launch_principal', { profile_name, instruction })) as unknown as Receipt;
    await end(made.turn_id);
    return made;
  };
  const agent = async (name: string, profile_name: string): Promise<Receipt> =>
    (await submit('provision_agent', {
      action: 'create',
      agent_id: name,
      profile_name,
      shared: true,
    })) as unknown as Receipt;
  const promptOf = (turnId: TurnId, step = 1): string[] =>
    (model.of(turnId).find((request) => request.turn.step === step)?.messages ?? []).map((message) =>
      message.role === 'assistant' && message.toolCalls !== undefined
        ? `assistant calls ${message.toolCalls.map(({ name }) => name).join()}`
        : `${message.role}: ${message.content}`,
    );
  /** A tool as it was shown to models. */
  const shownTool = (name: string) =>
    model.requests.flatMap(({ tools }) => tools).find((tool) => tool.name === name);
  const grantsTo = (agentId: string, boxId: string): Promise<Grant[]> =>
    h.rows<Grant>(
      `
        select mode, upto_position, source
        from boxcar.grants
        where agent_id = $1 and box_id = $2
        order by mode desc`,
      [agentId, boxId],
    );
  const cardOf = async (cardId: CardId) => {
    const [card] = await h.rows<{ type: string; role: string; data: { to: string; content: object } }>(
      "select type, role, content->'data' as data from boxcar.cards where id = $1",
      [cardId],
    );
    if (card === undefined) throw new Error('no card');
    return card;
  };
  const headOf = async (boxId: BoxId): Promise<number> => {
    const [box] = await h.rows<{ head_position: number }>(
      'select head_position from boxcar.boxes where id = $1',
      [boxId],
    );
    return box?.head_position ?? 0;
  };
  const tape = (boxId: BoxId, as?: AgentId): Promise<Tape> =>
    h.runtime.tape({ box: boxId }, as === undefined ? {} : { as });
  /** Writes an anchor, followed only by its event, at the end of the tape. Returns the position of the anchor. */
  const anchor = async (boxId: BoxId, name: string, state: JsonValue): Promise<number> =>
    (await (await tape(boxId)).handoff(name, { state })).anchor;
  /** An agent with a tape to hand over. */
  const cast = async (): Promise<{ readonly source: Receipt; readonly head: number }> => {
    const source = await run('source', 'the first task');
    return { source, head: await headOf(source.output_box_id) };
  };

  return {
    open,
    close,
    submit,
    handOff,
    end,
    run,
    agent,
    promptOf,
    shownTool,
    grantsTo,
    cardOf,
    headOf,
    tape,
    anchor,
    cast,
  };
}
