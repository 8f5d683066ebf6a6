import { checkMessages, type Model, type ModelRequest } from '@boxcar/kernel';
import { createModelRouter, type ScriptedFunction } from '@boxcar/llm';

/** A model that records every request. */
export interface RecordingModel extends Model {
  readonly requests: readonly ModelRequest[];
  /** Problems for which the strictest providers would refuse a prompt, over all prompts so far. */
  findings(): readonly string[];
  /** The requests of one turn, in order. */
  of(turnId: string): readonly ModelRequest[];
}

/** The scripted model with recording. `functions` are available as `scripted:<name>`. */
export function recordingModel(functions: Readonly<Record<string, ScriptedFunction>> = {}): RecordingModel {
  const model = createModelRouter({ scripted: { functions } });
  const requests: ModelRequest[] = [];
  return {
    requests,
    findings: () => requests.flatMap(({ messages, tools }) => checkMessages(messages, tools)),
    of: (turnId) => requests.filter((request) => request.turn.turnId === turnId),
    checkProfile: (profile) => model.checkProfile?.(profile),
    ...(model.countTokens === undefined ? {} : { countTokens: model.countTokens }),
    generate: (request, options) => {
      requests.push(request);
      return model.generate(request, options);
    },
  };
}
