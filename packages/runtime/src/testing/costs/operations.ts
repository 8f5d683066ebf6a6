/** The operations whose costs are recorded, each between two stops of the model. */
import type { JsonValue } from '@boxcar/kernel';
import type { Stage } from './stage.js';

/** Repetitions of each operation. The first repetitions fill caches. */
const REPETITIONS = 5;

const call = (tool: string, args: JsonValue): JsonValue => ({ calls: [{ tool, arguments: args }] });
const DONE = { say: 'Done.' };

const forkOf = (children: number, profile: string): JsonValue =>
  call('fork_join', {
    tasks: Array.from({ length: children }, () => ({
      target_strategy: 'new',
      target_ref: profile,
      instruction: 'Go.',
    })),
  });

async function applyProfiles(stage: Stage): Promise<void> {
  await stage.profile('leaf', [DONE]);
  // No worker serves its target.
  await stage.profile('far', [DONE], { worker_target: 'nobody' });
  await stage.profile('thinker', [DONE, DONE, call('submit_result', { result: 'Done.' })], {
    must_end_with: ['submit_result'],
  });
  await stage.profile('looker', [call('look', {}), DONE], { tools: ['look'] });
  const may = { delegation_policy: { target_profiles: ['leaf', 'far'] } };
  const ask = call('launch_principal', { profile_name: 'leaf', instruction: 'Go.', wait: true });
  await stage.profile('asker', [ask, DONE], { tools: ['launch_principal'], ...may });
  const forks = { tools: ['fork_join'], ...may };
  await stage.profile('joiner', [forkOf(2, 'leaf'), DONE], forks);
  for (const children of FORKS)
    await stage.profile(`forks-${children}`, [forkOf(children, 'far'), DONE], forks);
}

/** Numbers of children in the measured forks. */
export const FORKS = [10, 40] as const;

/** Measures submission, claim and end separately: the worker has one slot, which is occupied at each submission, and the queue is held. */
async function measureTurns(stage: Stage): Promise<void> {
  await stage.toModel(() => stage.submit(stage.caller, 'leaf'));
  for (let at = 0; at < REPETITIONS; at += 1) {
    await stage.measure('submission', () => stage.submit(stage.caller, 'leaf'));
    await stage.measure('end', stage.answer);
    await stage.measureToModel('claim', stage.ring);
  }
  await stage.measure('end', stage.answer);
}

async function measureStarts(stage: Stage): Promise<void> {
  await stage.measureToModel('start', () => stage.submit(stage.caller, 'leaf'));
  await stage.measure('end', stage.answer);
  await stage.measureToModel('start in process', () => stage.submit(stage.worker, 'leaf'));
  await stage.measure('end in process', stage.answer);
}

async function measureSteps(stage: Stage): Promise<void> {
  await stage.toModel(() => stage.submit(stage.caller, 'thinker'));
  await stage.measureToModel('step', stage.answer);
  await stage.measureToModel('step', stage.answer);
  await stage.measure('end by submit_result', stage.answer);
  await stage.toModel(() => stage.submit(stage.caller, 'looker'));
  await stage.measureToModel('step with a tool', stage.answer);
  await stage.toRest(stage.answer);
}

async function measureHops(stage: Stage): Promise<void> {
  await stage.toModel(() => stage.submit(stage.caller, 'asker'));
  await stage.measureToModel('hop down', stage.answer);
  await stage.measureToModel('hop up', stage.answer);
  await stage.toRest(stage.answer);
}

async function measureJoins(stage: Stage): Promise<void> {
  await stage.toModel(() => stage.submit(stage.caller, 'joiner'));
  await stage.toModel(stage.answer, 2);
  await stage.measure('end of a child', stage.answer);
  await stage.measureToModel('end of a join', stage.answer);
  await stage.toRest(stage.answer);
  for (const children of FORKS) {
    await stage.toModel(() => stage.submit(stage.caller, `forks-${children}`));
    await stage.measure(`fork of ${children}`, stage.answer);
  }
}

/** Runs all operations. */
export async function measureOperations(stage: Stage): Promise<void> {
  await applyProfiles(stage);
  await stage.withWorker(1, () => measureTurns(stage));
  stage.ringAtOnce();
  await stage.withWorker(5, async () => {
    for (let at = 0; at < REPETITIONS; at += 1)
      for (const measure of [measureStarts, measureSteps, measureHops, measureJoins]) await measure(stage);
  });
}
