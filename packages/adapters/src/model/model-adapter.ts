/** Handoffs to models: one call, whose answer is the result. */
import { KernelError, normalizePlatform } from '@boxcar/kernel';
import type {
  AdapterCapabilities,
  AdapterRequest,
  AdapterResult,
  ExecuteOptions,
  HandoffAdapter,
} from '../adapter.js';
import { CARRIED_KINDS } from '../adapter.js';
import { isModelTarget } from '../targets/target.js';
import { raceAbort } from '../wire/race-abort.js';
import { MODEL_PLATFORMS } from './model-platform.js';
import { runModel } from './run-model.js';

/** The common part of both adapters. A model call changes nothing on the platform, so it may be repeated. */
class ModelAdapter implements HandoffAdapter {
  readonly platform: 'openai' | 'anthropic';
  readonly retry = 'safe';
  readonly capabilities: AdapterCapabilities = {
    streaming: true,
    cancel: false,
    messages: false,
    max_context_tokens: null,
    carries: CARRIED_KINDS,
    file_types: ['application/pdf'],
  };

  /** Takes a name, not an SDK object: SDK types in the exported API would force programs to install the SDK's types. */
  constructor(platform: 'openai' | 'anthropic') {
    this.platform = platform;
  }

  supportsPlatform(name: string): boolean {
    return normalizePlatform(name) === this.platform;
  }

  async executeHandoff(request: AdapterRequest, options: ExecuteOptions): Promise<AdapterResult> {
    const { target } = request;
    if (!isModelTarget(target) || target.platform !== this.platform)
      throw new KernelError('bad_request', {
        message: `target: the entry of '${request.target_agent}' is not of ${this.platform}.`,
        details: { field: 'target', handoff_id: request.handoff_id },
      });
    return raceAbort(
      () => runModel(this, MODEL_PLATFORMS[this.platform], target, request, options),
      options.signal,
    );
  }
}

/** Hands a task to a model of OpenAI, or of a gateway that speaks the Responses API. */
export class OpenAIHandoffAdapter extends ModelAdapter {
  constructor() {
    super('openai');
  }
}

/** Hands a task to a model of Anthropic, or of a gateway that speaks the Messages API. */
export class AnthropicHandoffAdapter extends ModelAdapter {
  constructor() {
    super('anthropic');
  }
}
