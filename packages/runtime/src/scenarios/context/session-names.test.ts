/** Sessions by name: `{ workspace, session }` names a tape and its agent. */
import { sessionTapeName, tapeName } from '@boxcar/kernel';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { statementsToAccept } from '../../testing/count-statements.js';
import { harness } from '../../testing/harness.js';
import { type SessionScene, sessionScene } from '../../testing/session-scene.js';

let scene: SessionScene;

beforeAll(async () => {
  scene = await sessionScene();
});

afterAll(() => scene[Symbol.asyncDispose]());

interface Receipt {
  readonly agent_id: string;
  readonly turn_id: string;
  readonly output_box_id: string;
}

const workspace = '/srv/demo';
const ask = async (ref: object, rest: object = {}, options: object = {}): Promise<Receipt> =>
  (await scene.h.runtime.submit(
    'delegate_async',
    { target_strategy: 'reuse', target_ref: ref, instruction: 'go', ...rest },
    options,
  )) as unknown as Receipt;
const ended = ({ turn_id: id }: Receipt) => scene.h.runtime.waitForTurn(id, { timeoutMs: 60_000 });
const agentsOf = (session: string) =>
  scene.h.rows('select id, name, tape_box_id from boxcar.agents where name = $1', [
    tapeName(workspace, session),
  ]);

describe('a session addressed by name', () => {
  test('is the tape of its workspace and session with an agent, made on first use with the profile', async () => {
    const session = scene.fresh();
    const first = await ask({ workspace: '/srv/x/../demo/', session, profile_name: 'lead' });
    expect(await ended(first)).toMatchObject({ status: 'success', agent_id: first.agent_id });
    const tape = await scene.h.runtime.tape({ workspace, session }, { create: false });
    expect(tape.boxId).toBe(first.output_box_id);
    expect(await tape.info()).toMatchObject({ name: tapeName(workspace, session) });
    const second = await ask({ workspace, session }, { instruction: 'again' });
    expect(second).toMatchObject({ agent_id: first.agent_id, output_box_id: first.output_box_id });
    await ended(second);
    expect((await scene.promptsOf(first.agent_id)).at(-1)).toMatch(/go\n(?:.*\n)*again$/);
    expect(
      (await ended(await ask({ workspace: '/srv/other', session, profile_name: 'lead' }))).agent_id,
    ).not.toBe(first.agent_id);
  });

  test('is made once by first uses at the same time', async () => {
    const session = scene.fresh();
    const ref = { workspace, session, profile_name: 'lead' };
    const receipts = await Promise.all(
      Array.from({ length: 8 }, async (_, n) =>
        n % 4 === 3
          ? scene.h.runtime.tape({ workspace, session })
          : ended(await ask(ref, { instruction: `go ${n}` })),
      ),
    );
    const [agent, ...others] = await agentsOf(session);
    expect(others).toEqual([]);
    const turns = receipts.filter((one) => 'turn_id' in one);
    expect(turns).toHaveLength(6);
    for (const turn of turns) expect(turn).toMatchObject({ status: 'success', agent_id: agent?.id });
    for (const tape of receipts) if ('boxId' in tape) expect(tape.boxId).toBe(agent?.tape_box_id);
  });

  test('keeps its profile: another profile is a conflict', async () => {
    const session = scene.fresh();
    await ended(await ask({ workspace, session, profile_name: 'lead' }));
    await expect(ask({ workspace, session, profile_name: 'other' })).rejects.toMatchObject({
      code: 'conflict',
      details: {
        field: 'arguments.target_ref.profile_name',
        profile_name: 'lead',
        asked_profile_name: 'other',
      },
    });
    const [one, two] = await Promise.allSettled(
      ['lead', 'other'].map((profile_name) => ask({ workspace, session: `${session}-new`, profile_name })),
    );
    expect([one?.status, two?.status].toSorted()).toEqual(['fulfilled', 'rejected']);
    const lost = one?.status === 'rejected' ? one : two;
    expect(lost).toMatchObject({ reason: { code: 'conflict' } });
  });

  test('is not made by a refused submission, and is made once by repeated submissions', async () => {
    const session = scene.fresh();
    const made = { workspace, session, profile_name: 'lead' };
    const tasks = [
      { target_strategy: 'reuse', target_ref: made, instruction: 'go' },
      { target_strategy: 'new', target_ref: 'nobody', instruction: 'go' },
    ];
    await expect(scene.h.runtime.submit('fork_join', { tasks, wait: false })).rejects.toMatchObject({
      code: 'not_found',
    });
    await expect(ask({ workspace, session })).rejects.toMatchObject({
      code: 'not_found',
      message: expect.stringContaining('give profile_name'),
    });
    await expect(ask({ ...made, workspace: 'demo' })).rejects.toMatchObject({
      code: 'bad_request',
      details: { field: 'arguments.target_ref.workspace' },
    });
    await expect(ask(made, { target_strategy: 'new' })).rejects.toMatchObject({ code: 'bad_request' });
    await expect(ask(made, { view: { anchor: 'nowhere' } })).rejects.toMatchObject({ code: 'not_found' });
    await expect(scene.h.runtime.tape({ workspace, session }, { create: false })).rejects.toMatchObject({
      code: 'not_found',
    });
    expect(await agentsOf(session)).toEqual([]);
    const key = { idempotencyKey: `key-${session}` };
    const first = await ask(made, {}, key);
    expect(await ask(made, {}, key)).toEqual(first);
    expect(await agentsOf(session)).toHaveLength(1);
  });

  test('is made together with others in a constant number of statements, also when some have a tape', async () => {
    // There is no worker here, because its statements would interfere.
    await using h = await harness();
    await h.profile('lead', [{ say: 'never' }]);
    const tasksFor = async (count: number, isKnown: boolean) => {
      const names = Array.from({ length: count }, () => scene.fresh());
      if (isKnown) for (const session of names) await h.runtime.tape({ workspace, session });
      return names.map((session) => ({
        target_strategy: 'reuse',
        target_ref: { workspace, session, profile_name: 'lead' },
        instruction: 'go',
      }));
    };
    const accepted = async (count: number, isKnown: boolean) =>
      statementsToAccept(h.database, 'fork_join', {
        tasks: await tasksFor(count, isKnown),
        wait: false,
      });
    await accepted(1, false);
    const one = await accepted(1, false);
    expect(await accepted(50, false)).toBe(one);
    expect([await accepted(1, true), await accepted(20, true)]).toEqual([one, one]);
  });

  test('of several in one fork_join is made once by two of these at once, and is named once', async () => {
    const names = [scene.fresh(), scene.fresh(), scene.fresh()];
    const task = (session: string, profile_name = 'lead') => ({
      target_strategy: 'reuse',
      target_ref: { workspace, session, profile_name },
      instruction: 'go',
    });
    const fork = async (tasks: object[]) =>
      (await scene.h.runtime.submit('fork_join', { tasks, wait: false })) as { batch_id: string };
    const batches = await Promise.all([
      fork(names.map((name) => task(name))),
      fork(names.toReversed().map((name) => task(name))),
    ]);
    for (const { batch_id: id } of batches)
      expect(await scene.h.runtime.waitForBatch(id, { timeoutMs: 60_000 })).toMatchObject({
        status: 'success',
      });
    for (const name of names) expect(await agentsOf(name)).toHaveLength(1);
    const fresh = scene.fresh();
    await expect(fork([task(fresh), task(fresh)])).rejects.toMatchObject({
      code: 'bad_request',
      details: { field: 'arguments.tasks.1.target_ref' },
    });
    await expect(fork([task(fresh), task(fresh, 'other')])).rejects.toMatchObject({
      code: 'conflict',
      details: { field: 'arguments.tasks.1.target_ref.profile_name' },
    });
    expect(await agentsOf(fresh)).toEqual([]);
  });

  test('takes over the tape with its name: earlier or imported entries are its history', async () => {
    const session = scene.fresh();
    const tape = await scene.h.runtime.tape({ workspace, session });
    await tape.append([{ kind: 'message', content: 'said before' }]);
    const receipt = await ask({ workspace, session, profile_name: 'lead' });
    expect(receipt.output_box_id).toBe(tape.boxId);
    await ended(receipt);
    expect((await scene.promptsOf(receipt.agent_id)).at(-1)).toContain('said before');
  });

  test('is not taken from an agent that owns its tape', async () => {
    const { agent } = await scene.parent();
    const session = scene.fresh();
    await scene.h.runtime.tape({ workspace, session }, { as: agent });
    await expect(ask({ workspace, session, profile_name: 'lead' })).rejects.toMatchObject({
      code: 'conflict',
    });
    expect(await agentsOf(session)).toEqual([]);
  });

  test('is not made by an agent on a tape of the operator, since it would read entries without a grant', async () => {
    const { agent } = await scene.parent();
    const session = scene.fresh();
    const tape = await scene.h.runtime.tape({ workspace, session });
    await tape.append([{ kind: 'message', content: 'for the operator alone' }]);
    const ref = { workspace, session, profile_name: 'lead' };
    await expect(ask(ref, {}, { sourceAgentId: agent })).rejects.toMatchObject({ code: 'conflict' });
    expect(await agentsOf(session)).toEqual([]);
    const own = scene.fresh();
    await scene.h.runtime.tape({ workspace, session: own }, { as: agent });
    expect(await ended(await ask({ ...ref, session: own }, {}, { sourceAgentId: agent }))).toMatchObject({
      status: 'success',
    });
  });

  test('of an agent that another agent made is not used when the operator names it with a profile', async () => {
    const { agent, agentId } = await scene.parent();
    const asking = { sourceAgentId: agent };
    const [taken, used] = [scene.fresh(), scene.fresh()];
    const name = tapeName(workspace, taken);
    const provisioned = { action: 'create', agent_id: name, profile_name: 'lead' };
    await scene.h.runtime.submit('provision_agent', provisioned, asking);
    await ended(await ask({ workspace, session: used, profile_name: 'lead' }, {}, asking));
    for (const session of [taken, used]) {
      await expect(ask({ workspace, session, profile_name: 'lead' })).rejects.toMatchObject({
        code: 'agent_exists',
        details: { owner_agent_id: agentId },
      });
      expect(await ended(await ask({ workspace, session }))).toMatchObject({ status: 'success' });
    }
  });

  test('accepts comma commands, handoffs, clones and tasks like any other agent', async () => {
    const session = scene.fresh();
    const ref = { workspace, session, profile_name: 'lead' };
    expect(await ask(ref, { instruction: ',handoff name=phase summary=ready' })).toMatchObject({
      status: 'success',
    });
    const clone = await ended(await ask(ref, { target_strategy: 'clone' }));
    expect((await scene.promptsOf(clone.agent_id)).at(-1)).toContain(
      '[Anchor created: phase]: {"summary": "ready"}',
    );
    const tasks = [
      { target_strategy: 'reuse', target_ref: ref, instruction: 'go', view: { anchor: 'phase' } },
    ];
    const batch = (await scene.h.runtime.submit('fork_join', { tasks, wait: false })) as { batch_id: string };
    expect(await scene.h.runtime.waitForBatch(batch.batch_id, { timeoutMs: 60_000 })).toMatchObject({
      status: 'success',
    });
    const { tape } = await scene.parent();
    const handoff = {
      reason: 'done here',
      summary: 'half',
      target_ref: ref,
      tape_ref: `tape://default/${tape.boxId}/entry/1`,
    };
    const given = (await scene.h.runtime.submit('context_handoff', handoff)) as unknown as Receipt;
    expect((await ended(given)).agent_id).toBe((await agentsOf(session))[0]?.id);
  });

  test('is used by agents with the same rights that any other agent needs', async () => {
    const { agent } = await scene.parent();
    const session = scene.fresh();
    const ref = { workspace, session, profile_name: 'lead' };
    const own = await ask(ref, {}, { sourceAgentId: agent });
    await ended(own);
    const { agent: stranger } = await scene.parent();
    await expect(ask({ workspace, session }, {}, { sourceAgentId: stranger })).rejects.toMatchObject({
      code: expect.stringMatching(/denied|not_authorized/),
    });
    await scene.h.profile('closed', [{ say: 'ok' }]);
    const args = { action: 'create', agent_id: `${session}-closed`, profile_name: 'closed' };
    await scene.h.runtime.submit('provision_agent', args);
    const asking = { sourceAgentId: `${session}-closed` };
    await expect(ask({ ...ref, session: `${session}-2` }, {}, asking)).rejects.toMatchObject({
      code: 'delegation_denied',
    });
    expect(await agentsOf(`${session}-2`)).toEqual([]);
  });

  test('can be a source agent, a grantee, a box, the tape of a tool, and an agent to provision', async () => {
    const { runtime } = scene.h;
    const [lead, reader] = [scene.fresh(), scene.fresh()].map((session) => ({ workspace, session }));
    if (lead === undefined || reader === undefined) throw new Error('no sessions');
    const provision = (args: object) => runtime.submit('provision_agent', { action: 'ensure', ...args });
    await expect(provision({ agent_id: lead })).rejects.toMatchObject({
      code: 'not_found',
      details: { field: 'arguments.agent_id' },
    });
    const made = { agent_id: lead, profile_name: 'lead', shared: true };
    const agent = await provision(made);
    expect(agent).toMatchObject({
      outcome: 'created',
      name: tapeName(workspace, lead.session),
      profile_name: 'lead',
      shared: true,
    });
    expect(await provision(made)).toMatchObject({ ...(agent as object), outcome: 'unchanged' });
    await expect(provision({ ...made, profile_name: 'other' })).rejects.toMatchObject({
      code: 'conflict',
      details: { field: 'arguments.agent_id.profile_name' },
    });
    await expect(provision({ ...made, action: 'create' })).rejects.toMatchObject({ code: 'bad_request' });
    await provision({ agent_id: reader, profile_name: 'other' });
    expect(await runtime.submit('provision_agent', { action: 'derive', derived_from: reader })).toMatchObject(
      { profile_name: 'other' },
    );

    // A source agent at the door of the library and, as JSON, at the door of the queue.
    const asLead = { sourceAgentId: { ...lead, workspace: '/srv/x/../demo/' } };
    const search = { name: 'phase', tape: reader };
    await expect(runtime.submit('tape.handoff', search, asLead)).rejects.toMatchObject({
      code: 'box_not_authorized',
    });
    expect(await runtime.submit('tape.handoff', { name: 'mine', tape: lead }, asLead)).toContain('mine');
    await runtime.submit('grant_box', { box_id: reader, grantee: lead, mode: 'append' });
    expect(await runtime.submit('tape.handoff', search, asLead)).toContain('phase');
    const tape = await runtime.tape(reader, { create: false });
    expect((await tape.anchors()).map(({ name }) => name)).toContain('phase');
    for (const source of [
      { ...lead, session: 'none' },
      { ...lead, workspace: 'demo' },
    ])
      await expect(runtime.submit('tape.handoff', search, { sourceAgentId: source })).rejects.toMatchObject({
        code: source.session === 'none' ? 'not_found' : 'bad_request',
        message: expect.stringMatching(/^source_agent_id/),
      });
    await expect(
      runtime.submit('grant_box', { box_id: reader, grantee: { ...lead, workspace: 'demo' } }),
    ).rejects.toMatchObject({ details: { field: 'arguments.grantee.workspace' } });
  });

  test('begins again with its name after a reset', async () => {
    const session = scene.fresh();
    const first = await ask({ workspace, session, profile_name: 'lead' });
    await ended(first);
    await (await scene.h.runtime.tape({ workspace, session })).reset();
    const tape = await scene.h.runtime.tape({ workspace, session });
    expect(tape.boxId).not.toBe(first.output_box_id);
    expect(await ask({ workspace, session })).toMatchObject({
      agent_id: first.agent_id,
      output_box_id: tape.boxId,
    });
    expect(await tape.info()).toMatchObject({ name: sessionTapeName({ workspace, session }) });
  });
});
