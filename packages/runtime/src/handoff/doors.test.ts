/**
 * A target that a policy forbids, at every door and under every spelling: nothing of the target runs, and the request is recorded or
 * refused.
 */
import { isJsonObject, type JsonValue, KernelError, type TurnId } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { PermissionEvaluator } from '@boxcar/policy';
import { createPool } from '@boxcar/store';
import { queueBackends, waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createQueueDoor } from '../door/queue-door.js';
import { silentLog } from '../lib/log.js';
import { BullMqDoorbell, PRIMITIVES_QUEUE } from '../queue/doorbell-bullmq.js';
import { openQueues } from '../queue/queues.js';
import { Runtime } from '../runtime.js';
import { checkWire } from '../testing/check-wire.js';
import { checkInvariants } from '../testing/invariants.js';
import { type TestBackend, testBackend } from '../testing/queue-backend.js';
import { createWorker } from '../worker/worker.js';
import { HandoffTool } from './handoff-tool.js';

const POLICY = new PermissionEvaluator({
  text: `
tools:
  handoff: { permission: ALWAYS }
rules:
  - { condition: { context: { target_agent: [secret, secret-function, sleeper-by-name, "external-*"] } }, permission: NEVER }
  - { condition: { context: { platform: Claude } }, permission: NEVER }
`,
  environment: 'development',
});

interface Spelling {
  readonly target_agent: string;
  readonly platform?: string;
  /** The spelling names no target at all, so there is nothing to forbid. */
  readonly isUnknown?: true;
}

/** @param ids - Ids of two agents, of the profiles `secret` and `open`. The policy knows the second agent by its name. */
function spellings(ids: { readonly bySecret: string; readonly byName: string }): readonly Spelling[] {
  const native: readonly Spelling[] = [
    { target_agent: 'secret' },
    { target_agent: 'profile:secret' },
    { target_agent: 'sleeper' },
    { target_agent: 'agent:sleeper' },
    { target_agent: ids.bySecret },
    { target_agent: `agent:${ids.bySecret}` },
    { target_agent: 'sleeper-by-name' },
    { target_agent: 'agent:sleeper-by-name' },
    { target_agent: ids.byName },
    { target_agent: 'secret-function' },
    { target_agent: 'SECRET', isUnknown: true },
    { target_agent: 'agent:secret', isUnknown: true },
    { target_agent: 'profile:profile:secret', isUnknown: true },
  ];
  const padded = ['secret', 'profile:secret', 'sleeper', 'secret-function'].flatMap((name) => [
    { target_agent: ` ${name} ` },
    { target_agent: `${name}\n` },
    { target_agent: `\t${name}` },
    { target_agent: name.replace(':', ': ').replace(/^(\w)/, ' $1') },
  ]);
  const platforms = ['agdd', 'AGDD', 'native', 'Boxcar', 'MagSag'].flatMap((platform) => [
    { target_agent: 'secret', platform },
    { target_agent: 'profile:secret', platform },
    { target_agent: ids.bySecret, platform },
  ]);
  const elsewhere: readonly Spelling[] = [
    { target_agent: 'external-writer' },
    ...['openai', 'OpenAI', 'openai-compat', 'OPENAI-COMPAT'].map((platform) => ({
      target_agent: 'external-writer',
      platform,
    })),
    { target_agent: 'lawyer' },
    ...['anthropic', 'claude', 'Claude', 'ANTHROPIC'].map((platform) => ({
      target_agent: 'lawyer',
      platform,
    })),
    { target_agent: 'model:any', platform: 'claude' },
    { target_agent: 'secret', platform: 'openai' },
    { target_agent: 'secret', platform: 'adk' },
    { target_agent: 'external-writer', platform: 'agdd' },
    { target_agent: 'lawyer', platform: 'openai', isUnknown: true },
    { target_agent: 'secret', platform: ' agdd ', isUnknown: true },
    { target_agent: 'secret', platform: 'no-such-platform', isUnknown: true },
  ];
  return [
    ...native,
    ...padded.map((one) => ({ ...one, isUnknown: true as const })),
    ...platforms,
    ...elsewhere,
  ];
}

/** The answer of a door. */
interface Answer {
  readonly code: string;
  readonly handoffId: string | undefined;
}

function answerOf(error: unknown): Answer {
  if (error instanceof KernelError)
    return { code: error.code, handoffId: error.details.handoff_id as string | undefined };
  if (!isJsonObject(error as JsonValue)) throw error;
  const { code, details } = error as unknown as { code: string; details?: { handoff_id?: string } };
  return { code, handoffId: details?.handoff_id };
}

const refusal = (work: Promise<unknown>): Promise<Answer> =>
  work.then((value) => {
    throw new Error(`it was accepted: ${JSON.stringify(value)}`);
  }, answerOf);

describe.each(queueBackends())(
  'all ways to request a handoff, with queues on %s, follow the policy:',
  (kind) => {
    let backend: TestBackend;
    let runtime: Runtime;
    let tool: HandoffTool;
    let tried: readonly Spelling[];
    const closers: (() => Promise<unknown>)[] = [];
    const ran: string[] = [];

    beforeAll(async () => {
      backend = await testBackend(kind);
      const pool = createPool({ connectionString: backend.database.url });
      const queues = openQueues(backend.connection);
      runtime = new Runtime({
        pool,
        directUrl: backend.database.url,
        doorbell: new BullMqDoorbell(queues, silentLog),
        model: createModelRouter({}),
        permissionEvaluator: POLICY,
        handoffs: {
          enabled: true,
          // No server listens there: a request that gets this far would show in its attempt.
          targets: {
            'external-writer': { platform: 'openai', model: 'm', base_url: 'http://127.0.0.1:9/v1' },
            lawyer: { platform: 'anthropic', model: 'm', base_url: 'http://127.0.0.1:9' },
          },
        },
      });
      tool = new HandoffTool({ runtime });
      for (const name of ['secret-function', 'open-function'])
        tool.registerAgent(name, () => {
          ran.push(name);
          return name;
        });
      const door = createQueueDoor(runtime, queues, { concurrency: 5 });
      const worker = await createWorker(runtime, { sweepMs: 100 });
      closers.push(
        () => door.close(),
        () => worker.close({ graceMs: 1_000 }),
        () => runtime.close(),
        () => pool.end(),
        () => backend.close(),
      );
      for (const name of ['secret', 'open'])
        await runtime.applyProfile({
          name,
          instructions: 'Works.',
          model: 'scripted',
          script: [{ say: 'ran' }],
        });
      const provision = async (agent_id: string, profile_name: string): Promise<string> =>
        (
          (await runtime.submit('provision_agent', {
            action: 'create',
            agent_id,
            profile_name,
            shared: true,
          })) as { agent_id: string }
        ).agent_id;
      tried = spellings({
        bySecret: await provision('sleeper', 'secret'),
        byName: await provision('sleeper-by-name', 'open'),
      });
    });
    afterAll(async () => {
      await checkInvariants(backend.database.pool, { isSettled: false });
      await checkWire(runtime);
      for (const close of closers) await close();
    });

    const rows = async <R extends Record<string, unknown>>(text: string): Promise<R[]> =>
      (await backend.database.pool.query<R>(text)).rows;

    async function expectRefused(spelling: Spelling, { code, handoffId }: Answer): Promise<void> {
      const handoff = handoffId === undefined ? null : await tool.getHandoff(handoffId);
      const seen = { spelling, code, status: handoff?.status ?? null };
      if (spelling.isUnknown === true) {
        expect(['bad_request', 'not_found', 'permission_denied'], JSON.stringify(seen)).toContain(code);
        expect([null, 'failed', 'rejected'], JSON.stringify(seen)).toContain(seen.status);
      } else expect(seen).toEqual({ spelling, code: 'permission_denied', status: 'rejected' });
      expect([handoff?.turn_id ?? null, handoff?.ticket_id ?? null, handoff?.attempts ?? 0]).toEqual([
        null,
        null,
        0,
      ]);
    }

    /** Only the turns of the models that tried have run. */
    async function expectNothingRan(): Promise<void> {
      expect(
        await rows(
          "select p.name, t.status from boxcar.turns t join boxcar.profiles p on p.id = t.profile_id where p.name <> 'caller'",
        ),
      ).toEqual([]);
      expect(ran).toEqual([]);
    }

    const request = ({ target_agent, platform }: Spelling) => ({
      target_agent,
      task: 'do it',
      ...(platform === undefined ? {} : { platform }),
    });

    test('a call from a program', async () => {
      for (const spelling of tried)
        await expectRefused(
          spelling,
          await refusal(tool.handoff({ source_agent: 'main', ...request(spelling) })),
        );
      await expectNothingRan();
    });

    test('a call with arguments in the shape of each platform', async () => {
      const shapes: Readonly<Record<string, (target: string) => object>> = {
        Native: (target_agent) => ({ target_agent, task: 'do it' }),
        'anthropic-ADK': (target) => ({ target, message: 'do it' }),
        'OpenAI-compat': (agent_id) => ({ agent_id, instructions: 'do it' }),
        Claude: (target_agent) => ({ target_agent, request: 'do it' }),
      };
      for (const [shape, argumentsOf] of Object.entries(shapes))
        for (const { target_agent, isUnknown } of tried.filter(({ platform }) => platform === undefined)) {
          const answer = await refusal(
            tool.callTool(shape, argumentsOf(target_agent), { source_agent: 'main' }),
          );
          // Claude is forbidden as a whole, under every name. Of the other platforms, only our own has these targets, and OpenAI has one
          // target.
          const isForbidden =
            shape === 'Claude'
              ? target_agent.trim() === target_agent
              : shape === 'Native' && isUnknown !== true && target_agent !== 'lawyer';
          const spelling: Spelling = { target_agent, ...(isForbidden ? {} : { isUnknown: true }) };
          await expectRefused(spelling, answer);
        }
      await expectNothingRan();
    });

    test('a submission of the primitive itself', async () => {
      for (const spelling of tried) {
        const asked = runtime.submit('handoff', { source_agent: 'main', ...request(spelling) });
        const answer = await asked.then((value) => {
          const error = isJsonObject(value) ? value.error : undefined;
          if (error === undefined) throw new Error(`it was accepted: ${JSON.stringify(value)}`);
          return answerOf(error);
        }, answerOf);
        await expectRefused(spelling, answer);
      }
      await expectNothingRan();
    });

    test('a call by a model', async () => {
      const steps = Array.from({ length: Math.ceil(tried.length / 10) }, (_, n) =>
        tried.slice(n * 10, n * 10 + 10),
      );
      await runtime.applyProfile({
        name: 'caller',
        instructions: 'Tries.',
        model: 'scripted',
        tools: ['handoff'],
        delegation_policy: { target_profiles: null },
        limits: { max_steps: 50 },
        script: [
          ...steps.map((some) => ({
            calls: some.map((one) => ({ tool: 'handoff', arguments: request(one) })),
          })),
          { say: 'done' },
        ],
      });
      const { turn_id } = (await runtime.submit('launch_principal', {
        profile_name: 'caller',
        instruction: 'go',
      })) as { turn_id: TurnId };
      expect(await runtime.waitForTurn(turn_id, { timeoutMs: 60_000 })).toMatchObject({ result: 'done' });
      const results = await rows<{ status: string; error: JsonValue }>(
        `select k.status, c.content->'error' as error from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id where k.turn_id = '${turn_id}' order by k.step, k.ordinal`,
      );
      expect(results).toHaveLength(tried.length);
      for (const [index, { status, error }] of results.entries()) {
        expect(status).toBe('failed');
        await expectRefused(tried[index] as Spelling, answerOf(error));
      }
      await expectNothingRan();
    });

    test('a job at the queue door', async () => {
      const queue = backend.queue(PRIMITIVES_QUEUE);
      const jobs = await Promise.all(
        tried.map((spelling, index) =>
          queue.add('handoff', {
            project_id: 'default',
            arguments: { source_agent: 'main', run_id: `job-${index}`, ...request(spelling) },
          }),
        ),
      );
      for (const [index, { id = '' }] of jobs.entries()) {
        const job = await waitFor(
          async () => {
            const now = await queue.getJob(id);
            return now?.finishedOn === undefined ? undefined : now;
          },
          { message: `job ${index} has ended`, deadlineMs: 30_000 },
        );
        const [, code = ''] = /^(\w+): /.exec(job.failedReason ?? '') ?? [];
        const { handoffs } = await tool.listHandoffs({ run: `job-${index}` });
        expect(handoffs.length).toBeLessThanOrEqual(1);
        await expectRefused(tried[index] as Spelling, { code, handoffId: handoffs[0]?.handoff_id });
      }
      await expectNothingRan();
    });

    test('a request that the policy allows runs', async () => {
      expect(await tool.handoff({ source_agent: 'main', target_agent: 'open', task: 'x' })).toMatchObject({
        result: 'ran',
      });
      expect(
        await tool.handoff({ source_agent: 'main', target_agent: 'open-function', task: 'x' }),
      ).toMatchObject({ result: 'open-function' });
      expect(ran).toEqual(['open-function']);
    });
  },
);
