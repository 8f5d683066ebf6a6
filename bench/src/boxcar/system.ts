import { isJsonObject, type JsonValue } from '@boxcar/kernel';
import { createLog, openRuntime, type Runtime } from '@boxcar/runtime';
import { Cleanup } from '../cleanup.js';
import { ANSWER, PROMPT, type System, type Target } from '../system.js';
import { forkWorker, type WorkerProcess } from '../worker-process.js';
import { createBenchModel, WEBHOOKS } from './model.js';

/** Boxcar with its default settings, called through the library. */
export interface Boxcar extends System {
  readonly runtime: Runtime;
  /** Like `answer`, but by an agent of this profile. */
  answerAs(profileName: string): Promise<void>;
}

export const PROFILE = {
  name: 'bench',
  instructions: 'You count wagons.',
  model: 'scripted',
  // Large enough for views of any size.
  limits: { context_tokens: 10_000_000 },
  script: [{ say: ANSWER }],
};

/** Only the caller: a runtime in this process, without a worker. */
export function openCaller(target: Target): { readonly runtime: Runtime; close(): Promise<void> } {
  const { databaseUrl, redisUrl } = target;
  return openRuntime({
    databaseUrl,
    redisUrl,
    model: createBenchModel(),
    log: createLog('warn'),
    handoffs: { webhooks: WEBHOOKS },
  });
}

export const forkBoxcarWorker = (target: Target): Promise<WorkerProcess> =>
  forkWorker(new URL('./worker', import.meta.url), target);

/** @returns The id of the turn. */
export async function submitTurn(runtime: Runtime, profileName: string): Promise<string> {
  const receipt = await runtime.submit('launch_principal', {
    profile_name: profileName,
    instruction: PROMPT,
  });
  return readReceipt(receipt).turn_id;
}

export async function openBoxcar(target: Target): Promise<Boxcar> {
  const cleanup = new Cleanup();
  const caller = openCaller(target);
  cleanup.defer(() => caller.close());
  const { runtime } = caller;
  await runtime.applyProfile(PROFILE);
  const worker = await forkBoxcarWorker(target);
  cleanup.defer(() => worker.close());

  const answerAs = async (profileName: string): Promise<void> => {
    const turn = await runtime.waitForTurn(await submitTurn(runtime, profileName));
    if (turn.status !== 'success' || turn.result !== ANSWER)
      throw new Error(
        `turn ${turn.turn_id} ended as ${turn.status}: ${JSON.stringify(turn.error ?? turn.result)}`,
      );
  };
  return {
    name: 'boxcar',
    workerPid: worker.pid,
    runtime,
    answer: () => answerAs(PROFILE.name),
    answerAs,
    startProfile: () => worker.startProfile(),
    stopProfile: () => worker.stopProfile(),
    [Symbol.asyncDispose]: () => cleanup[Symbol.asyncDispose](),
  };
}

/** The ids in the receipt of a turn. */
export function readReceipt(receipt: JsonValue): { readonly turn_id: string; readonly agent_id: string } {
  if (isJsonObject(receipt)) {
    const { turn_id, agent_id } = receipt;
    if (typeof turn_id === 'string' && typeof agent_id === 'string') return { turn_id, agent_id };
  }
  throw new Error(`no receipt of a turn: ${JSON.stringify(receipt)}`);
}
