import { isJsonObject, type JsonValue } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { createLog, openRuntime } from '@boxcar/runtime';
import { Cleanup } from '../cleanup.js';
import { ANSWER, PROMPT, type System, type Target } from '../system.js';
import { forkWorker } from '../worker-process.js';

const PROFILE = {
  name: 'bench',
  instructions: 'You count wagons.',
  model: 'scripted',
  script: [{ say: ANSWER }],
};

/** Boxcar with its default settings, called through the library: `submit`, then `waitForTurn`. */
export async function openBoxcar(target: Target): Promise<System> {
  const cleanup = new Cleanup();
  const { databaseUrl, redisUrl } = target;
  const open = openRuntime({ databaseUrl, redisUrl, model: createModelRouter(), log: createLog('warn') });
  cleanup.defer(() => open.close());
  const { runtime } = open;
  await runtime.applyProfile(PROFILE);
  const worker = await forkWorker(new URL('./worker', import.meta.url), target);
  cleanup.defer(() => worker.close());

  const answer = async (): Promise<void> => {
    const receipt = await runtime.submit('launch_principal', {
      profile_name: PROFILE.name,
      instruction: PROMPT,
    });
    const turn = await runtime.waitForTurn(readTurnId(receipt));
    if (turn.status !== 'success' || turn.result !== ANSWER)
      throw new Error(
        `turn ${turn.turn_id} ended as ${turn.status}: ${JSON.stringify(turn.error ?? turn.result)}`,
      );
  };
  return {
    name: 'boxcar',
    workerPid: worker.pid,
    answer,
    startProfile: () => worker.startProfile(),
    stopProfile: () => worker.stopProfile(),
    [Symbol.asyncDispose]: () => cleanup[Symbol.asyncDispose](),
  };
}

function readTurnId(receipt: JsonValue): string {
  if (isJsonObject(receipt) && typeof receipt.turn_id === 'string') return receipt.turn_id;
  throw new Error(`a receipt without turn_id: ${JSON.stringify(receipt)}`);
}
