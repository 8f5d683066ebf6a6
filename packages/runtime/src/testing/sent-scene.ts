/** Operations for a scene on the stage of `sent-stage.ts`, each in one line. */
import type { AgentId, BoxId, CardId, JsonObject, ProjectId, TurnId } from '@boxcar/kernel';
import type { Wire } from '@boxcar/llm/testing';
import { eraseCards } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import type { PackRequest } from '../pack/index.js';
import { checkSent, type Previewed } from './check-sent.js';
import type { Harness } from './harness.js';
import { type Plan, profileOf, type SentStage } from './sent-stage.js';

interface Receipt {
  readonly turn_id: TurnId;
  readonly agent_id: AgentId;
}

/** The operations of a scene. Every turn is awaited to its end. */
export interface Scene extends Pick<SentStage, 'h' | 'word' | 'fresh' | 'plan'> {
  /**
   * The name of a profile whose model is at the provider of this scene: `lead`, `plain`, `whole`, `hasty`; also `tight` and `near`, whose
   * models accept only short prompts.
   */
  profile(name: string): string;
  look(): Plan[number][number];
  call(tool: string, args: JsonObject): Plan[number][number];
  /** A new agent to which other agents may give turns. */
  agent(profile?: string): Promise<string>;
  submit(primitive: string, args: JsonObject): Promise<Receipt>;
  /** A turn of an existing agent or of a session. */
  run(agent: string | JsonObject, plan?: Plan, rest?: JsonObject): Promise<Receipt>;
  clone(agent: string, plan?: Plan, rest?: JsonObject): Promise<Receipt>;
  /** A turn of a new agent, with a preview before it: its first prompt must be the previewed prompt. */
  launch(profile: string, plan?: Plan, rest?: JsonObject, packing?: JsonObject): Promise<Receipt>;
  box(...types: string[]): Promise<BoxId>;
  tape(agent: string): ReturnType<Harness['runtime']['tape']>;
  /** Writes an anchor in the name of the operator. */
  anchor(agent: string, name: string): Promise<void>;
  note(agent: string): Promise<void>;
  /** A box with one card of this many characters. */
  long(length: number): Promise<BoxId>;
  /** A card that is a reference in the last prompt of a turn. */
  leftOut(turnId: string): Promise<string>;
  /** Erases the cards of these types that the turns of an agent wrote or received. */
  erase(agent: string, ...types: string[]): Promise<void>;
  /** Excludes all calls so far from the comparison, because another scene compares the same calls. */
  skip(): void;
  /** Compares all calls so far; see `check-sent.ts`. Returns the number of calls. */
  check(): Promise<number>;
}

const PROJECT = '00000000-0000-7000-8000-000000000001' as ProjectId;

/** The request that `launch_principal` packs. */
const packRequest = (sourceAgentId: string, args: JsonObject, packing: JsonObject = {}): PackRequest => ({
  projectId: 'default',
  toolSuffix: 'launch_principal',
  sourceAgentId,
  arguments: args,
  handover: {
    context_packing_config: {
      pack_arguments: [
        { arg_key: 'instruction' },
        { arg_key: 'result_fields', as_card_type: 'task.result_fields' },
      ],
      inherit_context: { include_boxes_from_args: ['context_box_id'], include_parent: true },
      ...packing,
    },
  } as PackRequest['handover'],
});

export function sentScene(stage: SentStage, wire: Wire): Scene {
  const { h, word, fresh, plan } = stage;
  const previewed: Previewed[] = [];
  const submit: Scene['submit'] = async (primitive, args) => {
    const receipt = (await h.runtime.submit(primitive, args)) as unknown as Receipt;
    if (receipt.turn_id !== undefined) await h.runtime.waitForTurn(receipt.turn_id, { timeoutMs: 60_000 });
    return receipt;
  };
  const delegate =
    (target_strategy: string): Scene['run'] =>
    (target_ref, steps = [], rest = {}) =>
      submit('delegate_async', { target_strategy, target_ref, instruction: plan(steps), ...rest });
  const tape: Scene['tape'] = (agent) => h.runtime.tape({ agent });
  return {
    h,
    word,
    plan,
    profile: (name) => profileOf(wire, name),
    look: () => ['look', { at: word('place') }],
    call: (tool, args) => [tool, args],
    agent: async (profile = 'lead') => {
      const agent_id = fresh('agent');
      const args = { action: 'create', agent_id, profile_name: profileOf(wire, profile), shared: true };
      await h.runtime.submit('provision_agent', args);
      return agent_id;
    },
    submit,
    run: delegate('reuse'),
    clone: delegate('clone'),
    launch: async (name, steps = [], rest = {}, packing = {}) => {
      const args = { profile_name: profileOf(wire, name), instruction: plan(steps), ...rest };
      const preview = await h.runtime.preview(packRequest('operator', args, packing));
      const receipt = await submit('launch_principal', { ...args, ...packing } as JsonObject);
      previewed.push({ turnId: receipt.turn_id, preview });
      return receipt;
    },
    box: async (...types) => {
      const cards = types.map((type) => ({ type, content: { kind: 'text', text: word(`a ${type}`) } }));
      const { box_id } = (await h.runtime.submit('create_box', { cards })) as { box_id: BoxId };
      return box_id;
    },
    tape,
    anchor: async (agent, name) => {
      await (await tape(agent)).handoff(name, { state: { summary: word(name) } });
    },
    note: async (agent) => {
      await (await tape(agent)).append([{ kind: 'message', content: word('a note') }]);
    },
    fresh,
    long: async (length) => {
      const text = `${word('a long card')} ${'so it goes on '.repeat(length / 14)}`;
      const cards = [{ type: 'note', content: { kind: 'text', text } }];
      const { box_id } = (await h.runtime.submit('create_box', { cards })) as { box_id: BoxId };
      return box_id;
    },
    leftOut: async (turnId) => {
      const { omissions } = await h.runtime.explainStep(turnId);
      const [left] = omissions.filter(({ reason }) => reason === 'referenced');
      if (left === undefined) throw new Error('nothing was left out');
      return left.card.card_id;
    },
    erase: async (agent, ...types) => {
      const rows = await h.rows<{ id: CardId }>(
        `
          select c.id
          from boxcar.cards c
          join boxcar.boxes b on c.id = any(b.card_ids)
          join boxcar.turns t on t.context_box_id = b.id
          join boxcar.agents a on a.id = t.agent_id
          where a.name = $1 and c.type = any($2)
          union
          select c.id
          from boxcar.cards c
          join boxcar.tape_entries e on e.card_id = c.id
          join boxcar.agents a on a.tape_box_id = e.box_id
          where a.name = $1 and c.type = any($2)`,
        [agent, types],
      );
      if (rows.length === 0) throw new Error('nothing to erase');
      await eraseCards(
        h.database.pool,
        rows.map(({ id }) => id),
        { projectId: PROJECT, reason: 'asked for' },
      );
    },
    skip: () => void stage.takeCalls(),
    check: async () => {
      const open =
        'select from boxcar.turns where ended_at is null or notifies or unseen_position is not null';
      await waitFor(async () => (await h.rows(open)).length === 0, { message: 'all turns have ended' });
      const sent = stage.takeCalls();
      await checkSent(stage, sent, previewed.splice(0));
      return sent.length;
    },
  };
}
